// Screen: what a person watches while a run trains, some lines of a terminal that stay put.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

/// A line of so many characters at most for numbers in order, the least lowest: "▁▂▅█". What is not
/// finite is a blank. `ascii`: of "_.-=^" instead.
std::string sparkline(const std::vector<double>& values, bool ascii);

/// The values so far in at most so many means of equally many each.
class Thinned {
 public:
  explicit Thinned(size_t most) : most_(most) {}
  void add(double value);
  std::vector<double> means() const;

 private:
  size_t most_, each_ = 1, open_ = 0;  // values of the last mean
  double sum_ = 0;
  std::vector<double> closed_;
};

/// "1:02:03", "4:05", "0:07".
std::string clock_text(double seconds);

class Screen {
 public:
  /// Of a run that ends with step `steps`.
  Screen(int64_t steps, bool ascii);

  /// Its lines after the steps and validations that it was given, none as long as a terminal of so
  /// many columns is wide.
  std::vector<std::string> lines(int columns) const;

  void step(const StepReport& report, double seconds);  // `seconds`: since the run began
  void eval(const EvalReport& report);

 private:
  int64_t steps_, first_ = 0;
  bool ascii_;
  StepReport last_;
  EvalReport eval_;  // step 0: none
  double seconds_ = 0, began_ = 0, step_ms_ = 0, comm_ms_ = 0;
  Thinned losses_;
};

/// Draws a Screen where the cursor is, and again in the same place, in the terminal's present
/// width. Nothing is drawn while it does not fit.
class ScreenPainter {
 public:
  explicit ScreenPainter(int64_t steps);
  /// Has the terminal rows for the lines and the cursor? Where they scroll away they would be drawn
  /// in other places.
  static bool fits();
  void step(const StepReport& report);
  void eval(const EvalReport& report);
  /// What `print` prints stays above the lines.
  void above(const std::function<void()>& print);
  void finish();  // the last state is drawn

 private:
  void draw();
  void erase();
  size_t go_back() const;  // to where the lines begin; how many rows they take
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), drawn_at_;
  Screen screen_;
  std::vector<size_t> drawn_;  // columns of the lines that stand there
  bool any_ = false;
};

}  // namespace shardrun::cli
