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
#include <array>
#include <optional>
#include <queue>
#include <unordered_map>

#include "planner/cost/collective_cost.h"

namespace shardrun {
namespace {

using Kind = Collective::Kind;

constexpr size_t kMaxAxes = 8;  // axes that move: 8 bits of a state's key each
constexpr size_t kMaxDetourAxes = 3;
constexpr size_t kMaxDims = 12;  // 4 bits of those
constexpr uint8_t kFree = 0;
constexpr uint8_t kPartial = 13;  // + ReduceOp; 1 … 12 are dims 0 … 11

/// Where an axis that moves stands.
struct Place {
  uint8_t where = kFree;
  uint8_t position = 0;  // among the moving cuts of its dim
};

class Search {
 public:
  /// `bound`: sequences must cost less. `every_axis`: move axes that do not have to.
  Search(const TensorType& type, const Sharding& from, const Sharding& to, const Mesh& mesh,
         const Cluster& cluster, bool every_axis, double bound)
      : mesh_(mesh),
        cluster_(cluster),
        element_bytes_(static_cast<double>(size_of(type.dtype))),
        bound_(bound) {
    const size_t rank = type.shape.size();
    std::vector<bool> moves(static_cast<size_t>(mesh.axis_count()), false);
    for (size_t d = 0; d < rank; ++d) {
      const auto &a = from.dims[d], &b = to.dims[d];
      size_t common = 0;
      while (!every_axis && common < a.size() && common < b.size() && a[common] == b[common])
        ++common;
      int64_t extent = type.shape[d];
      for (size_t i = 0; i < common; ++i) extent = chunk(extent, mesh.axis_size(a[i]), 0).size;
      kept_.push_back({a.begin(), a.begin() + static_cast<int64_t>(common)});
      extent_.push_back(extent);
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
    if (every_axis) moves.assign(moves.size(), true);
    for (size_t axis = 0; axis < moves.size(); ++axis) {
      if (moves[axis]) axes_.push_back(static_cast<int>(axis));
    }
    searchable_ = axes_.size() <= kMaxAxes && rank <= kMaxDims;
    if (!searchable_) return;
    start_ = encode(from);
    goal_ = encode(to);
    longest_ = axes_.size() <= 3 ? 3 : axes_.size() == 4 ? 2 : 1;
  }

  bool searchable() const { return searchable_; }
  size_t moving_axes() const { return axes_.size(); }

  /// nullopt: nothing cheaper than the bound.
  std::optional<std::vector<ReshardStep>> run() {
    add(start_, 0, 0, -1, {});
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      State& state = states_[static_cast<size_t>(top.state)];
      if (state.done) continue;
      state.done = true;
      if (state.key == goal_) break;
      expand(top.state);
    }
    std::vector<ReshardStep> steps;
    const auto goal = index_.find(goal_);
    if (goal == index_.end()) return std::nullopt;
    for (int s = goal->second; states_[static_cast<size_t>(s)].parent >= 0;
         s = states_[static_cast<size_t>(s)].parent) {
      const State& state = states_[static_cast<size_t>(s)];
      ReshardStep step;
      step.kind = state.move.kind;
      for (size_t i = 0; i < state.move.count; ++i) step.axes.push_back(axes_[state.move.axes[i]]);
      step.dim = state.move.dim;
      step.to_dim = state.move.to_dim;
      step.op = state.move.op;
      step.after = decode(state.key);
      step.seconds = state.move.seconds;
      steps.push_back(std::move(step));
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  struct Move {
    Kind kind = Kind::slice;
    std::array<uint8_t, kMaxAxes> axes{};  // indices into axes_, in group order
    size_t count = 0;
    int dim = 0, to_dim = 0;
    ReduceOp op = ReduceOp::sum;
    double seconds = 0;
  };
  struct State {
    uint64_t key = 0;
    double cost = 0;
    int steps = 0, parent = -1;
    Move move;
    bool done = false;
  };
  struct Entry {
    double cost;
    int steps, state;
    bool operator<(const Entry& other) const {  // priority_queue pops the largest
      if (cost != other.cost) return cost > other.cost;
      if (steps != other.steps) return steps > other.steps;
      return state > other.state;
    }
  };
  using List = std::vector<uint8_t>;  // indices into axes_

  uint64_t encode(const Sharding& sharding) const {
    uint64_t key = 0;
    auto put = [&](int axis, Place place) {
      const auto it = std::find(axes_.begin(), axes_.end(), axis);
      if (it == axes_.end()) return;
      key |= static_cast<uint64_t>(place.where << 4 | place.position) << (8 * (it - axes_.begin()));
    };
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      for (size_t i = kept_[d].size(); i < sharding.dims[d].size(); ++i) {
        put(sharding.dims[d][i],
            {static_cast<uint8_t>(d + 1), static_cast<uint8_t>(i - kept_[d].size())});
      }
    }
    for (const auto& p : sharding.partial)
      put(p.axis, {static_cast<uint8_t>(kPartial + static_cast<int>(p.op)), 0});
    return key;
  }

  static Place place(uint64_t key, size_t i) {
    const auto byte = static_cast<uint8_t>(key >> (8 * i));
    return {static_cast<uint8_t>(byte >> 4), static_cast<uint8_t>(byte & 15)};
  }
  static uint64_t with(uint64_t key, size_t i, Place p) {
    return (key & ~(uint64_t{0xff} << (8 * i))) | static_cast<uint64_t>(p.where << 4 | p.position)
                                                      << (8 * i);
  }

  Sharding decode(uint64_t key) const {
    Sharding out{kept_, kept_partial_};
    std::vector<List> cuts = cuts_of(key);
    for (size_t d = 0; d < cuts.size(); ++d) {
      for (uint8_t i : cuts[d]) out.dims[d].push_back(axes_[i]);
    }
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Place p = place(key, i);
      if (p.where >= kPartial)
        out.partial.push_back({axes_[i], static_cast<ReduceOp>(p.where - kPartial)});
    }
    std::sort(out.partial.begin(), out.partial.end());
    return out;
  }

  std::vector<List> cuts_of(uint64_t key) const {
    std::vector<List> cuts(kept_.size());
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Place p = place(key, i);
      if (p.where == kFree || p.where >= kPartial) continue;
      List& list = cuts[static_cast<size_t>(p.where - 1)];
      if (list.size() <= p.position) list.resize(static_cast<size_t>(p.position) + 1);
      list[p.position] = static_cast<uint8_t>(i);
    }
    return cuts;
  }

  int64_t cut_extent(size_t dim, const List& cuts) const {
    int64_t extent = extent_[dim];
    for (uint8_t i : cuts) extent = chunk(extent, mesh_.axis_size(axes_[i]), 0).size;
    return extent;
  }

  const Wire& wire(const List& list) {
    uint32_t axes = 0;
    for (uint8_t i : list) axes |= 1u << i;
    if (wires_.empty()) wires_.resize(size_t{1} << axes_.size());
    std::optional<Wire>& wire = wires_[axes];
    if (!wire) {
      std::vector<int> of_mesh;
      for (uint8_t i : list) of_mesh.push_back(axes_[i]);
      wire = wire_of(of_mesh, mesh_, cluster_);
    }
    return *wire;
  }

  void add(uint64_t key, double cost, int steps, int parent, const Move& move) {
    const auto [it, fresh] = index_.try_emplace(key, static_cast<int>(states_.size()));
    if (fresh) {
      states_.push_back({key, cost, steps, parent, move, false});
    } else {
      State& known = states_[static_cast<size_t>(it->second)];
      if (known.done || known.cost < cost || (known.cost == cost && known.steps <= steps)) return;
      known.cost = cost;
      known.steps = steps;
      known.parent = parent;
      known.move = move;
    }
    if (key == goal_) bound_ = std::min(bound_, cost);
    queue_.push({cost, steps, it->second});
  }

  void relax(int from, uint64_t key, Move move, const List& list, double before, double after,
             double packed = 0) {
    move.count = list.size();
    std::copy(list.begin(), list.end(), move.axes.begin());
    move.seconds = collective_seconds(
        move.kind, {before * element_bytes_, after * element_bytes_, packed * element_bytes_},
        wire(list), cluster_);
    const State& state = states_[static_cast<size_t>(from)];
    const double cost = state.cost + move.seconds;
    if (cost > bound_) return;
    add(key, cost, state.steps + 1, from, move);
  }

  /// Every non-empty subset of `from`, in its order.
  template <class F>
  static void subsets(const List& from, F f) {
    for (uint32_t mask = 1; mask < (1u << from.size()); ++mask) {
      List list;
      for (size_t i = 0; i < from.size(); ++i) {
        if (mask >> i & 1) list.push_back(from[i]);
      }
      f(list);
    }
  }

  /// Every ordered choice of up to longest_ of `from`.
  template <class F>
  void sequences(const List& from, List& chosen, F& f) const {
    if (!chosen.empty()) f(chosen);
    if (chosen.size() == longest_) return;
    for (uint8_t i : from) {
      if (std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      chosen.push_back(i);
      sequences(from, chosen, f);
      chosen.pop_back();
    }
  }

  /// Sequences to append to the cuts of `dim`, and the whole rest that the goal wants there.
  template <class F>
  void appendable(const List& from, size_t dim, const List& cuts, F f) const {
    List chosen;
    sequences(from, chosen, f);
    const List& wanted = goal_cuts_[dim];
    if (wanted.size() <= cuts.size() + longest_ ||
        !std::equal(cuts.begin(), cuts.end(), wanted.begin()))
      return;
    List rest(wanted.begin() + static_cast<int64_t>(cuts.size()), wanted.end());
    for (uint8_t i : rest) {
      if (std::find(from.begin(), from.end(), i) == from.end()) return;
    }
    f(rest);
  }

  static uint64_t append(uint64_t key, const List& list, size_t dim, size_t position) {
    for (uint8_t i : list)
      key = with(key, i, {static_cast<uint8_t>(dim + 1), static_cast<uint8_t>(position++)});
    return key;
  }

  /// A state whose neighbours are looked at, with what every kind of step asks of it.
  struct Expansion {
    int from = 0;
    uint64_t key = 0;
    std::vector<List> cuts;
    List free;
    std::array<List, 3> partial;  // by ReduceOp
    std::vector<int64_t> size;    // of the local shape
    double count = 1;             // of its elements
    std::vector<char> outermost;  // no dim before has more than one element

    /// The local count when dim d has `extent` instead; 0 / 0 where the value is empty.
    double count_with(size_t d, int64_t extent) const {
      return size[d] == 0 ? 0.0
                          : count / static_cast<double>(size[d]) * static_cast<double>(extent);
    }
  };

  Expansion expansion(int from) const {
    Expansion at;
    at.from = from;
    at.key = states_[static_cast<size_t>(from)].key;
    at.cuts = cuts_of(at.key);
    for (size_t i = 0; i < axes_.size(); ++i) {
      const Place p = place(at.key, i);
      if (p.where == kFree) at.free.push_back(static_cast<uint8_t>(i));
      if (p.where >= kPartial)
        at.partial[static_cast<size_t>(p.where - kPartial)].push_back(static_cast<uint8_t>(i));
    }
    const size_t rank = at.cuts.size();
    at.size.resize(rank);
    for (size_t d = 0; d < rank; ++d) {
      at.size[d] = cut_extent(d, at.cuts[d]);
      at.count *= static_cast<double>(at.size[d]);
    }
    at.outermost.assign(rank, true);
    for (size_t d = 1; d < rank; ++d)
      at.outermost[d] = at.outermost[d - 1] != 0 && at.size[d - 1] <= 1;
    return at;
  }

  /// More cuts on a dim of one element only make empty shards: never on the way, only at the goal.
  bool is_pointless(const Expansion& at, size_t d, const List& list) const {
    return at.size[d] <= 1 && std::any_of(list.begin(), list.end(), [&](uint8_t i) {
             return place(goal_, i).where != d + 1;
           });
  }

  /// The extent of dim d with these cuts behind its own.
  int64_t joined(const Expansion& at, size_t d, const List& list) const {
    List all = at.cuts[d];
    all.insert(all.end(), list.begin(), list.end());
    return cut_extent(d, all);
  }

  static uint64_t with_all(uint64_t key, const List& list, Place p) {
    for (uint8_t i : list) key = with(key, i, p);
    return key;
  }

  void expand(int from) {
    if (goal_cuts_.empty()) goal_cuts_ = cuts_of(goal_);
    const Expansion at = expansion(from);
    for (size_t o = 0; o < at.partial.size(); ++o) {
      if (!at.partial[o].empty()) reduce(at, o);
    }
    for (size_t d = 0; d < at.cuts.size(); ++d) {
      gather_or_exchange(at, d);
      if (!at.free.empty()) slice(at, d);
    }
    for (uint8_t o = 0; o < 3; ++o) keep_first(at, o);
  }

  void reduce(const Expansion& at, size_t o) {
    const auto op = static_cast<ReduceOp>(o);
    for (size_t d = 0; d < at.cuts.size(); ++d) {
      appendable(at.partial[o], d, at.cuts[d], [&](const List& list) {
        if (is_pointless(at, d, list)) return;
        const double after = at.count_with(d, joined(at, d, list));
        relax(at.from, append(at.key, list, d, at.cuts[d].size()),
              {Kind::reduce_scatter, {}, 0, static_cast<int>(d), 0, op, 0}, list, at.count, after,
              packed_bytes(Kind::reduce_scatter, at.count, after, at.outermost[d], true));
      });
    }
    subsets(at.partial[o], [&](const List& list) {
      relax(at.from, with_all(at.key, list, {kFree, 0}), {Kind::all_reduce, {}, 0, 0, 0, op, 0},
            list, at.count, at.count);
    });
  }

  /// The innermost cuts of dim d go, or go to another dim.
  void gather_or_exchange(const Expansion& at, size_t d) {
    const List& cuts = at.cuts[d];
    for (size_t k = 1; k <= cuts.size(); ++k) {
      const List list(cuts.end() - static_cast<int64_t>(k), cuts.end());
      const List left(cuts.begin(), cuts.end() - static_cast<int64_t>(k));
      const double gathered = at.count_with(d, cut_extent(d, left));
      relax(at.from, with_all(at.key, list, {kFree, 0}),
            {Kind::all_gather, {}, 0, static_cast<int>(d), 0, ReduceOp::sum, 0}, list, at.count,
            gathered, packed_bytes(Kind::all_gather, at.count, gathered, at.outermost[d], true));
      for (size_t to = 0; to < at.cuts.size(); ++to) {
        if (to == d || is_pointless(at, to, list)) continue;
        const double moved = at.size[to] == 0 ? 0.0
                                              : gathered / static_cast<double>(at.size[to]) *
                                                    static_cast<double>(joined(at, to, list));
        relax(
            at.from, append(at.key, list, to, at.cuts[to].size()),
            {Kind::all_to_all, {}, 0, static_cast<int>(d), static_cast<int>(to), ReduceOp::sum, 0},
            list, at.count, moved,
            packed_bytes(Kind::all_to_all, at.count, moved, at.outermost[d], at.outermost[to]));
      }
    }
  }

  void slice(const Expansion& at, size_t d) {
    appendable(at.free, d, at.cuts[d], [&](const List& list) {
      if (is_pointless(at, d, list)) return;
      relax(at.from, append(at.key, list, d, at.cuts[d].size()),
            {Kind::slice, {}, 0, static_cast<int>(d), 0, ReduceOp::sum, 0}, list, at.count,
            at.count_with(d, joined(at, d, list)));
    });
  }

  /// Only a goal that is partial makes a value partial.
  void keep_first(const Expansion& at, uint8_t o) {
    const auto where = static_cast<uint8_t>(kPartial + o);
    List wanted;
    for (uint8_t i : at.free) {
      if (place(goal_, i).where == where) wanted.push_back(i);
    }
    // Reductions with different ops do not commute: the other op's axes are reduced first.
    if (!at.partial[(o + 1) % 3].empty() || !at.partial[(o + 2) % 3].empty()) return;
    subsets(wanted, [&](const List& list) {
      relax(at.from, with_all(at.key, list, {where, 0}),
            {Kind::keep_first, {}, 0, 0, 0, static_cast<ReduceOp>(o), 0}, list, at.count, at.count);
    });
  }

  const Mesh& mesh_;
  const Cluster& cluster_;
  double element_bytes_;
  std::vector<std::vector<int>> kept_;  // per dim: the cuts that stay
  std::vector<Sharding::Partial> kept_partial_;
  std::vector<int64_t> extent_;  // per dim: of the largest shard under kept_
  std::vector<int> axes_;        // that move
  std::vector<List> goal_cuts_;
  bool searchable_ = true;
  uint64_t start_ = 0, goal_ = 0;
  size_t longest_ = 3;  // axes sliced or scattered at once, beyond what the goal wants
  double bound_;        // no state that costs more leads to a cheapest sequence
  std::vector<std::optional<Wire>> wires_;  // by which of axes_
  std::vector<State> states_;
  std::unordered_map<uint64_t, int> index_;
  std::priority_queue<Entry> queue_;
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
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    Sharding after = at;
    std::erase_if(after.partial, [&](const auto& p) { return p.op == op; });
    add(Kind::all_reduce, axes_of(at, op), 0, op, after);
  }
  for (size_t d = 0; d < at.dims.size(); ++d) {
    Sharding after = at;
    after.dims[d].clear();
    add(Kind::all_gather, at.dims[d], d, ReduceOp::sum, after);
  }
  for (size_t d = 0; d < at.dims.size(); ++d) {
    Sharding after = at;
    after.dims[d] = to.dims[d];
    add(Kind::slice, to.dims[d], d, ReduceOp::sum, after);
  }
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
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
  Search needed(type, from, to, mesh, cluster, false, kNoBound);
  if (!needed.searchable()) return through_replicated(type, from, to, mesh, cluster);
  std::optional<std::vector<ReshardStep>> steps = needed.run();
  SR_REQUIRE(steps.has_value(), internal, "no resharding of ", type, " from ",
             to_string(from, mesh), " to ", to_string(to, mesh), " was found");
  const auto axes = static_cast<size_t>(mesh.axis_count());
  if (axes == needed.moving_axes() || axes > kMaxDetourAxes) return *steps;
  // Strictly cheaper, beyond rounding: otherwise the sequence that leaves other axes alone is kept.
  Search every(type, from, to, mesh, cluster, true, reshard_seconds(*steps) * (1 - 1e-9));
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
