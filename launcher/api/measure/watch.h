// Noticing that something else slows a machine down while it is measured, and measuring again.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <string>

namespace shardrun {

/// A piece of work that is always the same, in seconds.
struct Reference {
  double taken = 0;  // by the clock
  double least = 0;  // of this at most: without what it waited for a core, where one can tell
};

/// Of figures, those that were taken while something slowed the machine down, up to so many times.
struct Disturbance {
  size_t figures = 0, disturbed = 0;
  double times = 1;
  Disturbance& operator+=(const Disturbance& more);
  /// "" or a sentence that says what to do.
  std::string text() const;
};

/// Keeps figures, each with how much slower than ever before or after the reference was shortly
/// before or behind it. Example, the least ever 8 ms: figures between a reference of 8.1 ms and one
/// of 13 ms were taken while the machine was 13 / 8 = 1.6 times as slow, and are taken again.
///
/// Where several ranks measure together, `reference` and `now` say the same on each of them, so
/// that all do the same.
class Watch {
 public:
  static constexpr double kSlow = 1.15;     // times the least is disturbed
  static constexpr double kStretch = 0.15;  // s of figures between two references, about

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  /// `least`: of the same reference, from before. `patience`: s, in all, that take waits for a
  /// disturbed machine.
  Watch(std::function<Reference()> reference, std::function<double()> now, double patience,
        double least = kUnknown);

  /// What `measure` says, as far as it can wait while the machine is quiet. It is called again by
  /// repeat, which changes the number that this refers to; that stays as long as the watch. Passes
  /// on what `measure` throws, and then keeps nothing.
  const double& take(std::function<double()> measure);
  /// Takes disturbed figures again while the machine is quiet, until none is left or now() is
  /// `deadline`; of an old and a new one that was disturbed less stays.
  void repeat(double deadline);

  double now() const { return now_(); }
  /// s that take has waited. A deadline of what is left to do moves by so much.
  double waited() const { return waited_; }
  double least() const { return least_; }
  /// Somebody else saw the reference take less.
  void learn(double least) { least_ = std::min(least_, least); }
  Disturbance disturbance() const;

 private:
  struct Figure {
    std::function<double()> measure;
    double value;
    double reference;  // the slower of those before and behind
  };
  /// A figure that was taken since the last reference.
  struct Open {
    Figure* figure;
    double value;
  };

  void refer();
  bool slow(double reference) const { return reference > kSlow * least_; }
  void begin_stretch();  // with its reference before it
  void end_stretch();

  std::function<Reference()> reference_;
  std::function<double()> now_;
  double patience_, least_;
  double waited_ = 0;
  double last_ = 0, at_ = -kUnknown;  // the last reference, and when
  std::deque<Figure> figures_;
  std::deque<Open> open_;
};

}  // namespace shardrun
