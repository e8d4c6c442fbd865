// The graph of Shardings and collectives, and single-source searches in it.
#include "planner/reshard/reshard_table.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>

#include "planner/reshard/reshard_moves.h"

namespace shardrun {
namespace {

constexpr size_t kMostTableAxes = 3, kMostTableDims = 6;

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

/// Every way in which up to three mesh axes can stand on a value of some dims (free, partial, or at
/// a position among the cuts of a dim), and every collective that leads from one to another. It
/// depends on the numbers of axes and dims alone. With three axes, 3 dims have 176 states, 4 have
/// 296.
class ReshardGraph {
 public:
  ReshardGraph(size_t axes, size_t dims) : axes_(axes) {
    std::vector<Axes> cuts(dims);
    enumerate(0, cuts, {});
    for (const ReshardState& state : states_) {
      first_.push_back(moves_.size());
      reshard_moves(state, axes, dims, nullptr, moves_);
    }
    first_.push_back(moves_.size());
    for (const ReshardMove& move : moves_) next_.push_back(static_cast<size_t>(find(move.after)));
  }

  size_t size() const { return states_.size(); }
  const ReshardState& state(size_t number) const { return states_[number]; }
  /// Moves out of state s are those from first(s) to first(s + 1) - 1.
  size_t first(size_t state) const { return first_[state]; }
  const ReshardMove& move(size_t m) const { return moves_[m]; }
  size_t next(size_t m) const { return next_[m]; }
  int find(const ReshardState& state) const {
    const auto found = numbers_.find(state.key());
    return found == numbers_.end() ? -1 : found->second;
  }

 private:
  /// Axis by axis: free, partial, or anywhere among the cuts that there are.
  void enumerate(size_t axis, std::vector<Axes>& cuts, ReshardState state) {
    if (axis == axes_) {
      for (size_t d = 0; d < cuts.size(); ++d) state.append(cuts[d], d, 0);
      numbers_.emplace(state.key(), static_cast<int>(states_.size()));
      states_.push_back(state);
      return;
    }
    enumerate(axis + 1, cuts, state);
    ReshardState partial = state;
    partial.set_partial(axis, ReduceOp::sum);
    enumerate(axis + 1, cuts, partial);
    for (Axes& list : cuts) {
      for (size_t p = 0; p <= list.size(); ++p) {
        list.insert(p, static_cast<int>(axis));
        enumerate(axis + 1, cuts, state);
        list.erase(p);
      }
    }
  }

  size_t axes_;
  std::vector<ReshardState> states_;
  std::unordered_map<uint64_t, int> numbers_;  // by state
  std::vector<size_t> first_, next_;
  std::vector<ReshardMove> moves_;
};

size_t ReshardTimes::Hash::operator()(const Sharding& sharding) const {
  uint64_t h = sharding.dims.size();
  const auto mix = [&h](uint64_t x) { h = (h ^ x) * 0x9E3779B97F4A7C15ull ^ h >> 29; };
  for (const Axes& axes : sharding.dims) mix(axes.word());
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

int ReshardTimes::number_of(const TensorType& type, const SumPrice& price) {
  const auto [it, fresh] = type_numbers_.emplace(std::tuple(type.dtype, type.shape, price),
                                                 static_cast<int>(types_.size()));
  if (fresh) {
    types_.emplace_back();
    types_.back().type = type;
    types_.back().price = price;
    find_table(types_.back());
  }
  return it->second;
}

void ReshardTimes::find_table(Type& type) {
  const Shape& shape = type.type.shape;
  std::vector<int64_t> extents;
  std::vector<int> dim;
  for (int64_t extent : shape) {
    if (extent == 0) return;
    dim.push_back(extent > 1 ? static_cast<int>(extents.size()) : -1);
    if (extent > 1) extents.push_back(extent);
  }
  if (axes_.size() > kMostTableAxes || extents.size() > kMostTableDims) return;
  type.dim = std::move(dim);
  std::shared_ptr<const ReshardGraph>& graph = graphs_[extents.size()];
  if (!graph) graph = std::make_shared<ReshardGraph>(axes_.size(), extents.size());
  ReshardCosts costs(extents, type.type.dtype, axes_, mesh_, cluster_);
  std::vector<LargestShard> shards;
  std::vector<std::pair<unsigned, double>> alike;
  for (size_t s = 0; s < graph->size(); ++s) {
    shards.push_back(costs.shard(graph->state(s)));
    alike.push_back({shards[s].outermost(), shards[s].bytes});
  }
  std::unique_ptr<Table>& table = tables_[{type.price, std::move(alike)}];
  if (!table) {
    table = std::make_unique<Table>();
    table->graph = graph.get();
    table->searched.assign(graph->size(), false);
    table->seconds = std::make_shared<FactoredProblem::Matrix>(graph->size(), graph->size());
    table->seconds->forbids = false;
    const auto append = [&](double call, double exposed, std::vector<double>& out) {
      for (size_t s = 0; s < graph->size(); ++s) {
        for (size_t m = graph->first(s); m < graph->first(s + 1); ++m) {
          const LargestShard& after = shards[graph->next(m)];
          out.push_back(exposed * costs.seconds(graph->move(m), shards[s], after, call));
        }
      }
    };
    append(0, 1, table->cost);
    if (type.price != SumPrice{}) append(type.price.call, type.price.exposed, table->of_sums);
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
  ReshardState at_table;
  for (size_t d = 0; d < s.dims.size(); ++d) {
    for (size_t i = 0; i < s.dims[d].size(); ++i) {
      const int axis = s.dims[d][i], own = axis_of_[static_cast<size_t>(axis)];
      if (type.dim[d] < 0 || own < 0) return state;
      at_table.set_cut(static_cast<size_t>(own), static_cast<size_t>(type.dim[d]), i);
    }
  }
  for (const Sharding::Partial& p : s.partial) {
    const int own = axis_of_[static_cast<size_t>(p.axis)];
    if (own < 0) return state;
    at_table.set_partial(static_cast<size_t>(own), ReduceOp::sum);
  }
  state = type.table->graph->find(at_table);
  return state;
}

/// Dijkstra from one state to all; of equal times the fewest steps.
void ReshardTimes::search_from(Table& table, int from) {
  const size_t start = static_cast<size_t>(from);
  if (table.searched[start]) return;
  table.searched[start] = true;
  ++searches_;
  const ReshardGraph& graph = *table.graph;
  const std::vector<double>& price =
      table.of_sums.empty() || !graph.state(start).has_partial() ? table.cost : table.of_sums;
  struct Way {
    double cost = std::numeric_limits<double>::infinity();
    int steps = 0;
    double price = 0;
  };
  std::vector<Way> ways(graph.size());
  ways[start].cost = 0;
  using Entry = std::tuple<double, int, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  queue.push({0, 0, start});
  while (!queue.empty()) {
    const auto [cost, steps, state] = queue.top();
    queue.pop();
    if (std::tie(cost, steps) > std::tie(ways[state].cost, ways[state].steps)) continue;
    for (size_t m = graph.first(state); m < graph.first(state + 1); ++m) {
      const Way next{cost + table.cost[m], steps + 1, ways[state].price + price[m]};
      Way& known = ways[graph.next(m)];
      if (std::tie(next.cost, next.steps) >= std::tie(known.cost, known.steps)) continue;
      known = next;
      queue.push({next.cost, next.steps, graph.next(m)});
    }
  }
  for (size_t s = 0; s < ways.size(); ++s) table.seconds->set(start, s, ways[s].price);
}

double ReshardTimes::seconds(int type, int from, int to) {
  if (from == to) return 0;
  Type& t = types_[static_cast<size_t>(type)];
  if (t.table != nullptr && one_kind(sharding(from), sharding(to))) {
    const int a = state_of(t, from), b = state_of(t, to);
    if (a >= 0 && b >= 0) {
      search_from(*t.table, a);
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
    for (uint16_t row : edge.row) search_from(*t.table, row);
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
    const Sharding* before = &sharding(from);
    const bool sums = !before->partial.empty();
    for (ReshardStep& step : it->second) {
      if (t.price.call > 0 && step.kind == Collective::Kind::all_reduce)
        step.seconds = collective_seconds(step.kind, t.type, *before, step.after, step.dim,
                                          step.to_dim, step.axes, mesh_, cluster_, t.price.call);
      if (sums) step.seconds *= t.price.exposed;
      before = &step.after;
    }
  }
  return it->second;
}

double ReshardTimes::redistribution_seconds(int type, int produced, int redistributed,
                                            bool regathered, const std::vector<Wanted>& wanted) {
  double sum = 0;
  for (const Redistribution& r : redistribution(type, produced, redistributed, regathered, wanted))
    sum += r.times * r.step->seconds;
  return sum;
}

std::vector<ReshardTimes::Redistribution> ReshardTimes::redistribution(
    int type, int produced, int redistributed, bool regathered, const std::vector<Wanted>& wanted) {
  std::vector<int> copies{produced};
  std::vector<Redistribution> out;
  const auto make = [&](int sharding, bool keep, size_t for_wanted) {
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
      out.push_back({&step, for_wanted, wanted[for_wanted].times});
    }
  };
  for (size_t w = 0; w < wanted.size(); ++w) {
    if (wanted[w].sharding == produced) continue;
    if (redistributed >= 0) make(redistributed, true, w);
    make(wanted[w].sharding, !regathered, w);
  }
  return out;
}

}  // namespace shardrun
