// ReshardState and its moves: where the mesh axes of a value stand, and the collectives that move
// them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "graph/program.h"
#include "graph/sharding.h"
#include "planner/cost/collective_cost.h"

namespace shardrun {

/// For each of a few axes, by their numbers here and not the mesh's, where it stands: free
/// (replicated), at a position among the cuts of a dim, or partial with an op. A byte each: [{a,b},
/// -] partial(sum: c) is 0x10 0x11 0xc0.
class ReshardState {
 public:
  static constexpr size_t kMostAxes = 8;
  static constexpr size_t kMostDims = 11;
  using Cuts = std::array<Axes, kMostDims>;  // per dim

  void set_free(size_t axis) { set(axis, 0); }
  void set_cut(size_t axis, size_t dim, size_t position) { set(axis, (dim + 1) << 4 | position); }
  void set_partial(size_t axis, ReduceOp op) { set(axis, (kPartial + static_cast<int>(op)) << 4); }
  /// Appends to the cuts of `dim`, of which there are `position`.
  void append(const Axes& axes, size_t dim, size_t position);

  bool is_free(size_t axis) const { return where(axis) == 0; }
  bool cuts_dim(size_t axis, size_t dim) const { return where(axis) == dim + 1; }
  std::optional<size_t> dim_of(size_t axis) const;
  std::optional<ReduceOp> op_of(size_t axis) const;
  bool has_partial() const;
  /// Per dim the axes that cut it, outermost first.
  Cuts cuts(size_t axes) const;

  uint64_t key() const { return key_; }
  friend bool operator==(ReshardState, ReshardState) = default;

 private:
  static constexpr size_t kPartial = kMostDims + 1;  // + ReduceOp
  size_t where(size_t axis) const { return key_ >> (8 * axis + 4) & 15; }
  void set(size_t axis, size_t byte) {
    key_ = (key_ & ~(uint64_t{0xff} << (8 * axis))) | uint64_t{byte} << (8 * axis);
  }

  uint64_t key_ = 0;
};

/// One collective: over which axes, in the order of its group, and what it leaves. `dim`: of an
/// all_gather of several dims at once the last of them.
struct ReshardMove {
  Collective::Kind kind = Collective::Kind::all_gather;
  Axes axes;
  size_t dim = 0, to_dim = 0;
  ReduceOp op = ReduceOp::sum;
  ReshardState after;
};

/// All moves from `state` over up to three axes at once (two of four axes, one of more) or, if
/// `goal` is given, over the whole rest that it wants in a dim. A value becomes partial only as the
/// goal is. Without a goal: as any state with sums. They are appended to `moves`.
void reshard_moves(const ReshardState& state, size_t axes, size_t dims, const ReshardState* goal,
                   std::vector<ReshardMove>& moves);

/// The largest shard of a value.
struct LargestShard {
  double bytes = 0;
  unsigned single = 0;  // bit d: dim d has at most one element
  /// Bit d: every dim before d has at most one element.
  unsigned outermost() const { return single ^ (single + 1); }
  bool is_outermost(size_t dim) const { return (outermost() >> dim & 1) != 0; }
};

/// Prices moves of one value. `mesh` and `cluster` must outlive this.
class ReshardCosts {
 public:
  /// `extents`: of the value where all of `axes` (of the mesh) are free.
  ReshardCosts(std::vector<int64_t> extents, DType dtype, std::vector<int> axes, const Mesh& mesh,
               const Cluster& cluster);
  LargestShard shard(const ReshardState& state) const;
  /// `call`: as MovedBytes has it.
  double seconds(const ReshardMove& move, const LargestShard& before, const LargestShard& after,
                 double call = 0);

 private:
  const Wire& wire(const Axes& axes);

  std::vector<int64_t> extents_;
  double element_bytes_;
  std::vector<int> axes_;
  const Mesh& mesh_;
  const Cluster& cluster_;
  std::vector<std::optional<Wire>> wires_;  // by set of axes
};

}  // namespace shardrun
