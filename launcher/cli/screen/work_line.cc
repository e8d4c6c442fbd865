// The line of work in progress.
#include "screen/work_line.h"

#include <cstdio>
#include <utility>

#include "report.h"

namespace shardrun::cli {
namespace {

constexpr double kPatience = 1, kLeastApart = 0.1;  // seconds
constexpr size_t kMostColumns = 60;                 // of what is done: the line must not wrap

}  // namespace

WorkLine::WorkLine(std::string doing, bool shown)
    : doing_(std::move(doing)), shown_(shown), terminal_(shown && on_terminal()) {}

void WorkLine::part(const std::string& name) {
  part_ = name;
  if (!shown_) return;
  if (terminal_) return at("");
  std::printf("%s, %.0f s: %s\n", doing_.c_str(), seconds(), name.c_str());
  std::fflush(stdout);
}

void WorkLine::at(const std::string& what) {
  const double now = seconds();
  if (!terminal_ || now < kPatience || now - last_ < kLeastApart) return;
  last_ = now;
  written_ = true;
  const std::string text = part_ + (part_.empty() || what.empty() ? "" : ": ") + what;
  std::printf("\r\033[K%s, %.0f s: %s", doing_.c_str(), now, text.substr(0, kMostColumns).c_str());
  std::fflush(stdout);
}

void WorkLine::clear() {
  if (written_) std::printf("\r\033[K");
  written_ = false;
}

}  // namespace shardrun::cli
