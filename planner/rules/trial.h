// Trial: one small instance of a node with data and results, on which ShardCombine tries
// candidates.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/kernel.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// A node with small operands.
struct SmallNode {
  Node node;
  std::vector<TensorType> in, out;
};

/// The node on small operands, one per size set whose shapes the op accepts: equal sizes become
/// equal small sizes, different ones different ones, 1 stays 1. If `as_f64`, every floating type
/// becomes f64. Where the op refuses small sizes (two moments, three coordinates) dims up to 4 keep
/// theirs; where it still does, dims up to 16; else all do (if affordable). Of a user's op, whose
/// shape rule may want an even size or the one that an attribute names, each size shrinks for
/// itself as far as the rule accepts.
std::vector<SmallNode> small_nodes(const Node& node, std::span<const TensorType> in,
                                   const std::vector<int>& size_sets, bool as_f64);

/// Does a run take so long that its trials are made of as little as can be?
bool is_long_run(const OpDef& def, const SmallNode& small);

/// Random operands for a node; no zeros among floats and plain integers. Indices are below
/// index_bound. The same arguments give the same data.
std::vector<Tensor> random_operands(const Node& node, std::span<const TensorType> in,
                                    Evidence::Data kind, uint64_t seed);

/// Random `parts` tensors that reduce to `whole`. sum: of one sign where `kind` is; max: every
/// element is right in one part and less in the others; prod: powers of two but for one part, of
/// integers ones.
std::vector<Tensor> split_value(const Tensor& whole, ReduceOp op, int64_t parts,
                                Evidence::Data kind, uint64_t seed);

/// The elements of `box`.
Tensor cut_tensor(const Tensor& whole, const Box& box);

/// Are they equal to `tolerance` relative (|b| or `scale`'s element, if given, is what it is
/// relative to)? NaN and infinities must match. Integers and booleans must be equal. Types must be.
bool same_values(const Tensor& a, const Tensor& b, double tolerance, const Tensor* scale = nullptr);

/// Element by element, in f64 for floats. NaN stays NaN for max and min too. `parts` is not empty.
Tensor reduce_tensors(std::span<const Tensor> parts, ReduceOp op);

/// What ShardCombine asks of an op: does this candidate combine? Counts the kernel runs.
class Trials {
 public:
  /// Runs the whole small nodes on all data. No trials are left if the reference kernel cannot run.
  Trials(const Node& node, std::span<const TensorType> in, const Evidence& evidence);

  /// The same trials, made of less: of all dims that an option cuts plainly, with results that are
  /// cut or summed, the first two rows. How the other dims go together does not depend on those.
  /// `keep`: dims that stay whole. A trial that the op does not take so stays as it is. Runs of
  /// either count for both.
  Trials thinned(const std::vector<SpmdRule::Option>& options,
                 const std::vector<NodeDim>& keep) const;

  struct Candidate {
    std::vector<Placement> in;
    /// Per result how it is meant to lie: shards, windows, blocks, or replicate for a whole one,
    /// whose way to combine is to be found. The local attributes are made for it, and local shapes
    /// must be those. Empty: as the shape rule has it (ops without localise).
    std::vector<Placement> out;
  };

  bool empty() const { return trials_.empty(); }
  size_t count() const { return trials_.size(); }
  const SmallNode& small(size_t trial) const { return trials_[trial].small; }
  const SmallNode& first() const { return trials_[0].small; }
  const OpDef& def() const { return def_; }
  int kernel_runs() const { return *kernel_runs_; }
  bool can_cut(int64_t size) const { return !shard_counts(size).empty(); }

  /// Do the local attributes depend on where the results lie (expand, slice), not on the operands
  /// alone?
  bool results_steer_localise() const;

  /// The dim along which each result is cut under the candidate's local shapes (-1: whole), or
  /// nullopt where shapes do not fit. Runs no kernel.
  std::optional<std::vector<int>> implied_cuts(const Candidate& candidate) const;

  /// Do the shards of a candidate with windows or blocks fit the node as it is, too? Attributes
  /// that shrinking has changed must be sizes of operands or results, in every trial, because
  /// windows found with another padding or offset would be others; and the shape rule must accept
  /// the shards of the node's own operands. Runs no kernel.
  bool fits_node(const Candidate& candidate) const;

  /// How every result combines, if it does in every trial; else nullopt.
  std::optional<std::vector<Placement>> combine(const Candidate& candidate);

  /// Operands of a trial on the data of its `data`th kind, and the whole node's results on them.
  const std::vector<Tensor>& operands(size_t trial, size_t data) const {
    return trials_[trial].operands[data];
  }
  const std::vector<Tensor>& results(size_t trial, size_t data) const {
    return trials_[trial].results[data];
  }
  /// Other operands of the same kind.
  std::vector<Tensor> other_operands(size_t trial, size_t data) const;
  /// The whole node on these operands.
  std::vector<Tensor> run_whole(size_t trial, std::span<const Tensor> operands);

 private:
  struct Trial {
    SmallNode small;
    std::shared_ptr<PreparedKernel> kernel;  // of the whole node
    std::vector<Evidence::Data> kinds;
    std::vector<std::vector<Tensor>> operands;  // per kind
    std::vector<std::vector<Tensor>> results;
  };
  struct Shard {
    NodeBoxes boxes;
    Node node;
    std::vector<TensorType> in_types, out_types;
    std::vector<int> cut;  // per result
    std::shared_ptr<PreparedKernel> kernel;
  };
  std::vector<int64_t> shard_counts(int64_t size) const;
  /// Into how many parts the candidate is tried; none if its dims do not go together.
  std::vector<int64_t> part_counts(const SmallNode& small, const Candidate& candidate) const;
  /// Does the shape rule take the first shards of the operands? Asked before anything else is made
  /// of a candidate, since most are refused here.
  bool shapes_fit(const SmallNode& small, const Candidate& candidate, int64_t parts) const;
  /// On how many kinds of the trial's data a candidate is tried in so many parts: on all in the
  /// counts that every op has, on the first two in those that show what depends on places.
  size_t kinds_for(const Trial& trial, const std::vector<int64_t>& counts, int64_t parts) const;
  std::optional<std::vector<Shard>> shards(const SmallNode& small, const Candidate& candidate,
                                           int64_t parts) const;
  bool are_sizes(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
                 const SmallNode& small) const;
  bool indices_in_bounds(const Shard& shard, std::span<const Tensor> operands) const;
  PreparedKernel prepare(const Node& node, std::span<const TensorType> in,
                         std::span<const TensorType> out) const;
  std::vector<Tensor> run(const PreparedKernel& kernel, std::span<const Tensor> in,
                          std::span<const TensorType> out);
  /// split_value, remembered: many candidates split the same operand.
  const std::vector<Tensor>& summands(size_t trial, size_t data, size_t operand, ReduceOp op,
                                      int64_t parts);
  bool add_trial(const SmallNode& small);
  /// Drops from `ways` (per result, a bit per combine function) what these results refute.
  bool refute(const Trial& trial, size_t data, const Candidate& candidate,
              const std::vector<Shard>& shards, const std::vector<std::vector<Tensor>>& local,
              std::vector<unsigned>& ways) const;

  Evidence evidence_;
  SmallNode whole_;  // the node as it is
  const OpDef& def_;
  KernelList kernels_;  // the op's reference kernel alone
  std::vector<Trial> trials_;
  std::map<std::tuple<size_t, size_t, size_t, ReduceOp, int64_t>, std::vector<Tensor>> summands_;
  Tensor workspace_;
  std::vector<TensorView> in_views_, out_views_;  // of the last runs
  std::shared_ptr<int> kernel_runs_ = std::make_shared<int>(0);
};

}  // namespace shardrun
