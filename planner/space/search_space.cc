// Building the planner's Problem from a folded Graph.
#include "planner/space/search_space.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/at.h"
#include "base/round_up.h"
#include "graph/op_def.h"
#include "graph/program.h"

namespace shardrun {
namespace {

constexpr double kPartialByteSeconds =
    1e-15;  // breaks ties: of equal costs, the one with less partial data

/// What makes or holds a value: a node of the problem, and the result of its strategies.
struct Origin {
  int item_class = -1;
  int result = 0;
  bool held = false;
  friend auto operator<=>(const Origin&, const Origin&) = default;
};

class Builder {
 public:
  Builder(const SearchSpace& space, const Graph& graph, const Folding& folding, const Mesh& mesh,
          ReshardTimes& times)
      : space_(space), graph_(graph), folding_(folding), mesh_(mesh), times_(times) {
    for (const auto& strategies : space.strategies) {
      // Shardings by number, strategy by strategy.
      std::vector<Numbers> numbers;
      for (const Strategy& s : strategies) {
        Numbers n;
        for (const Sharding& sharding : s.in) n.in.push_back(times_.number_of(sharding));
        for (const Sharding& sharding : s.out) n.out.push_back(times_.number_of(sharding));
        numbers.push_back(std::move(n));
      }
      numbers_.push_back(std::move(numbers));
    }
    for (const auto& [held, next] : graph.updates) replaces_.insert(next);
  }

  JointProblem build() {
    find_followers();
    add_classes();
    add_edges();
    add_ties();
    add_final_costs();
    add_memory();
    JointProblem out{std::move(problem_), {}, std::move(lies_as_)};
    for (const auto& [from, hub] : hubs_) out.hubs.push_back(hub);
    return out;
  }

 private:
  struct Numbers {
    std::vector<int> in, out;
  };

  Origin origin(ValueId id) const {
    const auto [c, result] = folding_.origin(graph_, id);
    if (graph_.value(id).role == Role::computed) return {c, result};
    const auto [maker, made] = lies_as_[at(c)];
    return maker < 0 ? Origin{c, result, true} : Origin{maker, made, true};
  }

  /// Is a held value resharded after its update makes it, if that is cheaper?
  bool reshards(ValueId held) const {
    return space_.reshards_updates && graph_.value(held).role == Role::parameter;
  }

  /// Held values lie as their update makes them. Where that is one class for all of a class, there
  /// is nothing else to choose.
  void find_followers() {
    lies_as_.assign(folding_.classes.size(), {-1, 0});
    std::map<int, std::set<std::pair<int, int>>> makers;
    std::map<int, size_t> updated;
    for (const auto& [held, next] : graph_.updates) {
      if (graph_.value(next).role != Role::computed || reshards(held)) continue;
      const Origin from = origin(next);
      makers[folding_.class_of_value[at(held)]].insert({from.item_class, from.result});
      ++updated[folding_.class_of_value[at(held)]];
    }
    for (const auto& [c, all] : makers) {
      const Folding::Class& members = folding_.classes[at(c)];
      if (all.size() == 1 && updated[c] == members.values.size() &&
          folding_.classes[at(all.begin()->first)].nodes.size() == members.values.size())
        lies_as_[at(c)] = *all.begin();
    }
  }
  size_t strategies(int c) const { return problem_.nodes[at(c)].cost.size(); }

  /// How often in a step the nodes of a class run; they are all of one phase.
  double runs(int c) const {
    const std::vector<NodeId>& nodes = folding_.classes[at(c)].nodes;
    return nodes.empty() ? 1.0 : static_cast<double>(graph_.runs(graph_.node(nodes[0]).phase));
  }

  void add_classes() {
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      const Folding::Class& members = folding_.classes[c];
      FactoredProblem::Node node;
      node.place = static_cast<double>(c);
      const double count = static_cast<double>(members.nodes.size() + members.values.size());
      node.name = members.nodes.empty() ? graph_.value(members.values[0]).name
                                        : graph_.node(members.nodes[0]).name;
      for (const Strategy& s : space_.strategies[c]) {
        double cost = s.seconds;
        for (size_t r = 0; r < s.out.size() && !members.nodes.empty(); ++r) {
          if (s.out[r].partial.empty()) continue;
          const TensorType& type = graph_.type(graph_.node(members.nodes[0]).outputs[r]);
          cost += kPartialByteSeconds * static_cast<double>(byte_size(type));
        }
        node.cost.push_back(count * runs(static_cast<int>(c)) * cost);
      }
      if (lies_as_[c].first >= 0) node.cost = {0.0};
      problem_.nodes.push_back(std::move(node));
    }
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      const auto [maker, result] = lies_as_[c];
      if (maker < 0) continue;
      std::set<int> allowed;
      for (const Numbers& n : numbers_[c]) allowed.insert(n.out[0]);
      for (size_t a = 0; a < strategies(maker); ++a) {
        if (allowed.count(numbers_[at(maker)][a].out[at(result)]) == 0)
          problem_.nodes[at(maker)].cost[a] = kInfeasible;
      }
    }
  }

  /// An edge `scale` times, or a node's own cost if its ends are one.
  void add(int from, int to, double scale, FactoredProblem::Edge edge) {
    edge.from = from;
    edge.to = to;
    edge.scale = scale;
    if (from != to) {
      problem_.edges.push_back(std::move(edge));
      return;
    }
    std::vector<double>& own = problem_.nodes[at(from)].cost;
    for (size_t a = 0; a < own.size(); ++a) own[a] += edge.cost(a, a);
  }

  /// Per strategy, the number of the Sharding of a class' result.
  std::vector<int> made(const Origin& from) const {
    std::vector<int> out;
    for (const Numbers& n : numbers_[at(from.item_class)]) out.push_back(n.out[at(from.result)]);
    return out;
  }

  void add_edges() {
    // Who reads what, member by member: {origin, reader's class, operands} -> times that it
    // happens.
    std::map<std::tuple<Origin, int, std::vector<size_t>>, int> uses;
    std::map<Origin, ValueId> example;
    std::vector<int> readers(graph_.values().size(), 0);
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      std::map<ValueId, std::vector<size_t>> operands;
      for (size_t k = 0; k < node.inputs.size(); ++k) operands[node.inputs[k]].push_back(k);
      for (const auto& [value, slots] : operands) {
        const Origin from = origin(value);
        ++uses[{from, folding_.class_of_node[n], slots}];
        example.emplace(from, value);
        ++readers[at(value)];
      }
    }
    std::map<Origin, int> most_readers;
    for (size_t v = 0; v < readers.size(); ++v) {
      if (readers[v] == 0) continue;
      int& most = most_readers[origin(static_cast<ValueId>(v))];
      most = std::max(most, readers[v]);
    }
    for (const auto& [from, value] : example) {
      const bool regathered = !space_.regathered.empty() && space_.regathered[at(value)];
      if (!regathered && most_readers[from] >= 2) add_hub(from, value, uses);
    }
    for (const auto& [key, count] : uses) {
      const Origin from = std::get<0>(key);
      const int reader = std::get<1>(key);
      const std::vector<size_t>& slots = std::get<2>(key);
      const int type = type_number(example[from]);
      const std::vector<Numbers>& wants = numbers_[at(reader)];
      std::vector<std::vector<int>> wanted;  // per reader's strategy, distinct
      for (const Numbers& n : wants) {
        std::set<int> distinct;
        for (size_t k : slots) distinct.insert(n.in[k]);
        wanted.emplace_back(distinct.begin(), distinct.end());
      }
      const auto hub = hubs_.find(from);
      const bool has_hub = hub != hubs_.end();
      add(has_hub ? hub->second.node : from.item_class, reader, count * runs(reader),
          times_.edge(type, has_hub ? hub->second.shardings : made(from), wanted));
    }
  }

  void add_hub(const Origin& from, ValueId value,
               const std::map<std::tuple<Origin, int, std::vector<size_t>>, int>& uses) {
    std::set<int> shardings;
    double copied = 0;  // how often: for the first reader, and those of every micro-batch are first
    for (auto it = uses.lower_bound({from, -1, {}});
         it != uses.end() && std::get<0>(it->first) == from; ++it) {
      const int reader = std::get<1>(it->first);
      copied = std::max(copied, runs(reader));
      for (const Numbers& n : numbers_[at(reader)]) {
        for (size_t k : std::get<2>(it->first)) shardings.insert(n.in[k]);
      }
    }
    const std::vector<int> produced = made(from);
    const std::set<int> makes(produced.begin(), produced.end());
    for (int number : makes) {
      if (times_.sharding(number).partial.empty()) shardings.insert(number);
    }
    if (space_.may_redistribute)
      std::erase_if(shardings,
                    [&](int n) { return !space_.may_redistribute(value, times_.sharding(n)); });
    const auto asked = space_.copied_from.find(value);
    if (asked != space_.copied_from.end()) shardings = {times_.number_of(asked->second)};
    if (shardings.empty() || (shardings.size() == 1 && makes == shardings)) return;
    const Folding::Class& members = folding_.classes[at(from.item_class)];
    Hub hub;
    hub.node = static_cast<int>(problem_.nodes.size());
    hub.value = value;
    hub.shardings.assign(shardings.begin(), shardings.end());
    hub.in_place.assign(shardings.size(), false);
    const bool held =
        asked == space_.copied_from.end() && (from.held || replaces_.count(value) > 0);
    if (held) {
      std::set<int> in_place;
      for (int number : makes) in_place.insert(reduced(number));
      hub.shardings.insert(hub.shardings.end(), in_place.begin(), in_place.end());
      hub.in_place.resize(hub.shardings.size(), true);
    }
    problem_.nodes.push_back(
        {graph_.value(value).name + "@",
         std::vector<double>(hub.shardings.size(), 0.0),
         {},
         from.held ? folding_.class_of_value[at(value)] + 0.5 : from.item_class + 0.5});
    std::vector<std::vector<int>> wanted;
    for (int number : hub.shardings) wanted.push_back({number});
    add(from.item_class, hub.node,
        copied * static_cast<double>(members.nodes.size() + members.values.size()),
        times_.edge(type_number(value), produced, wanted));
    if (held) add(from.item_class, hub.node, 1, held_so(produced, hub));
    hubs_.emplace(from, std::move(hub));
  }

  int type_number(ValueId id) {
    return times_.number_of(graph_.type(id), space_.sum_prices[at(id)]);
  }

  /// A Sharding without its partial axes.
  int reduced(int number) {
    Sharding sharding = times_.sharding(number);
    if (sharding.partial.empty()) return number;
    sharding.partial.clear();
    return times_.number_of(sharding);
  }

  /// Where a hub takes no memory, the held value must lie as it is redistributed, or in summands of
  /// that: an all-reduce leaves the sum where they were.
  FactoredProblem::Edge held_so(const std::vector<int>& held, const Hub& hub) {
    FactoredProblem::Edge edge;
    std::map<int, uint16_t> rows, columns;  // by Sharding; the last column is that of copies
    for (int number : held) rows.emplace(number, static_cast<uint16_t>(rows.size()));
    for (size_t k = 0; k < hub.shardings.size(); ++k) {
      if (hub.in_place[k]) columns.emplace(hub.shardings[k], static_cast<uint16_t>(columns.size()));
    }
    const auto copies = static_cast<uint16_t>(columns.size());
    auto matrix = std::make_shared<FactoredProblem::Matrix>(rows.size(), columns.size() + 1);
    for (const auto& [number, row] : rows) {
      matrix->set(row, copies, 0);
      matrix->set(row, columns.at(reduced(number)), 0);
    }
    for (int number : held) edge.row.push_back(rows.at(number));
    for (size_t k = 0; k < hub.shardings.size(); ++k)
      edge.column.push_back(hub.in_place[k] ? columns.at(hub.shardings[k]) : copies);
    edge.matrix = std::move(matrix);
    return edge;
  }

  /// What replaces a persistent value must lie as it does, or be resharded after it is made.
  void add_ties() {
    std::map<std::pair<int, Origin>, std::pair<ValueId, int>> ties;  // an example, and how many
    for (const auto& [held, next] : graph_.updates) {
      const int holder = folding_.class_of_value[at(held)];
      if (lies_as_[at(holder)].first >= 0) continue;
      const Origin from = origin(next);
      if (from.item_class != holder)
        ++ties.emplace(std::pair(holder, from), std::pair(held, 0)).first->second.second;
    }
    for (const auto& [key, tie] : ties) {
      const auto& [holder, from] = key;
      const auto [held, count] = tie;
      std::vector<std::vector<int>> wanted;
      for (const Numbers& n : numbers_[at(holder)]) wanted.push_back({n.out[0]});
      if (reshards(held)) {
        add(from.item_class, holder, count * runs(from.item_class),
            times_.edge(type_number(held), made(from), wanted));
        continue;
      }
      FactoredProblem::Edge equal;
      std::map<int, uint16_t> names;
      const auto name = [&](int number) {
        return names.emplace(number, static_cast<uint16_t>(names.size())).first->second;
      };
      for (int number : made(from)) equal.row.push_back(name(number));
      for (const std::vector<int>& want : wanted) equal.column.push_back(name(want[0]));
      auto matrix = std::make_shared<FactoredProblem::Matrix>(names.size(), names.size());
      for (size_t i = 0; i < names.size(); ++i) matrix->set(i, i, 0);
      equal.matrix = std::move(matrix);
      add(from.item_class, holder, 1, std::move(equal));
    }
  }

  /// Outputs and metrics end up replicated; outputs that may stay cut if they are partial.
  void add_final_costs() {
    std::map<ValueId, bool> ends;  // must it be whole?
    for (ValueId id : graph_.outputs) ends[id] = !graph_.outputs_stay_cut;
    for (const auto& [name, value] : graph_.metrics) ends[value] = true;
    const auto times = static_cast<double>(graph_.runs(graph_.last_phase()));
    for (const auto& [id, must] : ends) {
      const Origin from = origin(id);
      const int type = type_number(id);
      const int whole = times_.number_of(Sharding::replicated(graph_.type(id).shape.size()));
      for (size_t a = 0; a < strategies(from.item_class); ++a) {
        const int made = numbers_[at(from.item_class)][a].out[at(from.result)];
        if (must || !times_.sharding(made).partial.empty())
          problem_.nodes[at(from.item_class)].cost[a] += times * times_.seconds(type, made, whole);
      }
    }
  }

  int64_t bytes(const TensorType& type, const Sharding& sharding) const {
    return round_up(max_local_bytes(type, sharding, mesh_), kArenaAlignment);
  }

  void add_memory() {
    const int end = static_cast<int>(graph_.nodes().size()) - 1;
    std::vector<int> last(graph_.values().size(), -1), first(last);  // readers
    for (int n = 0; n <= end; ++n) {
      for (ValueId in : graph_.node(n).inputs) {
        last[at(in)] = n;
        if (first[at(in)] < 0) first[at(in)] = n;
      }
    }
    for (ValueId id : graph_.outputs) last[at(id)] = end;
    for (const auto& [name, value] : graph_.metrics) last[at(value)] = end;
    const auto needed = [&](ValueId value) {
      return last[at(value)] >= 0 || graph_.updates.count(value) > 0;
    };
    for (size_t c = 0; c < folding_.classes.size(); ++c) {
      const Folding::Class& members = folding_.classes[c];
      const size_t results =
          members.nodes.empty() ? 1 : graph_.node(members.nodes[0]).outputs.size();
      for (size_t r = 0; r < results; ++r) {
        Problem::Claim claim;
        ValueId example = kNoValue;
        for (ValueId value : members.values) {
          example = value;
          const Role role = graph_.value(value).role;
          const bool passes = role == Role::batch || role == Role::scalar || !needed(value);
          claim.live.push_back({0, passes ? last[at(value)] : end});
        }
        // A held value that lies as its update makes it is that one's memory.
        const Origin from = members.nodes.empty()
                                ? origin(members.values[0])
                                : Origin{static_cast<int>(c), static_cast<int>(r)};
        const auto hub = hubs_.find(from);
        if (hub != hubs_.end()) add_copies(hub->second, members, r, first, last);
        for (NodeId n : members.nodes) {
          example = graph_.node(n).outputs[r];
          if (replaces_.count(example) > 0) continue;
          const int begin = n + (in_place(graph_.node(n), n, static_cast<int>(r), last) ? 1 : 0);
          // The hub's copy takes over from what the node makes.
          const int end_of = hub == hubs_.end()
                                 ? std::max(n, last[at(example)])
                                 : std::max(begin, copied_before(n, example, first) - 1);
          claim.live.push_back({begin, end_of});
        }
        std::erase_if(claim.live,
                      [](const Problem::Interval& live) { return live.first > live.last; });
        if (claim.live.empty()) continue;
        for (const Strategy& s : space_.strategies[at(from.item_class)])
          claim.bytes.push_back(bytes(graph_.type(example), s.out[at(from.result)]));
        problem_.nodes[at(from.item_class)].claims.push_back(std::move(claim));
      }
    }
  }

  /// The node in front of which a hub's copy of a result of `maker` is made: the next one; the
  /// first reader, where none is of the maker's phase, or where the result lies in held memory.
  int copied_before(NodeId maker, ValueId result, const std::vector<int>& first) const {
    const int reader = first[at(result)];
    if (reader < 0) return maker + 1;
    const bool waits = replaces_.count(result) > 0 ||
                       graph_.phase_of(graph_.node(reader)) != graph_.phase_of(graph_.node(maker));
    return waits ? reader : maker + 1;
  }

  /// The copies that a hub stands for, up to the last reader.
  void add_copies(const Hub& hub, const Folding::Class& members, size_t result,
                  const std::vector<int>& first, const std::vector<int>& last) {
    Problem::Claim claim;
    ValueId example = kNoValue;
    const auto live = [&](ValueId value, int from) {
      example = value;
      if (from >= 0 && last[at(value)] >= from) claim.live.push_back({from, last[at(value)]});
    };
    for (ValueId value : members.values) live(value, first[at(value)]);
    for (NodeId n : members.nodes) {
      const ValueId made = graph_.node(n).outputs[result];
      live(made, copied_before(n, made, first));
    }
    if (claim.live.empty()) return;
    for (size_t k = 0; k < hub.shardings.size(); ++k) {
      claim.bytes.push_back(
          hub.in_place[k] ? 0 : bytes(graph_.type(example), times_.sharding(hub.shardings[k])));
    }
    problem_.nodes[at(hub.node)].claims.push_back(std::move(claim));
  }

  bool in_place(const Node& node, int time, int result, const std::vector<int>& last) const {
    const OpDef* def = find_op(node.op);
    if (def == nullptr) return false;
    for (const auto& [r, operand] : def->in_place) {
      if (r != result || at(operand) >= node.inputs.size()) continue;
      const ValueId value = node.inputs[at(operand)];
      if (graph_.value(value).role == Role::computed && last[at(value)] == time &&
          graph_.type(value) == graph_.type(node.outputs[at(result)])) {
        return true;
      }
    }
    return false;
  }

  const SearchSpace& space_;
  const Graph& graph_;
  const Folding& folding_;
  const Mesh& mesh_;
  ReshardTimes& times_;
  std::vector<std::vector<Numbers>> numbers_;  // class, strategy
  std::vector<std::pair<int, int>> lies_as_;   // JointProblem's
  std::set<ValueId> replaces_;                 // take over the memory of what they update
  std::map<Origin, Hub> hubs_;
  FactoredProblem problem_;
};

/// May a value that no node makes be held so?
bool may_hold(const Graph& graph, ValueId value, const Sharding& sharding) {
  const auto is_sum = [](const Sharding::Partial& p) { return p.op == ReduceOp::sum; };
  return sharding.partial.empty() ||
         (graph.zeroed_each_step.count(value) > 0 &&
          std::all_of(sharding.partial.begin(), sharding.partial.end(), is_sum));
}

}  // namespace

void add_value_strategies(SearchSpace& space, const Graph& graph, const Folding& folding,
                          const std::map<std::string, Sharding>& pinned) {
  std::map<int, std::set<Sharding>> wants;
  const auto want = [&](ValueId value, const Sharding& sharding) {
    const int c = folding.class_of_value[at(value)];
    if (c >= 0 && may_hold(graph, value, sharding)) wants[c].insert(sharding);
  };
  for (const Folding::Class& members : folding.classes) {
    for (NodeId n : members.nodes) {
      const Node& node = graph.node(n);
      for (const Strategy& s : space.strategies[at(folding.class_of_node[at(n)])]) {
        for (size_t k = 0; k < node.inputs.size(); ++k) want(node.inputs[k], s.in[k]);
      }
    }
  }
  for (const auto& [held, next] : graph.updates) {
    if (graph.value(next).role != Role::computed) continue;
    const auto [maker, result] = folding.origin(graph, next);
    for (const Strategy& s : space.strategies[at(maker)]) want(held, s.out[at(result)]);
  }
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    const Folding::Class& members = folding.classes[c];
    if (members.values.empty()) continue;
    const Value& value = graph.value(members.values[0]);
    const Sharding whole = Sharding::replicated(value.type.shape.size());
    std::vector<Strategy>& strategies = space.strategies[c];
    const auto pin = pinned.find(value.name);
    if (pin != pinned.end()) {
      strategies = {{{}, {pin->second}, 0}};
      continue;
    }
    strategies = {{{}, {whole}, 0}};
    if (value.role == Role::scalar) continue;
    for (const Sharding& sharding : wants[static_cast<int>(c)]) {
      if (sharding != whole) strategies.push_back({{}, {sharding}, 0});
    }
  }
}

JointProblem build_problem(const SearchSpace& space, const Graph& graph, const Folding& folding,
                           const Mesh& mesh, ReshardTimes& times) {
  return Builder(space, graph, folding, mesh, times).build();
}

}  // namespace shardrun
