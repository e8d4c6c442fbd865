// Resharding: Dijkstra over the Shardings of one value.
//
// A state says for each mesh axis that may move where it stands: free (replicated), at a position
// among the cuts of a dim, or partial with an op. A first, small search moves only the axes that
// have to: not those in the common prefix of a dim's cuts, nor those free or partial with one op on
// both sides. From [{a,b}, -] to [{b}, -] both a and b move; from [{a,b}, -] to [{a}, {b}] only b.
//
// Detours over the other axes can still be cheaper: to sum a value over a that all ranks along b
// hold, slice it along b, sum the slices, and gather them. A second search moves every axis, but
// looks only at what costs less than the first one's answer, so it is over at once where that is
// cheap.
#include "planner/reshard/reshard.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <unordered_map>

#include "planner/reshard/reshard_moves.h"

namespace shardrun {
namespace {

using Kind = Collective::Kind;

constexpr size_t kMaxDetourAxes = 3;

class CheapestReshard {
 public:
  /// `bound`: sequences must cost less. `every_axis`: move axes that do not have to.
  CheapestReshard(const TensorType& type, const Sharding& from, const Sharding& to,
                  const Mesh& mesh, const Cluster& cluster, bool every_axis, double bound)
      : bound_(bound) {
    const size_t rank = type.shape.size();
    std::vector<bool> moves(static_cast<size_t>(mesh.axis_count()), every_axis);
    std::vector<int64_t> extents;
    for (size_t d = 0; d < rank; ++d) {
      const auto &a = from.dims[d], &b = to.dims[d];
      size_t common = 0;
      while (!every_axis && common < a.size() && common < b.size() && a[common] == b[common])
        ++common;
      extents.push_back(type.shape[d]);
      for (size_t i = 0; i < common; ++i)
        extents[d] = shard_range(extents[d], mesh.axis_size(a[i]), 0).size;
      kept_.emplace_back();
      for (size_t i = 0; i < common; ++i) kept_.back().push_back(a[i]);
      for (size_t i = common; i < a.size(); ++i) moves[static_cast<size_t>(a[i])] = true;
      for (size_t i = common; i < b.size(); ++i) moves[static_cast<size_t>(b[i])] = true;
    }
    for (const auto& p : from.partial) {
      if (every_axis || std::find(to.partial.begin(), to.partial.end(), p) == to.partial.end()) {
        moves[static_cast<size_t>(p.axis)] = true;
      } else {
        kept_partial_.push_back(p);
      }
    }
    for (const auto& p : to.partial) {
      if (std::find(from.partial.begin(), from.partial.end(), p) == from.partial.end())
        moves[static_cast<size_t>(p.axis)] = true;
    }
    for (size_t axis = 0; axis < moves.size(); ++axis) {
      if (moves[axis]) axes_.push_back(static_cast<int>(axis));
    }
    if (axes_.size() > ReshardState::kMostAxes || rank > ReshardState::kMostDims) return;
    costs_.emplace(std::move(extents), type.dtype, axes_, mesh, cluster);
    start_ = encode(from);
    goal_ = encode(to);
  }

  bool searchable() const { return costs_.has_value(); }
  size_t moving_axes() const { return axes_.size(); }

  /// nullopt: nothing cheaper than the bound.
  std::optional<std::vector<ReshardStep>> run() {
    add({{}, 0}, start_, 0, 0, -1);
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      Visited& visited = visited_[static_cast<size_t>(top.visited)];
      if (visited.done) continue;
      visited.done = true;
      if (visited.state == goal_) break;
      expand(top.visited);
    }
    std::vector<ReshardStep> steps;
    const auto goal = index_.find(goal_.key());
    if (goal == index_.end()) return std::nullopt;
    for (int s = goal->second; visited_[static_cast<size_t>(s)].parent >= 0;
         s = visited_[static_cast<size_t>(s)].parent) {
      const auto& [move, seconds] = visited_[static_cast<size_t>(s)].by;
      ReshardStep step{move.kind,
                       {},
                       static_cast<int>(move.dim),
                       static_cast<int>(move.to_dim),
                       move.op,
                       decode(move.after),
                       seconds};
      for (int axis : move.axes) step.axes.push_back(axes_[axis]);
      steps.push_back(std::move(step));
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  struct Priced {
    ReshardMove move;
    double seconds = 0;
  };
  struct Visited {
    ReshardState state;
    double cost = 0;
    int steps = 0, parent = -1;
    Priced by;  // from the parent
    bool done = false;
  };
  struct Entry {
    double cost;
    int steps, visited;
    bool operator<(const Entry& other) const {  // priority_queue pops the largest
      if (cost != other.cost) return cost > other.cost;
      if (steps != other.steps) return steps > other.steps;
      return visited > other.visited;
    }
  };

  ReshardState encode(const Sharding& sharding) const {
    ReshardState state;
    for (size_t i = 0; i < axes_.size(); ++i) {
      for (size_t d = 0; d < kept_.size(); ++d) {
        const Axes& cuts = sharding.dims[d];
        for (size_t at = 0; at < cuts.size(); ++at) {
          if (cuts[at] == axes_[i]) state.set_cut(i, d, at - kept_[d].size());
        }
      }
      for (const auto& p : sharding.partial) {
        if (p.axis == axes_[i]) state.set_partial(i, p.op);
      }
    }
    return state;
  }

  Sharding decode(const ReshardState& state) const {
    Sharding out{kept_, kept_partial_};
    const ReshardState::Cuts cuts = state.cuts(axes_.size());
    for (size_t d = 0; d < kept_.size(); ++d) {
      for (int i : cuts[d]) out.dims[d].push_back(axes_[i]);
    }
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (const auto op = state.op_of(i)) out.partial.push_back({axes_[i], *op});
    }
    std::sort(out.partial.begin(), out.partial.end());
    return out;
  }

  void add(const Priced& by, const ReshardState& state, double cost, int steps, int parent) {
    const auto [it, fresh] = index_.try_emplace(state.key(), static_cast<int>(visited_.size()));
    if (fresh) {
      visited_.push_back({state, cost, steps, parent, by, false});
    } else {
      Visited& known = visited_[static_cast<size_t>(it->second)];
      if (known.done || known.cost < cost || (known.cost == cost && known.steps <= steps)) return;
      known = {state, cost, steps, parent, by, false};
    }
    if (state == goal_) bound_ = std::min(bound_, cost);
    queue_.push({cost, steps, it->second});
  }

  /// More cuts on a dim of one element only make empty shards: never on the way, only at the goal.
  bool pointless(const ReshardMove& move, const LargestShard& shard) const {
    if (move.kind != Kind::reduce_scatter && move.kind != Kind::slice &&
        move.kind != Kind::all_to_all)
      return false;
    const size_t dim = move.kind == Kind::all_to_all ? move.to_dim : move.dim;
    return (shard.single >> dim & 1) != 0 &&
           std::any_of(move.axes.begin(), move.axes.end(),
                       [&](uint8_t axis) { return !goal_.cuts_dim(axis, dim); });
  }

  void expand(int from) {
    const auto [state, before_cost, steps] = [&] {
      const Visited& visited = visited_[static_cast<size_t>(from)];
      return std::tuple(visited.state, visited.cost, visited.steps);
    }();
    const LargestShard before = costs_->shard(state);
    moves_.clear();
    reshard_moves(state, axes_.size(), kept_.size(), &goal_, moves_);
    for (const ReshardMove& move : moves_) {
      if (pointless(move, before)) continue;
      const double seconds = costs_->seconds(move, before, costs_->shard(move.after));
      const double cost = before_cost + seconds;
      if (cost <= bound_) add({move, seconds}, move.after, cost, steps + 1, from);
    }
  }

  std::vector<Axes> kept_;  // per dim: the cuts that stay
  std::vector<Sharding::Partial> kept_partial_;
  std::vector<int> axes_;              // that move
  std::optional<ReshardCosts> costs_;  // none: too many axes or dims to search
  ReshardState start_, goal_;
  double bound_;  // no state that costs more leads to a cheapest sequence
  std::vector<Visited> visited_;
  std::unordered_map<uint64_t, int> index_;  // by state
  std::priority_queue<Entry> queue_;
  std::vector<ReshardMove> moves_;  // of the state that is expanded
};

/// For more axes or dims than the search encodes: reduce and gather everything, then cut.
std::vector<ReshardStep> through_replicated(const TensorType& type, const Sharding& from,
                                            const Sharding& to, const Mesh& mesh,
                                            const Cluster& cluster) {
  std::vector<ReshardStep> steps;
  Sharding at = from;
  auto add = [&](Kind kind, std::vector<int> axes, size_t dim, ReduceOp op, Sharding after) {
    if (axes.empty()) return;
    ReshardStep step;
    step.kind = kind;
    step.dim = static_cast<int>(dim);
    step.op = op;
    step.seconds =
        collective_seconds(kind, type, at, after, step.dim, step.to_dim, axes, mesh, cluster);
    step.axes = std::move(axes);
    at = step.after = std::move(after);
    steps.push_back(std::move(step));
  };
  auto axes_of = [](const Sharding& s, ReduceOp op) {
    std::vector<int> axes;
    for (const auto& p : s.partial) {
      if (p.op == op) axes.push_back(p.axis);
    }
    return axes;
  };
  for (ReduceOp op : kReduceOps) {
    Sharding after = at;
    std::erase_if(after.partial, [&](const auto& p) { return p.op == op; });
    add(Kind::all_reduce, axes_of(at, op), 0, op, after);
  }
  for (size_t d = 0; d < at.dims.size(); ++d) {
    Sharding after = at;
    after.dims[d].clear();
    add(Kind::all_gather, at.dims[d].list(), d, ReduceOp::sum, after);
  }
  for (size_t d = 0; d < at.dims.size(); ++d) {
    Sharding after = at;
    after.dims[d] = to.dims[d];
    add(Kind::slice, to.dims[d].list(), d, ReduceOp::sum, after);
  }
  for (ReduceOp op : kReduceOps) {
    Sharding after = at;
    for (int axis : axes_of(to, op)) after.partial.push_back({axis, op});
    std::sort(after.partial.begin(), after.partial.end());
    add(Kind::keep_first, axes_of(to, op), 0, op, after);
  }
  return steps;
}

}  // namespace

std::vector<ReshardStep> cheapest_reshard(const TensorType& type, const Sharding& from,
                                          const Sharding& to, const Mesh& mesh,
                                          const Cluster& cluster) {
  if (from == to) return {};
  SR_REQUIRE(from.dims.size() == type.shape.size() && to.dims.size() == type.shape.size(), internal,
             "resharding ", type, " from ", to_string(from, mesh), " to ", to_string(to, mesh),
             ": dims differ in number");
  constexpr double kNoBound = 1e300;
  CheapestReshard needed(type, from, to, mesh, cluster, false, kNoBound);
  if (!needed.searchable()) return through_replicated(type, from, to, mesh, cluster);
  std::optional<std::vector<ReshardStep>> steps = needed.run();
  SR_REQUIRE(steps.has_value(), internal, "no resharding of ", type, " from ",
             to_string(from, mesh), " to ", to_string(to, mesh), " was found");
  const auto axes = static_cast<size_t>(mesh.axis_count());
  if (axes == needed.moving_axes() || axes > kMaxDetourAxes) return *steps;
  // Strictly cheaper, beyond rounding: otherwise the sequence that leaves other axes alone is kept.
  CheapestReshard every(type, from, to, mesh, cluster, true, reshard_seconds(*steps) * (1 - 1e-9));
  if (auto detour = every.run()) return *detour;
  return *steps;
}

double reshard_seconds(const std::vector<ReshardStep>& steps) {
  double seconds = 0;
  for (const ReshardStep& step : steps) seconds += step.seconds;
  return seconds;
}

Collective collective_of(const ReshardStep& step, const Shape& shape, const Sharding& before,
                         const Mesh& mesh, int64_t rank) {
  Collective c;
  c.kind = step.kind;
  c.axes = step.axes;
  c.group = mesh.group(rank, step.axes);
  c.dim = step.dim;
  c.to_dim = step.to_dim;
  c.op = step.op;
  for (int64_t member : c.group) {
    const std::vector<int64_t> at = mesh.coordinates(member);
    c.in_boxes.push_back(local_box(shape, before, mesh, at));
    c.out_boxes.push_back(local_box(shape, step.after, mesh, at));
  }
  return c;
}

}  // namespace shardrun
