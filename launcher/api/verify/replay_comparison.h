// What ranks have of a value, compared with what one rank has.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verify/replay.h"

namespace shardrun {

/// Multiplies each element by 1 + blur x (uniform in [-1, 1)). In bf16 most of these would round to
/// what they were, and all of a small value's: there it is 1 + blur or 1 - blur.
void blur(const TensorView& view, const std::string& name);

/// The values of one replay, act by act.
class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  /// What follows is of this act; `training`: else of its validation.
  void begin(const ReplayAct& act, bool training);
  bool training() const { return training_; }

  /// How far the shadow's result is off; the shadow then gets the right one. `terms`: of the sum
  /// that an element is.
  void learn_scale(ValueId value, const TensorView& wanted, const TensorView& blurred,
                   double terms);

  /// `shards`: every rank's shard in `sharding` of a value that should be `wanted`; they get it.
  /// Throws Stopped at the first mismatch.
  void compare(ValueId value, const Sharding& sharding, const std::vector<TensorView>& shards,
               const TensorView& wanted, const std::string& where);
  /// The same where the ranks hold these boxes.
  void compare(ValueId value, const Sharding& sharding, const std::vector<Box>& boxes,
               const std::vector<TensorView>& shards, const TensorView& wanted,
               const std::string& where);

  void count_fused(int64_t nodes) { result_.fused += nodes; }
  Replay result() const;

 private:
  /// How much one value may differ.
  struct Scale {
    double scale = 0, tolerance = 0;
    double allowed() const { return scale * tolerance; }
  };

  double tolerance_;
  const ReplayAct* act_ = nullptr;
  bool training_ = true;
  std::map<ValueId, Scale> scales_;
  std::set<std::pair<bool, std::string>> values_;  // that were compared: validation?, the name
  Replay result_;
};

}  // namespace shardrun
