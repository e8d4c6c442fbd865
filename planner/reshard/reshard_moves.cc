// The moves of a state, and their costs.
#include "planner/reshard/reshard_moves.h"

#include <algorithm>
#include <array>

namespace shardrun {
namespace {

using Kind = Collective::Kind;

/// Every non-empty subset of `from`, in its order.
template <class F>
void subsets(const Axes& from, const F& f) {
  for (uint32_t mask = 1; mask < (1u << from.size()); ++mask) {
    Axes list;
    for (size_t i = 0; i < from.size(); ++i) {
      if (mask >> i & 1) list.push_back(from[i]);
    }
    f(list);
  }
}

/// Every ordered choice of one to `longest` of `from`.
template <class F>
void sequences(const Axes& from, size_t longest, Axes& chosen, const F& f) {
  if (!chosen.empty()) f(chosen);
  if (chosen.size() == longest) return;
  for (int axis : from) {
    if (chosen.contains(axis)) continue;
    chosen.push_back(axis);
    sequences(from, longest, chosen, f);
    chosen.cut_to(chosen.size() - 1);
  }
}

class MoveList {
 public:
  MoveList(const ReshardState& state, size_t axes, size_t dims, const ReshardState* goal,
           std::vector<ReshardMove>& moves)
      : state_(state), goal_(goal), dims_(dims), cuts_(state.cuts(axes)), moves_(moves) {
    if (goal != nullptr) goal_cuts_ = goal->cuts(axes);
    longest_ = axes <= 3 ? 3 : axes == 4 ? 2 : 1;
    for (size_t axis = 0; axis < axes; ++axis) {
      if (state.is_free(axis)) free_.push_back(static_cast<int>(axis));
      if (const std::optional<ReduceOp> op = state.op_of(axis))
        partial_[static_cast<size_t>(*op)].push_back(static_cast<int>(axis));
    }
  }

  void run() {
    for (size_t o = 0; o < partial_.size(); ++o) reduce(static_cast<ReduceOp>(o));
    for (size_t d = 0; d < dims_; ++d) {
      gather(d);
      append(Kind::slice, free_, d, ReduceOp::sum);
    }
    Axes chosen;
    gather_several(0, 0, 0, chosen);
    for (size_t o = 0; o < partial_.size(); ++o) make_partial(static_cast<ReduceOp>(o));
  }

 private:
  ReshardState without(const Axes& list) const {
    ReshardState after = state_;
    for (int axis : list) after.set_free(axis);
    return after;
  }
  ReshardState appended(const Axes& list, size_t dim) const {
    ReshardState after = state_;
    after.append(list, dim, cuts_[dim].size());
    return after;
  }

  void append(Kind kind, const Axes& from, size_t dim, ReduceOp op) {
    const auto add = [&](const Axes& list) {
      moves_.push_back({kind, list, dim, 0, op, appended(list, dim)});
    };
    Axes chosen;
    sequences(from, longest_, chosen, add);
    if (goal_ == nullptr) return;
    const Axes &cuts = cuts_[dim], &wanted = goal_cuts_[dim];
    if (wanted.size() <= cuts.size() + longest_ ||
        !std::equal(cuts.begin(), cuts.end(), wanted.begin()))
      return;
    const Axes rest = wanted.from(cuts.size());
    const auto available = [&](int axis) { return from.contains(axis); };
    if (std::all_of(rest.begin(), rest.end(), available)) add(rest);
  }

  void reduce(ReduceOp op) {
    const Axes& partial = partial_[static_cast<size_t>(op)];
    for (size_t d = 0; d < dims_; ++d) append(Kind::reduce_scatter, partial, d, op);
    subsets(partial, [&](const Axes& list) {
      moves_.push_back({Kind::all_reduce, list, 0, 0, op, without(list)});
    });
  }

  void gather(size_t dim) {
    const Axes& cuts = cuts_[dim];
    for (size_t k = 1; k <= cuts.size(); ++k) {
      const Axes list = cuts.from(cuts.size() - k);
      moves_.push_back({Kind::all_gather, list, dim, 0, ReduceOp::sum, without(list)});
      for (size_t to = 0; to < dims_; ++to) {
        if (to != dim)
          moves_.push_back({Kind::all_to_all, list, dim, to, ReduceOp::sum, appended(list, to)});
      }
    }
  }

  /// Of two dims and more the innermost cuts at once: `chosen` are those of `dims` dims before
  /// `dim`, the last of which is `last`.
  void gather_several(size_t dim, size_t dims, size_t last, Axes& chosen) {
    if (dim == dims_) {
      if (dims > 1)
        moves_.push_back({Kind::all_gather, chosen, last, 0, ReduceOp::sum, without(chosen)});
      return;
    }
    gather_several(dim + 1, dims, last, chosen);
    const Axes& cuts = cuts_[dim];
    const size_t before = chosen.size();
    for (size_t k = 1; k <= cuts.size() && before + k <= std::max<size_t>(longest_, 2); ++k) {
      chosen.append(cuts.from(cuts.size() - k));
      gather_several(dim + 1, dims + 1, dim, chosen);
      chosen.cut_to(before);
    }
  }

  void make_partial(ReduceOp op) {
    Axes wanted;
    for (int axis : free_) {
      if (goal_ == nullptr ? op == ReduceOp::sum : goal_->op_of(axis) == op) wanted.push_back(axis);
    }
    // Reductions with different ops do not commute: the other op's axes are reduced first.
    for (size_t o = 0; o < partial_.size(); ++o) {
      if (o != static_cast<size_t>(op) && !partial_[o].empty()) return;
    }
    subsets(wanted, [&](const Axes& list) {
      ReshardState after = state_;
      for (int axis : list) after.set_partial(axis, op);
      moves_.push_back({Kind::keep_first, list, 0, 0, op, after});
    });
  }

  const ReshardState& state_;
  const ReshardState* goal_;
  size_t dims_;
  ReshardState::Cuts cuts_, goal_cuts_;
  Axes free_;
  std::array<Axes, std::size(kReduceOps)> partial_;  // by ReduceOp
  size_t longest_ = 0;
  std::vector<ReshardMove>& moves_;
};

}  // namespace

void ReshardState::append(const Axes& axes, size_t dim, size_t position) {
  for (int axis : axes) set_cut(axis, dim, position++);
}

std::optional<size_t> ReshardState::dim_of(size_t axis) const {
  const size_t at = where(axis);
  return at == 0 || at >= kPartial ? std::nullopt : std::optional(at - 1);
}

std::optional<ReduceOp> ReshardState::op_of(size_t axis) const {
  const size_t at = where(axis);
  return at < kPartial ? std::nullopt : std::optional(static_cast<ReduceOp>(at - kPartial));
}

bool ReshardState::has_partial() const {
  for (size_t axis = 0; axis < kMostAxes; ++axis) {
    if (where(axis) >= kPartial) return true;
  }
  return false;
}

ReshardState::Cuts ReshardState::cuts(size_t axes) const {
  Cuts cuts;
  for (size_t axis = 0; axis < axes; ++axis) {
    const std::optional<size_t> dim = dim_of(axis);
    if (!dim) continue;
    const size_t position = key_ >> (8 * axis) & 15;
    cuts[*dim].put(position, static_cast<int>(axis));
  }
  return cuts;
}

void reshard_moves(const ReshardState& state, size_t axes, size_t dims, const ReshardState* goal,
                   std::vector<ReshardMove>& moves) {
  MoveList(state, axes, dims, goal, moves).run();
}

ReshardCosts::ReshardCosts(std::vector<int64_t> extents, DType dtype, std::vector<int> axes,
                           const Mesh& mesh, const Cluster& cluster)
    : extents_(std::move(extents)),
      element_bytes_(static_cast<double>(size_of(dtype))),
      axes_(std::move(axes)),
      mesh_(mesh),
      cluster_(cluster),
      wires_(size_t{1} << axes_.size()) {}

/// Cuts round up, and so in any order to the same extent.
LargestShard ReshardCosts::shard(const ReshardState& state) const {
  std::array<int64_t, ReshardState::kMostDims> local;
  std::copy(extents_.begin(), extents_.end(), local.begin());
  for (size_t axis = 0; axis < axes_.size(); ++axis) {
    if (const std::optional<size_t> dim = state.dim_of(axis))
      local[*dim] = shard_range(local[*dim], mesh_.axis_size(axes_[axis]), 0).size;
  }
  LargestShard shard{element_bytes_, 0};
  for (size_t d = 0; d < extents_.size(); ++d) {
    shard.bytes *= static_cast<double>(local[d]);
    if (local[d] <= 1) shard.single |= 1u << d;
  }
  return shard;
}

const Wire& ReshardCosts::wire(const Axes& axes) {
  uint32_t set = 0;
  for (int axis : axes) set |= 1u << axis;
  std::optional<Wire>& wire = wires_[set];
  if (!wire) {
    std::vector<int> of_mesh;
    for (int axis : axes) of_mesh.push_back(axes_[axis]);
    wire = wire_of(of_mesh, mesh_, cluster_);
  }
  return *wire;
}

double ReshardCosts::seconds(const ReshardMove& move, const LargestShard& before,
                             const LargestShard& after, double call) {
  // In front of the last dim that is gathered, others may have come together.
  const LargestShard& lies = move.kind == Kind::all_gather ? after : before;
  const double packed = packed_bytes(move.kind, before.bytes, after.bytes,
                                     lies.is_outermost(move.dim), before.is_outermost(move.to_dim));
  return collective_seconds(move.kind, {before.bytes, after.bytes, packed, call}, wire(move.axes),
                            cluster_);
}

}  // namespace shardrun
