// Dependence: which rows of one dim of an op go with which rows of another, found by changing data.
//
// Nothing here knows what an op does. A row of an operand is replaced by other numbers, the
// reference kernel runs again, and the rows of the results that have changed depend on it: that
// tells the halo of a convolution, its stride, padding and dilation together (papers: MetaDist,
// appendix A.3.1, where it is guessed from the rows that come out wrong).
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "planner/rules/trial.h"

namespace shardrun {

/// Which of `from` rows go with which of `to` rows.
class Relation {
 public:
  Relation(int64_t from, int64_t to)
      : from_(from), to_(to), bits_(static_cast<size_t>(from * to), false) {}
  int64_t from() const { return from_; }
  int64_t to() const { return to_; }
  bool at(int64_t f, int64_t t) const { return bits_[static_cast<size_t>(t * from_ + f)]; }
  void set(int64_t f, int64_t t) { bits_[static_cast<size_t>(t * from_ + f)] = true; }
  Relation transposed() const;
  bool is_full() const;   // everything goes with everything
  bool is_empty() const;  // nothing with anything

 private:
  int64_t from_, to_;
  std::vector<bool> bits_;
};

/// The narrowest window of `from` rows that holds what every `to` row goes with, in all the
/// relations (of one pair of dims at several sizes), or nullopt if there is none, or several
/// strides would do. Strides up to 32 or 1/32. Rows that go with the most rows, at least two, are
/// not clipped: their windows must be exact. Of all others, those at the ends of an image among
/// them, the windows must hold what they go with.
std::optional<HaloWindow> fit_window(std::span<const Relation> relations);

class Dependence {
 public:
  static constexpr size_t kKinds = 2;  // of data that are looked at: mixed and negative

  explicit Dependence(Trials& trials) : trials_(trials) {}

  /// Rows of an operand's dim and the rows of a result's dim that they change, in every trial.
  std::vector<Relation> influence(const NodeDim& operand, const NodeDim& result);
  /// The same in one trial.
  Relation influence(size_t trial, const NodeDim& operand, const NodeDim& result);
  /// Does the first or last row of the operand's dim that changes anything change some rows of the
  /// result's dim and leave others, in any trial? A few runs, to save all the others where there is
  /// nothing to find.
  bool touches_some(const NodeDim& operand, const NodeDim& result);

  /// Rows of two operands' dims whose effects do not simply add up (they meet in a product or a
  /// maximum), in every trial. Empty if a few runs show that all meet all, or none any.
  std::vector<Relation> interaction(const NodeDim& a, const NodeDim& b);

 private:
  using Results = std::vector<Tensor>;
  int64_t extent(size_t trial, const NodeDim& dim) const;
  const std::vector<Tensor>& others(size_t trial, size_t data);
  std::vector<Tensor> with_row(size_t trial, size_t data, std::vector<Tensor> operands,
                               const NodeDim& dim, int64_t row);
  Results run_changed(size_t trial, size_t data, const NodeDim& dim, int64_t row);
  /// The results with one row of one operand replaced, on the data by which it is judged what
  /// meets.
  const Results& changed(size_t trial, const NodeDim& dim, int64_t row);
  /// For each result and each of its dims, the rows that change if the row is replaced.
  using Touched = std::vector<std::vector<std::vector<bool>>>;
  const Touched& touched(size_t trial, const NodeDim& dim, int64_t row);
  /// The results with one operand replaced as a whole.
  const Results& replaced(size_t trial, size_t operand);
  /// Results of several changes together are what the changes of each alone add up to.
  bool add_up(size_t trial, const Results& together, std::span<const Results* const> alone) const;
  bool meet(size_t trial, const NodeDim& a, int64_t row_a, const NodeDim& b, int64_t row_b);
  bool meet(size_t trial, size_t a, size_t b);  // the operands as a whole
  std::vector<Relation> find_interaction(const NodeDim& a, const NodeDim& b);
  /// Do any operands, all replaced? Saves asking each pair of many that are put side by side.
  bool some_meet(size_t trial);

  static constexpr size_t kMeeting = 0;  // the data by which it is judged what meets
  static constexpr size_t kFew = 4;      // operands whose pairs are asked at once

  Trials& trials_;
  std::map<std::pair<size_t, size_t>, std::vector<Tensor>> others_;
  std::map<std::tuple<size_t, NodeDim, int64_t>, Results> changed_;
  std::map<std::tuple<size_t, NodeDim, int64_t>, Touched> touched_;
  std::map<std::pair<size_t, size_t>, Results> replaced_;
  std::map<std::tuple<size_t, size_t, size_t>, bool> meet_;
  std::map<size_t, bool> some_meet_;
  std::map<std::pair<NodeDim, NodeDim>, std::vector<Relation>> interactions_;
};

}  // namespace shardrun
