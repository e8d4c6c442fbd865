// Window candidates: from dependence to candidates.
#include "planner/rules/window_candidates.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/at.h"
#include "planner/rules/dependence.h"

namespace shardrun {
namespace {

using Candidate = Trials::Candidate;

/// More are those of a split into many, which has no windows: each row goes to one result.
constexpr size_t kMostResultDims = 64;

class WindowCandidates {
 public:
  WindowCandidates(Trials& trials, const std::vector<SpmdRule::Option>& found,
                   const std::function<bool(const Candidate&)>& attempt)
      : trials_(trials), found_(found), attempt_(attempt) {
    const SmallNode& small = trials.first();
    for (size_t i = 0; i < small.in.size(); ++i) {
      for (size_t d = 0; d < small.in[i].shape.size(); ++d) {
        const NodeDim dim{false, static_cast<int>(i), static_cast<int>(d)};
        operand_dims_.push_back(dim);
        if (small.in[i].shape[d] > 1 && !is_cut(dim, found)) open_.push_back(dim);
      }
    }
    for (size_t r = 0; r < small.out.size(); ++r) {
      for (size_t d = 0; d < small.out[r].shape.size(); ++d)
        result_dims_.push_back({true, static_cast<int>(r), static_cast<int>(d)});
    }
  }

  void run() {
    if (open_.empty() || result_dims_.size() > kMostResultDims) return;
    thin_.emplace(trials_.thinned(found_, open_));
    dependence_.emplace(*thin_);
    for (const NodeDim& result : result_dims_) {
      const bool some = std::any_of(open_.begin(), open_.end(), [&](const NodeDim& operand) {
        return dependence_->touches_some(operand, result);
      });
      if (!some) continue;
      windows_of_result(result);
      blocks(result);
    }
    for (const NodeDim& operand : open_) windows_of_operand(operand);
  }

 private:
  /// Does an option cut the dim together with a result? Where local attributes make pieces of any
  /// size fit, cutting operands to sum whole results is always possible and shows nothing.
  bool is_cut(const NodeDim& dim, const std::vector<SpmdRule::Option>& found) const {
    return std::any_of(found.begin(), found.end(), [&](const SpmdRule::Option& option) {
      if (option.in[at(dim.index)] != Placement::shard(dim.dim)) return false;
      return trials_.def().localise == nullptr ||
             std::any_of(option.out.begin(), option.out.end(),
                         [](const Placement& p) { return p.kind == Placement::Kind::shard; });
    });
  }

  bool same_extent(const NodeDim& a, const NodeDim& b) const {
    for (size_t t = 0; t < trials_.count(); ++t) {
      if (extent(t, a) != extent(t, b)) return false;
    }
    return true;
  }
  int64_t extent(size_t trial, const NodeDim& dim) const {
    const SmallNode& small = trials_.small(trial);
    return (dim.result ? small.out : small.in)[at(dim.index)].shape[at(dim.dim)];
  }

  /// The placement of `dim` in the window, shards where the window is the row itself.
  Placement placement(const NodeDim& dim, const NodeDim& anchor, const HaloWindow& window) const {
    if (window == HaloWindow{} && same_extent(dim, anchor)) return Placement::shard(dim.dim);
    return Placement::windows(dim.dim, window);
  }

  bool try_once(Candidate candidate) {
    if (!tried_.insert({candidate.in, candidate.out}).second) return false;
    return !is_known(candidate) && attempt_(candidate);
  }

  /// Plain cuts may be known, but need not: an image may be cut with its whole result summed up,
  /// and that is as far as the plain search looks.
  bool is_known(const Candidate& candidate) const {
    return std::any_of(found_.begin(), found_.end(), [&](const SpmdRule::Option& option) {
      if (option.in != candidate.in) return false;
      for (size_t r = 0; r < option.out.size(); ++r) {
        const bool cut = candidate.out[r].kind == Placement::Kind::shard;
        if (cut ? option.out[r] != candidate.out[r] : option.out[r].kind == Placement::Kind::shard)
          return false;
      }
      return true;
    });
  }

  /// For each operand the dims that have a window of the result's dim; one candidate for each way
  /// to choose among them. Other results of the same size are cut with it.
  void windows_of_result(const NodeDim& result) {
    const SmallNode& small = trials_.first();
    std::vector<Candidate> candidates{
        {std::vector<Placement>(small.in.size()), std::vector<Placement>(small.out.size())}};
    candidates[0].out[at(result.index)] = Placement::shard(result.dim);
    for (const NodeDim& other : result_dims_) {
      if (other.index != result.index && other.dim == result.dim && same_extent(other, result))
        candidates[0].out[at(other.index)] = Placement::shard(other.dim);
    }
    std::vector<std::vector<Placement>> ways(small.in.size());
    for (const NodeDim& operand : open_) {
      if (!dependence_->touches_some(operand, result)) continue;
      const auto window = fit_window(dependence_->influence(operand, result));
      if (window) ways[at(operand.index)].push_back(placement(operand, result, *window));
    }
    extend_operands(candidates, ways);
    for (Candidate& candidate : candidates) try_once(std::move(candidate));
  }

  /// The operand is cut in shards; other operands are read in windows of them, and results made in
  /// windows or summed.
  void windows_of_operand(const NodeDim& anchor) {
    const SmallNode& small = trials_.first();
    std::vector<Candidate> candidates{
        {std::vector<Placement>(small.in.size()), std::vector<Placement>(small.out.size())}};
    bool any = false;
    for (size_t r = 0; r < small.out.size(); ++r) {
      std::vector<Placement> ways;
      for (const NodeDim& result : result_dims_) {
        if (at(result.index) != r || !dependence_->touches_some(anchor, result)) continue;
        std::vector<Relation> relations;
        for (const Relation& relation : dependence_->influence(anchor, result))
          relations.push_back(relation.transposed());
        if (const auto window = fit_window(relations))
          ways.push_back(placement(result, anchor, *window));
      }
      any = any || !ways.empty();
      extend(candidates, ways, r, true);
    }
    std::vector<std::vector<Placement>> ways(small.in.size());
    for (const NodeDim& operand : open_) {
      if (operand.index == anchor.index) continue;
      const std::vector<Relation> relations = dependence_->interaction(operand, anchor);
      if (relations.empty() || relations[0].is_empty() || relations[0].is_full()) continue;
      any = true;
      if (const auto window = fit_window(relations))
        ways[at(operand.index)].push_back(placement(operand, anchor, *window));
    }
    if (!any) return;
    ways[at(anchor.index)] = {Placement::shard(anchor.dim)};
    extend_operands(candidates, ways);
    for (Candidate& candidate : candidates) try_once(std::move(candidate));
  }

  /// An operand that shows no dependence may still have to go with one of its shape: the places of
  /// maxima, where windows are of one row, are all 0 and change nothing.
  void extend_operands(std::vector<Candidate>& candidates,
                       const std::vector<std::vector<Placement>>& ways) const {
    for (size_t i = 0; i < ways.size(); ++i) {
      std::vector<Placement> own = ways[i];
      for (size_t j = 0; j < ways.size() && ways[i].empty(); ++j) {
        if (!ways[j].empty() && same_shape(i, j))
          own.insert(own.end(), ways[j].begin(), ways[j].end());
      }
      if (!own.empty() && ways[i].empty()) own.insert(own.begin(), Placement{});
      extend(candidates, own, i, false);
    }
  }
  bool same_shape(size_t i, size_t j) const {
    for (size_t t = 0; t < trials_.count(); ++t) {
      if (trials_.small(t).in[i].shape != trials_.small(t).in[j].shape) return false;
    }
    return true;
  }

  static void extend(std::vector<Candidate>& candidates, const std::vector<Placement>& ways,
                     size_t index, bool result) {
    constexpr size_t kMost = 16;
    if (ways.empty()) return;
    std::vector<Candidate> longer;
    for (const Candidate& candidate : candidates) {
      for (const Placement& way : ways) {
        if (longer.size() == kMost) break;
        longer.push_back(candidate);
        (result ? longer.back().out : longer.back().in)[index] = way;
      }
    }
    candidates = std::move(longer);
  }

  /// Is every row of the result's dim one row of one operand, and do they come in whole runs, each
  /// of all the rows of an operand in order? [a0 a1 a2 b0 b1] are two blocks.
  void blocks(const NodeDim& result) {
    const SmallNode& small = trials_.first();
    std::vector<Relation> relations;
    std::vector<NodeDim> operands;
    for (const NodeDim& operand : operand_dims_) {
      if (operand.dim != result.dim) continue;
      operands.push_back(operand);
      relations.push_back(dependence_->influence(0, operand, result));
    }
    if (relations.empty()) return;
    std::vector<int> sequence;
    int64_t row = 0;
    for (int64_t t = 0; t < relations[0].to(); ++t) {
      int source = -1, sources = 0;
      for (size_t k = 0; k < relations.size(); ++k) {
        for (int64_t f = 0; f < relations[k].from(); ++f) {
          if (!relations[k].at(f, t)) continue;
          ++sources;
          if (f == (row == 0 || at(sequence.back()) != k ? 0 : row)) source = static_cast<int>(k);
        }
      }
      if (sources != 1 || source < 0) return;
      if (row == 0) sequence.push_back(source);
      if (sequence.back() != source) return;
      row = row + 1 == relations[at(source)].from() ? 0 : row + 1;
    }
    if (row != 0 || sequence.size() < 2) return;
    Candidate candidate{std::vector<Placement>(small.in.size()),
                        std::vector<Placement>(small.out.size())};
    std::vector<int> of;
    for (int k : sequence) {
      of.push_back(operands[at(k)].index);
      candidate.in[at(of.back())] = Placement::shard(result.dim);
    }
    candidate.out[at(result.index)] = Placement::in_blocks(result.dim, std::move(of));
    try_once(std::move(candidate));
  }

  Trials& trials_;
  const std::vector<SpmdRule::Option> found_;
  const std::function<bool(const Candidate&)>& attempt_;
  std::optional<Trials> thin_;
  std::optional<Dependence> dependence_;  // in thin_
  std::vector<NodeDim> operand_dims_, result_dims_;
  std::vector<NodeDim> open_;  // operand dims that no plain option cuts
  std::set<std::pair<std::vector<Placement>, std::vector<Placement>>> tried_;
};

}  // namespace

void try_windows(Trials& trials, const std::vector<SpmdRule::Option>& found,
                 const std::function<bool(const Candidate&)>& attempt) {
  WindowCandidates(trials, found, attempt).run();
}

}  // namespace shardrun
