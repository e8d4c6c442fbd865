// The lines, and the escape sequences (ECMA-48) that put them where they were.
#include "screen/screen.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "screen/terminal.h"

namespace shardrun::cli {
namespace {

constexpr size_t kBar = 24, kSparkline = 40, kLines = 4;
constexpr double kApart = 0.1;  // seconds between two drawings

std::string text(const char* pattern, auto... values) {
  char out[160];
  std::snprintf(out, sizeof out, pattern, values...);
  return out;
}

/// Does the terminal show what is not ASCII, as the first of these that is set says?
bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = value;
    std::transform(locale.begin(), locale.end(), locale.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

std::string short_bytes(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  return b < 0x1p30 ? text("%.1f MiB", b / 0x1p20) : text("%.2f GiB", b / 0x1p30);
}

}  // namespace

std::string sparkline(const std::vector<double>& values, bool ascii) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "=", "^"};
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (double v : values) {
    if (!std::isfinite(v)) continue;
    least = std::min(least, v);
    most = std::max(most, v);
  }
  const size_t levels = ascii ? std::size(kAscii) : std::size(kBlocks);
  std::string out;
  for (double v : values) {
    if (!std::isfinite(v)) {
      out += " ";
      continue;
    }
    // Halves: the difference of two that are finite need not be.
    const double part = most > least ? (v / 2 - least / 2) / (most / 2 - least / 2) : 0;
    const auto level = std::min(
        levels - 1, static_cast<size_t>(std::max(0.0, part) * static_cast<double>(levels)));
    out += ascii ? kAscii[level] : kBlocks[level];
  }
  return out;
}

void Thinned::add(double value) {
  sum_ += value;
  if (++open_ < each_) return;
  closed_.push_back(sum_ / static_cast<double>(each_));
  sum_ = 0;
  open_ = 0;
  if (closed_.size() <= most_) return;
  std::vector<double> pairs;
  for (size_t i = 0; i + 1 < closed_.size(); i += 2)
    pairs.push_back((closed_[i] + closed_[i + 1]) / 2);
  if (closed_.size() % 2 != 0) {
    sum_ = closed_.back() * static_cast<double>(each_);
    open_ = each_;
  }
  each_ *= 2;
  closed_ = std::move(pairs);
}

std::vector<double> Thinned::means() const {
  std::vector<double> out = closed_;
  if (open_ > 0 && out.size() < most_) out.push_back(sum_ / static_cast<double>(open_));
  return out;
}

std::string clock_text(double seconds) {
  constexpr double kLongest = 1e9;
  const auto all = static_cast<int64_t>(std::min(std::max(0.0, seconds), kLongest) + 0.5);
  const auto part = [](int64_t n) { return static_cast<long long>(n); };
  if (all >= 3600)
    return text("%lld:%02lld:%02lld", part(all / 3600), part(all / 60 % 60), part(all % 60));
  return text("%lld:%02lld", part(all / 60), part(all % 60));
}

Screen::Screen(int64_t steps, bool ascii) : steps_(steps), ascii_(ascii), losses_(kSparkline) {}

void Screen::step(const StepReport& report, double seconds) {
  if (first_ == 0) {
    first_ = report.step;
    began_ = std::max(0.0, seconds - report.step_ms / 1e3);
  }
  last_ = report;
  seconds_ = seconds;
  step_ms_ += report.step_ms;
  comm_ms_ += report.comm_ms;
  losses_.add(report.loss);
}

void Screen::eval(const EvalReport& report) { eval_ = report; }

std::vector<std::string> Screen::lines(int columns) const {
  const size_t most = static_cast<size_t>(std::max(columns, 2)) - 1;
  const int64_t taken = last_.step - first_ + 1;
  const double left = static_cast<double>(steps_ - last_.step);
  const double each = taken > 0 ? (seconds_ - began_) / static_cast<double>(taken) : 0;
  const double done =
      steps_ > 0 ? static_cast<double>(last_.step) / static_cast<double>(steps_) : 1;
  const auto full = std::min(kBar, static_cast<size_t>(done * static_cast<double>(kBar)));
  const bool tokens = last_.tokens_per_s > 0;
  std::vector<std::string> out = {
      text("step %lld of %lld  [%s%s]  %.0f %%  left %s", static_cast<long long>(last_.step),
           static_cast<long long>(steps_), std::string(full, '#').c_str(),
           std::string(kBar - full, '.').c_str(), 100 * done, clock_text(left * each).c_str()),
      "",
      text("rate %.0f %s/s  %.1f ms a step  communication %.0f %%",
           tokens ? last_.tokens_per_s : last_.samples_per_s, tokens ? "tokens" : "samples",
           last_.step_ms, step_ms_ > 0 ? 100 * comm_ms_ / step_ms_ : 0.0),
      "memory " + short_bytes(last_.peak_bytes) + " of this rank"};
  if (eval_.step > 0)
    out[3] += text("  validation loss %.4f at step %lld", eval_.val_loss,
                   static_cast<long long>(eval_.step));
  for (std::string& line : out) line = line.substr(0, most);
  const std::string loss = text("loss %.4f  ", last_.loss);
  std::vector<double> means = losses_.means();
  const size_t fits = most > loss.size() ? most - loss.size() : 0;
  if (means.size() > fits) means.erase(means.begin(), means.end() - static_cast<int64_t>(fits));
  out[1] = loss.substr(0, most) + sparkline(means, ascii_);
  return out;
}

bool ScreenPainter::fits() {
  const int rows = terminal_size().rows;
  return rows == 0 || rows > static_cast<int>(kLines);
}

ScreenPainter::ScreenPainter(int64_t steps) : screen_(steps, !shows_utf8()) {}

void ScreenPainter::step(const StepReport& report) {
  const auto now = Clock::now();
  screen_.step(report, std::chrono::duration<double>(now - begin_).count());
  const bool drawn_lately = std::chrono::duration<double>(now - drawn_at_).count() < kApart;
  if (any_ && drawn_lately) return;
  any_ = true;
  drawn_at_ = now;
  draw();
}

void ScreenPainter::eval(const EvalReport& report) {
  screen_.eval(report);
  if (any_) draw();
}

void ScreenPainter::above(const std::function<void()>& print) {
  erase();
  std::fflush(stdout);
  print();
  if (any_) draw();
}

void ScreenPainter::finish() {
  if (any_) draw();
  drawn_.clear();
}

void ScreenPainter::draw() {
  const size_t rows = go_back();
  const bool as_before = rows == drawn_.size() && fits();
  if (rows > 0 && !as_before) std::printf("\033[J");
  drawn_.clear();
  if (fits()) {
    for (const std::string& line : screen_.lines(terminal_size().columns)) {
      std::printf("\033[K%s\n", line.c_str());
      drawn_.push_back(columns_of(line));
    }
  }
  std::fflush(stdout);
}

void ScreenPainter::erase() {
  if (go_back() > 0) std::printf("\033[J");
  drawn_.clear();
}

size_t ScreenPainter::go_back() const {
  // A terminal that became narrower breaks the lines that stand in it.
  const auto columns = static_cast<size_t>(std::max(1, terminal_size().columns));
  size_t rows = 0;
  for (const size_t line : drawn_) rows += std::max<size_t>(1, (line + columns - 1) / columns);
  if (rows > 0) std::printf("\033[%zuA\r", rows);
  return rows;
}

}  // namespace shardrun::cli
