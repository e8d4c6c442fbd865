// The line of work in progress.
#include "screen/work_line.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "screen/terminal.h"

namespace shardrun::cli {
namespace {

constexpr double kPatience = 1, kLeastApart = 0.1;  // seconds
constexpr std::chrono::seconds kApart{1};
constexpr size_t kMostColumns = 100;

}  // namespace

WorkLine::WorkLine(std::string doing, bool shown)
    : doing_(std::move(doing)), shown_(shown), terminal_(shown && on_terminal()) {
  if (!terminal_) return;
  clock_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (auto next = begin_ + kApart; !ends_.wait_until(lock, next, [&] { return ended_; });
         next += kApart)
      draw();
  });
}

void WorkLine::part(const std::string& name) {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  part_ = name, what_.clear();
  if (terminal_) {
    if (seconds() >= kPatience) draw();
    return;
  }
  std::printf("%s, %.0f s: %s\n", doing_.c_str(), seconds(), name.c_str());
  std::fflush(stdout);
}

void WorkLine::at(const std::string& what) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  what_ = what;
  const double now = seconds();
  if (now >= kPatience && now - last_ >= kLeastApart) draw();
}

void WorkLine::above(const std::function<void()>& print) {
  const std::lock_guard lock(mutex_);
  clear();
  print();
  std::fflush(stdout);
}

void WorkLine::end() {
  if (clock_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    ends_.notify_all();
    clock_.join();
  }
  clear();
}

void WorkLine::draw() {
  last_ = seconds();
  const std::string what = part_ + (part_.empty() || what_.empty() ? "" : ": ") + what_;
  char time[32];
  std::snprintf(time, sizeof time, ", %.0f s", last_);
  const std::string text = doing_ + time + (what.empty() ? "" : ": ") + what;
  // It must not wrap, for then it would not be written over.
  const auto columns = static_cast<size_t>(std::max(terminal_size().columns, 2));
  std::printf("\r\033[K%s", text.substr(0, std::min(kMostColumns, columns - 1)).c_str());
  std::fflush(stdout);
  written_ = true;
}

void WorkLine::clear() {
  if (!written_) return;
  std::printf("\r\033[K");
  std::fflush(stdout);
  written_ = false;
}

}  // namespace shardrun::cli
