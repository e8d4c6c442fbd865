// The graph of Shardings and collectives, and single-source searches in it.
#include "planner/reshard/reshard_table.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>

#include "base/error.h"
#include "planner/cost/collective_cost.h"
#include "planner/reshard/reshard.h"

namespace shardrun {
namespace {

using Kind = Collective::Kind;
using Cuts = std::vector<std::vector<int>>;

/// Every ordered choice of one or more of `from`.
template <class F>
void sequences(const std::vector<int>& from, std::vector<int>& chosen, const F& f) {
  if (!chosen.empty()) f(chosen);
  for (int axis : from) {
    if (std::find(chosen.begin(), chosen.end(), axis) != chosen.end()) continue;
    chosen.push_back(axis);
    sequences(from, chosen, f);
    chosen.pop_back();
  }
}

uint8_t bits(const std::vector<int>& axes) {
  unsigned out = 0;
  for (int axis : axes) out |= 1u << axis;
  return static_cast<uint8_t>(out);
}

std::vector<int> axes_of(unsigned bits) {
  std::vector<int> out;
  for (int axis = 0; bits >> axis != 0; ++axis) {
    if (bits >> axis & 1) out.push_back(axis);
  }
  return out;
}

/// Are all axes over which the two are partial so with one op?
bool one_kind(const Sharding& a, const Sharding& b) {
  const Sharding& some = a.partial.empty() ? b : a;
  const auto same = [&](const Sharding::Partial& p) { return p.op == some.partial[0].op; };
  return std::all_of(a.partial.begin(), a.partial.end(), same) &&
         std::all_of(b.partial.begin(), b.partial.end(), same);
}

uint64_t pair_of(int from, int to) {
  return static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to);
}

}  // namespace

ReshardGraph::ReshardGraph(int axes, int dims) : axes_(axes), dims_(dims) {
  size_t codes = 1;
  for (int i = 0; i < axes; ++i) codes *= static_cast<size_t>(2 + dims * axes);
  index_.assign(codes, -1);
  Cuts cuts(static_cast<size_t>(dims));
  enumerate(0, cuts, 0);
  for (size_t s = 0; s < states_.size(); ++s) {
    first_.push_back(moves_.size());
    expand(s);
  }
  first_.push_back(moves_.size());
}

/// Each axis is a digit: 0 free, 1 partial, then dim by dim its position.
size_t ReshardGraph::code(const Cuts& cuts, unsigned partial) const {
  std::vector<size_t> digit(static_cast<size_t>(axes_), 0);
  for (size_t d = 0; d < cuts.size(); ++d) {
    for (size_t p = 0; p < cuts[d].size(); ++p)
      digit[static_cast<size_t>(cuts[d][p])] = 2 + d * static_cast<size_t>(axes_) + p;
  }
  size_t code = 0;
  for (int axis = 0; axis < axes_; ++axis) {
    size_t own = digit[static_cast<size_t>(axis)];
    if (partial >> axis & 1) own = 1;
    code = code * static_cast<size_t>(2 + dims_ * axes_) + own;
  }
  return code;
}

int ReshardGraph::find(const Cuts& cuts, unsigned partial) const {
  return index_[code(cuts, partial)];
}

/// Axis by axis: free, partial, or anywhere among the cuts that there are.
void ReshardGraph::enumerate(int axis, Cuts& cuts, unsigned partial) {
  if (axis == axes_) {
    index_[code(cuts, partial)] = static_cast<int>(states_.size());
    states_.push_back({cuts});
    partial_.push_back(partial);
    return;
  }
  enumerate(axis + 1, cuts, partial);
  enumerate(axis + 1, cuts, partial | 1u << axis);
  for (std::vector<int>& list : cuts) {
    for (size_t p = 0; p <= list.size(); ++p) {
      list.insert(list.begin() + static_cast<int64_t>(p), axis);
      enumerate(axis + 1, cuts, partial);
      list.erase(list.begin() + static_cast<int64_t>(p));
    }
  }
}

/// The moves are those of reshard.cc's search, with any state as the goal.
void ReshardGraph::expand(size_t state) {
  const Cuts cuts = states_[state].cuts;
  const unsigned partial = partial_[state];
  unsigned free = (1u << axes_) - 1 - partial;
  for (const std::vector<int>& list : cuts) free &= ~static_cast<unsigned>(bits(list));
  const auto move = [&](Kind kind, const Cuts& next, unsigned next_partial, uint8_t axes,
                        size_t dim = 0, size_t to_dim = 0) {
    moves_.push_back({static_cast<uint16_t>(find(next, next_partial)), static_cast<uint8_t>(kind),
                      axes, static_cast<uint8_t>(dim), static_cast<uint8_t>(to_dim)});
  };
  const auto appended = [&](size_t d, const std::vector<int>& list) {
    Cuts next = cuts;
    next[d].insert(next[d].end(), list.begin(), list.end());
    return next;
  };
  for (unsigned some = partial; some != 0; some = (some - 1) & partial)
    move(Kind::all_reduce, cuts, partial & ~some, static_cast<uint8_t>(some));
  for (unsigned some = free; some != 0; some = (some - 1) & free)
    move(Kind::keep_first, cuts, partial | some, static_cast<uint8_t>(some));
  for (size_t d = 0; d < cuts.size(); ++d) {
    std::vector<int> chosen;
    sequences(axes_of(partial), chosen, [&](const std::vector<int>& list) {
      move(Kind::reduce_scatter, appended(d, list), partial & ~static_cast<unsigned>(bits(list)),
           bits(list), d);
    });
    sequences(axes_of(free), chosen, [&](const std::vector<int>& list) {
      move(Kind::slice, appended(d, list), partial, bits(list), d);
    });
    for (size_t k = 1; k <= cuts[d].size(); ++k) {
      const std::vector<int> inner(cuts[d].end() - static_cast<int64_t>(k), cuts[d].end());
      Cuts left = cuts;
      left[d].resize(cuts[d].size() - k);
      move(Kind::all_gather, left, partial, bits(inner), d);
      for (size_t to = 0; to < cuts.size(); ++to) {
        if (to == d) continue;
        Cuts next = left;
        next[to].insert(next[to].end(), inner.begin(), inner.end());
        move(Kind::all_to_all, next, partial, bits(inner), d, to);
      }
    }
  }
}

size_t ReshardTimes::Hash::operator()(const Sharding& sharding) const {
  uint64_t h = sharding.dims.size();
  const auto mix = [&h](uint64_t x) { h = (h ^ x) * 0x9E3779B97F4A7C15ull ^ h >> 29; };
  for (const std::vector<int>& axes : sharding.dims) {
    mix(100);
    for (int axis : axes) mix(static_cast<uint64_t>(axis) + 1);
  }
  for (const Sharding::Partial& p : sharding.partial)
    mix(1000 + 8 * static_cast<uint64_t>(p.axis) + static_cast<uint64_t>(p.op));
  return h;
}

ReshardTimes::ReshardTimes(const Mesh& mesh, const Cluster& cluster)
    : mesh_(mesh), cluster_(cluster), axis_of_(static_cast<size_t>(mesh.axis_count()), -1) {
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    if (mesh.axis_size(axis) == 1) continue;
    axis_of_[static_cast<size_t>(axis)] = static_cast<int>(axes_.size());
    axes_.push_back(axis);
  }
}

int ReshardTimes::number_of(const Sharding& sharding) {
  const auto [it, fresh] = numbers_.emplace(sharding, static_cast<int>(shardings_.size()));
  if (fresh) shardings_.push_back(&it->first);
  return it->second;
}

int ReshardTimes::number_of(const TensorType& type) {
  const auto [it, fresh] =
      type_numbers_.emplace(std::pair(type.dtype, type.shape), static_cast<int>(types_.size()));
  if (fresh) {
    types_.emplace_back();
    types_.back().type = type;
    find_table(types_.back());
  }
  return it->second;
}

void ReshardTimes::find_table(Type& type) {
  const Shape& shape = type.type.shape;
  std::vector<size_t> order;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return;
    if (shape[d] > 1) order.push_back(d);
  }
  const int dims = static_cast<int>(order.size());
  if (axes_.size() > ReshardGraph::kMostAxes || dims > ReshardGraph::kMostDims) return;
  type.dim.assign(shape.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) type.dim[order[i]] = static_cast<int>(i);
  std::unique_ptr<ReshardGraph>& graph = graphs_[dims];
  if (!graph) graph = std::make_unique<ReshardGraph>(static_cast<int>(axes_.size()), dims);
  std::vector<double> bytes;
  std::vector<unsigned> outermost;  // by state, bit d: no dim before d has more than one element
  for (size_t s = 0; s < graph->size(); ++s) {
    outermost.push_back(1);
    auto count = static_cast<double>(size_of(type.type.dtype));
    for (size_t i = 0; i < order.size(); ++i) {
      int64_t extent = shape[order[i]];
      for (int axis : graph->state(s).cuts[i])
        extent = chunk(extent, mesh_.axis_size(axes_[static_cast<size_t>(axis)]), 0).size;
      count *= static_cast<double>(extent);
      if (extent <= 1) outermost[s] |= (outermost[s] >> i & 1) << (i + 1);
    }
    bytes.push_back(count);
  }
  std::unique_ptr<Table>& table = tables_[{outermost, bytes}];
  if (!table) {
    table = std::make_unique<Table>();
    table->graph = graph.get();
    table->searched.assign(graph->size(), false);
    table->seconds = std::make_shared<FactoredProblem::Matrix>(graph->size(), graph->size());
    table->seconds->forbids = false;
    std::vector<Wire> wires(size_t{1} << axes_.size());
    for (unsigned some = 1; some < wires.size(); ++some) {
      std::vector<int> of_mesh;
      for (int axis : axes_of(some)) of_mesh.push_back(axes_[static_cast<size_t>(axis)]);
      wires[some] = wire_of(of_mesh, mesh_, cluster_);
    }
    for (size_t s = 0; s < graph->size(); ++s) {
      for (size_t m = graph->first(s); m < graph->first(s + 1); ++m) {
        const ReshardGraph::Move& move = graph->moves()[m];
        const auto kind = static_cast<Kind>(move.kind);
        const double packed =
            packed_bytes(kind, bytes[s], bytes[move.next], (outermost[s] >> move.dim & 1) != 0,
                         (outermost[s] >> move.to_dim & 1) != 0);
        table->cost.push_back(collective_seconds(kind, {bytes[s], bytes[move.next], packed},
                                                 wires[move.axes], cluster_));
      }
    }
    table->bytes = std::move(bytes);
  }
  type.table = table.get();
}

int ReshardTimes::state_of(Type& type, int number) {
  const size_t at = static_cast<size_t>(number);
  if (type.state.size() <= at) type.state.resize(std::max(at + 1, shardings_.size()), -2);
  int& state = type.state[at];
  if (state != -2) return state;
  state = -1;
  const Sharding& s = sharding(number);
  Cuts cuts(static_cast<size_t>(
      std::count_if(type.dim.begin(), type.dim.end(), [](int d) { return d >= 0; })));
  for (size_t d = 0; d < s.dims.size(); ++d) {
    int64_t extent = type.type.shape[d];
    for (int axis : s.dims[d]) {
      // Cuts of what has one element left are not on the way to anything; the pairwise search knows
      // when they are the goal.
      if (extent <= 1 || axis_of_[static_cast<size_t>(axis)] < 0) return state;
      extent = chunk(extent, mesh_.axis_size(axis), 0).size;
      cuts[static_cast<size_t>(type.dim[d])].push_back(axis_of_[static_cast<size_t>(axis)]);
    }
  }
  unsigned partial = 0;
  for (const Sharding::Partial& p : s.partial) {
    if (axis_of_[static_cast<size_t>(p.axis)] < 0) return state;
    partial |= 1u << axis_of_[static_cast<size_t>(p.axis)];
  }
  state = type.table->graph->find(cuts, partial);
  return state;
}

/// Dijkstra from one state to all.
void ReshardTimes::search(Table& table, int from) {
  const size_t start = static_cast<size_t>(from);
  if (table.searched[start]) return;
  table.searched[start] = true;
  ++searches_;
  const ReshardGraph& graph = *table.graph;
  std::vector<double> seconds(graph.size(), std::numeric_limits<double>::infinity());
  seconds[start] = 0;
  using Entry = std::pair<double, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  queue.push({0, start});
  while (!queue.empty()) {
    const auto [cost, state] = queue.top();
    queue.pop();
    if (cost > seconds[state]) continue;
    for (size_t m = graph.first(state); m < graph.first(state + 1); ++m) {
      const double next = cost + table.cost[m];
      double& known = seconds[graph.moves()[m].next];
      if (next >= known) continue;
      known = next;
      queue.push({next, graph.moves()[m].next});
    }
  }
  for (size_t s = 0; s < seconds.size(); ++s) table.seconds->set(start, s, seconds[s]);
}

double ReshardTimes::seconds(int type, int from, int to) {
  if (from == to) return 0;
  Type& t = types_[static_cast<size_t>(type)];
  if (t.table != nullptr && one_kind(sharding(from), sharding(to))) {
    const int a = state_of(t, from), b = state_of(t, to);
    if (a >= 0 && b >= 0) {
      search(*t.table, a);
      const FactoredProblem::Matrix& seconds = *t.table->seconds;
      return static_cast<double>(
          seconds.cost[static_cast<size_t>(a) * seconds.columns + static_cast<size_t>(b)]);
    }
  }
  const auto [it, fresh] = t.pairs.emplace(pair_of(from, to), 0.0);
  if (fresh) it->second = reshard_seconds(steps(type, from, to));
  return it->second;
}

FactoredProblem::Edge ReshardTimes::edge(int type, const std::vector<int>& have,
                                         const std::vector<std::vector<int>>& wants) {
  FactoredProblem::Edge edge;
  Type& t = types_[static_cast<size_t>(type)];
  // The table of all states, where all that is asked for is in it.
  bool plain = t.table != nullptr;
  std::optional<ReduceOp> op;
  const auto state = [&](int number) {
    const Sharding& s = sharding(number);
    for (const Sharding::Partial& p : s.partial) plain = plain && p.op == op.value_or(p.op);
    if (!s.partial.empty()) op = s.partial[0].op;
    const int found = plain ? state_of(t, number) : -1;
    plain = plain && found >= 0;
    return static_cast<uint16_t>(std::max(found, 0));
  };
  for (int number : have) edge.row.push_back(state(number));
  for (const std::vector<int>& want : wants) {
    plain = plain && want.size() == 1;
    edge.column.push_back(plain ? state(want[0]) : uint16_t{0});
  }
  if (plain) {
    for (uint16_t row : edge.row) search(*t.table, row);
    edge.matrix = t.table->seconds;
    return edge;
  }
  std::map<int, uint16_t> rows;
  std::map<std::vector<int>, uint16_t> columns;
  for (size_t a = 0; a < have.size(); ++a)
    edge.row[a] = rows.emplace(have[a], static_cast<uint16_t>(rows.size())).first->second;
  for (size_t b = 0; b < wants.size(); ++b)
    edge.column[b] = columns.emplace(wants[b], static_cast<uint16_t>(columns.size())).first->second;
  auto matrix = std::make_shared<FactoredProblem::Matrix>(rows.size(), columns.size());
  for (const auto& [from, row] : rows) {
    for (const auto& [want, column] : columns) {
      double sum = 0;
      for (int to : want) sum += seconds(type, from, to);
      matrix->set(row, column, sum);
    }
  }
  matrix->forbids = false;
  edge.matrix = std::move(matrix);
  return edge;
}

const std::vector<ReshardStep>& ReshardTimes::steps(int type, int from, int to) {
  Type& t = types_[static_cast<size_t>(type)];
  const auto [it, fresh] = t.steps.try_emplace(pair_of(from, to));
  if (fresh) {
    ++searches_;
    it->second = cheapest_reshard(t.type, sharding(from), sharding(to), mesh_, cluster_);
  }
  return it->second;
}

double ReshardTimes::hand_out_seconds(int type, int produced, int handed, bool anew,
                                      const std::vector<Wanted>& wanted) {
  std::vector<int> copies{produced};
  double sum = 0;
  const auto make = [&](int sharding, bool keep, int times) {
    if (std::find(copies.begin(), copies.end(), sharding) != copies.end()) return;
    const std::vector<ReshardStep>* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (int copy : copies) {
      const std::vector<ReshardStep>& found = steps(type, copy, sharding);
      if (reshard_seconds(found) >= least) continue;
      least = reshard_seconds(found);
      best = &found;
    }
    for (const ReshardStep& step : *best) {
      const int after = number_of(step.after);
      if (std::find(copies.begin(), copies.end(), after) != copies.end()) continue;
      if (keep) copies.push_back(after);
      sum += times * step.seconds;
    }
  };
  for (const auto& [sharding, times] : wanted) {
    if (sharding == produced) continue;
    if (handed >= 0) make(handed, true, times);
    make(sharding, !anew, times);
  }
  return sum;
}

}  // namespace shardrun
