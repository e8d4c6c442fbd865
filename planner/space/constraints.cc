// Requests and baselines, checked and applied to a search space.
#include "planner/space/constraints.h"

#include <algorithm>

#include "base/at.h"
#include "base/regex.h"
#include "graph/passes/channels_last.h"

namespace shardrun {
namespace {

constexpr size_t kNearNames = 3, kShownShardings = 12, kComparedLetters = 200;

/// Levenshtein's distance of what begins them.
size_t distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedLetters);
  b = b.substr(0, kComparedLetters);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row[b.size()];
}

/// Names of values that `pattern` occurs in, then those that are spelled like it.
std::string near_names(const Graph& graph, const Regex& regex) {
  std::vector<std::tuple<bool, size_t, std::string>> all;
  for (const Value& value : graph.values()) {
    if (value.role == Role::computed && value.producer < 0) continue;
    all.emplace_back(!regex.occurs_in(value.name), distance(regex.pattern(), value.name),
                     value.name);
  }
  const size_t shown = std::min(kNearNames, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), all.end());
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += str(i > 0 ? ", '" : "'", std::get<2>(all[i]), "'");
  return out;
}

Placements placement_of(const Sharding& sharding, int axis) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (std::find(sharding.dims[d].begin(), sharding.dims[d].end(), axis) != sharding.dims[d].end())
      return cut_along(d);
  }
  for (const Sharding::Partial& p : sharding.partial) {
    if (p.axis == axis) return kPartial;
  }
  return kReplicated;
}

bool allowed(const std::vector<Placements>& masks, const Sharding& sharding) {
  for (size_t axis = 0; axis < masks.size(); ++axis) {
    if ((masks[axis] & placement_of(sharding, static_cast<int>(axis))) == 0) return false;
  }
  return true;
}

/// Along one axis, what an option (nullptr: none) makes of operands and results.
bool allowed(const NodeDemand& demand, size_t axis, const SpmdRule::Option* option) {
  const auto fits = [&](const std::vector<std::vector<Placements>>& masks,
                        const std::vector<Placement>* placements) {
    for (size_t i = 0; i < masks.size(); ++i) {
      Placements as = kReplicated;
      if (placements != nullptr) {
        const Placement& p = (*placements)[i];
        as = p.kind == Placement::Kind::shard     ? cut_along(at(p.dim))
             : p.kind == Placement::Kind::partial ? kPartial
                                                  : kReplicated;
      }
      if ((masks[i][axis] & as) == 0) return false;
    }
    return true;
  };
  return fits(demand.in, option == nullptr ? nullptr : &option->in) &&
         fits(demand.out, option == nullptr ? nullptr : &option->out);
}

bool allowed(const NodeDemand& demand, const Strategy& s) {
  for (size_t k = 0; k < demand.in.size(); ++k) {
    if (!allowed(demand.in[k], s.in[k])) return false;
  }
  for (size_t r = 0; r < demand.out.size(); ++r) {
    if (!allowed(demand.out[r], s.out[r])) return false;
  }
  return true;
}

bool any_allowed(const NodeDemand& demand, const std::vector<Strategy>& strategies) {
  return std::any_of(strategies.begin(), strategies.end(),
                     [&](const Strategy& s) { return allowed(demand, s); });
}

/// Whole operands and results are good enough along `axis`.
void relax_along(NodeDemand& demand, size_t axis) {
  for (auto& masks : demand.in) masks[axis] |= kReplicated | kPartial;
  for (auto& masks : demand.out) masks[axis] |= kReplicated | kPartial;
}

std::string list_shardings(const std::set<std::string>& shardings) {
  std::string out;
  size_t shown = 0;
  for (const std::string& s : shardings) {
    if (shown == kShownShardings) return out + str(" and ", shardings.size() - shown, " more");
    out += (shown++ > 0 ? ", " : "") + s;
  }
  return out;
}

}  // namespace

std::vector<std::pair<ValueId, Sharding>> requested_values(const Graph& graph, const Mesh& mesh,
                                                           const std::string& flag,
                                                           const std::string& text) {
  const std::string by = flag + " '" + text + "'";
  const size_t equals = text.rfind('=');
  SR_REQUIRE(equals != std::string::npos && equals > 0, invalid_input, by,
             ": is not REGEX=SHARDING, as 'h.0.mlp.c_fc.weight=[-,model]' is");
  const std::string pattern = text.substr(0, equals);
  Sharding sharding;
  try {
    sharding = parse_sharding(std::string_view(text).substr(equals + 1), mesh);
  } catch (const Error& error) {
    throw error.with_context(by);
  }
  // Over an axis of one rank nothing is cut.
  for (std::vector<int>& axes : sharding.dims)
    std::erase_if(axes, [&](int axis) { return mesh.axis_size(axis) == 1; });
  std::erase_if(sharding.partial,
                [&](const Sharding::Partial& p) { return mesh.axis_size(p.axis) == 1; });
  const Regex regex(flag, pattern);
  std::vector<std::pair<ValueId, Sharding>> out;
  const std::vector<std::vector<int64_t>> moved = moved_channels(graph);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.values()[v];
    const bool computed = value.role == Role::computed;
    if (computed && value.producer < 0) continue;
    const bool marked = computed && !value.name.empty() && value.name[0] == '%';
    if (!regex.matches(value.name) &&
        !(marked && regex.matches(std::string_view(value.name).substr(1))))
      continue;
    SR_REQUIRE(sharding.dims.size() == value.type.shape.size(), invalid_input, by, ": names ",
               sharding.dims.size(), " dims, value '", value.name, "' is ", value.type,
               "; give each of its ", value.type.shape.size(), " dims an axis or -");
    SR_REQUIRE(computed || sharding.partial.empty(), invalid_input, by, ": value '", value.name,
               "' is made by no node, so it cannot be partial");
    SR_REQUIRE(value.role != Role::scalar || sharding.is_replicated(), invalid_input, by,
               ": value '", value.name, "' is one number, which every rank has");
    Sharding as_it_lies = sharding;
    for (size_t d = 0; d < moved[v].size(); ++d)
      as_it_lies.dims[d] = sharding.dims[static_cast<size_t>(moved[v][d])];
    out.emplace_back(static_cast<ValueId>(v), std::move(as_it_lies));
  }
  SR_REQUIRE(!out.empty(), invalid_input, by, ": no value's whole name matches; near are ",
             near_names(graph, regex));
  return out;
}

Constraints::Constraints(const Graph& graph, const Mesh& mesh, const std::string& planner,
                         const std::vector<std::string>& tactics,
                         const std::vector<std::string>& requests,
                         const std::map<std::string, Sharding>& pinned)
    : graph_(graph),
      mesh_(mesh),
      planner_(planner),
      propagates_requests_(planner_named(planner) == PlannerKind::propagate),
      schedule_(schedule_of(planner, tactics, mesh)) {
  if (schedule_) axes_ = cuts_by_axis(*schedule_, mesh);
  for (const Value& value : graph.values()) {
    const auto it = pinned.find(value.name);
    if (it == pinned.end()) continue;
    try {
      check_sharding(it->second, mesh, value.type.shape.size());
    } catch (const Error& error) {
      throw error.with_context("pinned value '" + value.name + "'");
    }
    pin(graph.find(value.name), {it->second, "the pin of '" + value.name + "'", false});
  }
  for (const std::string& text : requests) {
    for (const auto& [id, sharding] : requested_values(graph, mesh, "--shard", text))
      pin(id, {sharding, "--shard '" + text + "'", true});
  }
  pin_updates();
  for (const auto& [id, pin] : pins_) pinned_.emplace(graph.value(id).name, pin.sharding);
  allow_empty();
}

/// Where what has to be cut, or may be, does not divide evenly.
void Constraints::allow_empty() {
  std::vector<int> rows;     // axes that cut the batch, or may
  std::vector<int> weights;  // that have to cut weights
  bool all_told = schedule_.has_value();
  for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
    const AxisCuts cuts = axes_.empty() ? AxisCuts{.free = true} : axes_[at(axis)];
    if (mesh_.axis_size(axis) == 1) continue;
    if (cuts.inner) weights.push_back(axis);
    if (cuts.free || cuts.batch || cuts.dims) rows.push_back(axis);
    all_told = all_told && !cuts.free;
  }
  for (ValueId id : graph_.with_role(Role::batch)) {
    const Shape& shape = graph_.type(id).shape;
    // 12 samples on 5 ranks are 3, 3, 3, 3 and none, and better than 12 on each. Who is free to cut
    // something else does not leave most ranks without a sample.
    if (!shape.empty() && (all_told || shape[0] >= mesh_.size()) &&
        !leaves_none_empty(shape[0], rows, mesh_))
      leaves_empty_ = true;
  }
  for (ValueId id : graph_.with_role(Role::parameter)) {
    for (const int64_t size : graph_.type(id).shape) {
      if (size > 1 && !leaves_none_empty(size, weights, mesh_)) leaves_empty_ = true;
    }
  }
}

void Constraints::pin(ValueId id, const Pin& pin) {
  const Value& value = graph_.value(id);
  const auto [known, fresh] = pins_.emplace(id, pin);
  if (!fresh && known->second.sharding != pin.sharding) {
    const std::string where = value.role == Role::computed
                                  ? str("node '", graph_.node(value.producer).name, "', ")
                                  : std::string();
    fail(ErrorKind::invalid_input, known->second.by, " and ", pin.by, " contradict at ", where,
         "value '", value.name, "': ", to_string(known->second.sharding, mesh_), " and ",
         to_string(pin.sharding, mesh_), "; leave out one of the two");
  }
  for (size_t d = 0; d < value.type.shape.size(); ++d) {
    if (!leaves_none_empty(value.type.shape[d], pin.sharding.dims[d], mesh_)) leaves_empty_ = true;
  }
}

/// What replaces a held value must lie as that does.
void Constraints::pin_updates() {
  for (const auto& [held, next] : graph_.updates) {
    const Value& value = graph_.value(next);
    if (value.role != Role::computed) continue;
    if (reshards_updates() && graph_.value(held).role == Role::parameter) continue;
    const auto own = pins_.find(held), made = pins_.find(next);
    if (own != pins_.end() && made != pins_.end()) {
      SR_REQUIRE(own->second.sharding == made->second.sharding, invalid_input, own->second.by,
                 " and ", made->second.by, " contradict at node '",
                 graph_.node(value.producer).name, "': '", value.name, "' replaces '",
                 graph_.value(held).name,
                 "' after the step, so they lie alike; leave out one of the two");
    } else if (own != pins_.end()) {
      const Pin copy = own->second;
      pins_.emplace(next, copy);
    }
  }
}

bool Constraints::reshards_updates() const {
  // Whoever is free gathers what is updated in parts once a step, not in every micro-batch.
  if (!schedule_) return graph_.micro_batches > 1;
  return std::any_of(axes_.begin(), axes_.end(),
                     [](const AxisCuts& cuts) { return cuts.state && !cuts.weights; });
}

bool Constraints::regathers_weights() const {
  return std::any_of(axes_.begin(), axes_.end(), [](const AxisCuts& cuts) { return cuts.weights; });
}

std::span<const Unresolved> Constraints::unresolved() const {
  return demands_ ? std::span<const Unresolved>(demands_->unresolved())
                  : std::span<const Unresolved>();
}

std::vector<const Constraints::Pin*> Constraints::pins_of(const Node& node) const {
  std::vector<const Pin*> out;
  for (ValueId id : node.outputs) {
    const auto it = pins_.find(id);
    out.push_back(it == pins_.end() ? nullptr : &it->second);
  }
  return out;
}

void Constraints::contradict_planner(const Value& value, const Pin& pin,
                                     const std::string& where) const {
  fail(ErrorKind::invalid_input, pin.by, " and --planner ", planner_, " contradict at ", where,
       ": the planner does not let '", value.name, "' lie ", to_string(pin.sharding, mesh_),
       "; leave out the request or take another planner");
}

/// The demand on a node with whole operands and results allowed along one axis, then along all.
std::vector<NodeDemand> Constraints::looser(const NodeDemand& demand) const {
  const auto axes = at(mesh_.axis_count());
  std::vector<NodeDemand> out;
  for (size_t axis = 0; axis < axes; ++axis) relax_along(out.emplace_back(demand), axis);
  NodeDemand& loosest = out.emplace_back(demand);
  for (size_t axis = 0; axis < axes; ++axis) relax_along(loosest, axis);
  return out;
}

/// Loosens the demand on a node until some strategy can do it.
void Constraints::relax(const std::vector<Strategy>& strategies, NodeDemand& demand) const {
  if (any_allowed(demand, strategies)) return;
  std::vector<NodeDemand> all = looser(demand);
  const auto fits = std::find_if(all.begin(), all.end() - 1, [&](const NodeDemand& other) {
    return any_allowed(other, strategies);
  });
  demand = std::move(*fits);
}

std::vector<Strategy> Constraints::strategies(
    size_t item_class, const Folding& folding,
    const std::function<std::vector<Strategy>(const MayTake&)>& list) {
  const Node& node = graph_.node(folding.classes[item_class].nodes[0]);
  const std::vector<const Pin*> pins = pins_of(node);
  const bool pinned =
      std::any_of(pins.begin(), pins.end(), [](const Pin* p) { return p != nullptr; });
  // What stands against a request is looked for among all.
  if (!schedule_ || pinned) return list(nullptr);
  const auto asked = [&](const NodeDemand& demand) {
    return list([&](int axis, const SpmdRule::Option* option) {
      return allowed(demand, static_cast<size_t>(axis), option);
    });
  };
  NodeDemand& demand = class_demand_[item_class];
  std::vector<Strategy> out = asked(demand);
  if (!out.empty()) return out;
  for (NodeDemand& other : looser(demand)) {
    out = asked(other);
    demand = std::move(other);
    if (!out.empty()) break;
  }
  return out;
}

/// Throws if no strategy does what the pins ask and the planner demands.
void Constraints::check_pins(const Node& node, const NodeDemand& demand,
                             const std::vector<Strategy>& strategies) const {
  const std::vector<const Pin*> pins = pins_of(node);
  const std::string where = str("node '", node.name, "' (", node.op, ")");
  const auto fits = [&](const Strategy& s, size_t r) {
    return pins[r] == nullptr || s.out[r] == pins[r]->sharding;
  };
  const auto some = [&](const auto& good) {
    return std::any_of(strategies.begin(), strategies.end(), good);
  };
  for (size_t r = 0; r < pins.size(); ++r) {
    if (pins[r] == nullptr) continue;
    const Value& value = graph_.value(node.outputs[r]);
    if (!some([&](const Strategy& s) { return fits(s, r); })) {
      std::set<std::string> possible;
      for (const Strategy& s : strategies) possible.insert(to_string(s.out[r], mesh_));
      fail(ErrorKind::invalid_input, pins[r]->by, ": ", where, " cannot leave '", value.name, "' ",
           to_string(pins[r]->sharding, mesh_), "; it can leave it ", list_shardings(possible));
    }
    if (!some([&](const Strategy& s) { return fits(s, r) && allowed(demand, s); }))
      contradict_planner(value, *pins[r], where);
    for (size_t q = 0; q < r; ++q) {
      if (pins[q] == nullptr || some([&](const Strategy& s) { return fits(s, r) && fits(s, q); }))
        continue;
      fail(ErrorKind::invalid_input, pins[q]->by, " and ", pins[r]->by, " contradict at ", where,
           ": it cannot leave '", graph_.value(node.outputs[q]).name, "' ",
           to_string(pins[q]->sharding, mesh_), " and '", value.name, "' ",
           to_string(pins[r]->sharding, mesh_), " at once; leave out one of the two");
    }
  }
  const bool together = some([&](const Strategy& s) {
    for (size_t r = 0; r < pins.size(); ++r) {
      if (!fits(s, r)) return false;
    }
    return allowed(demand, s);
  });
  if (together) return;
  for (size_t r = 0; r < pins.size(); ++r) {
    if (pins[r] != nullptr) contradict_planner(graph_.value(node.outputs[r]), *pins[r], where);
  }
}

void Constraints::apply(const Folding& folding, SearchSpace& space) {
  if (!schedule_ && pins_.empty()) return;
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    if (folding.classes[c].nodes.empty()) {
      check_held(folding.classes[c].values[0], class_demand_[c]);
    } else {
      restrict_node(graph_.node(folding.classes[c].nodes[0]), space.strategies[c],
                    class_demand_[c]);
    }
  }
}

/// Classes anew, in the order of their first members: those that were one and are asked the same.
void Constraints::split(Folding& folding, std::vector<SpmdRule>& rules) {
  class_demand_.assign(folding.classes.size(), {});
  if (!schedule_) return;
  std::vector<std::pair<ValueId, Sharding>> required;
  if (propagates_requests_) {
    for (const auto& [id, pin] : pins_) required.emplace_back(id, pin.sharding);
  }
  const RuleOf rule_of = [&](NodeId n) -> const SpmdRule& {
    return rules[at(folding.class_of_node[at(n)])];
  };
  demands_.emplace(graph_, mesh_, *schedule_, rule_of, required);
  Folding split;
  split.rounds = folding.rounds;
  split.class_of_node.assign(folding.class_of_node.size(), -1);
  split.class_of_value.assign(folding.class_of_value.size(), -1);
  std::map<std::tuple<int, NodeDemand>, int> known;
  std::vector<SpmdRule> split_rules;
  class_demand_.clear();
  const auto class_for = [&](int old, NodeDemand demand) {
    const auto [it, fresh] =
        known.emplace(std::tuple(old, demand), static_cast<int>(split.classes.size()));
    if (fresh) {
      split.classes.emplace_back();
      split_rules.push_back(rules[at(old)]);
      class_demand_.push_back(std::move(demand));
    }
    return it->second;
  };
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const auto id = static_cast<NodeId>(n);
    const int c = class_for(folding.class_of_node[n], demands_->node(id));
    split.class_of_node[n] = c;
    split.classes[at(c)].nodes.push_back(id);
  }
  for (size_t v = 0; v < graph_.values().size(); ++v) {
    if (folding.class_of_value[v] < 0) continue;
    const auto id = static_cast<ValueId>(v);
    NodeDemand demand;
    demand.out = {demands_->held(id)};
    const int c = class_for(folding.class_of_value[v], std::move(demand));
    split.class_of_value[v] = c;
    split.classes[at(c)].values.push_back(id);
  }
  folding = std::move(split);
  rules = std::move(split_rules);
}

/// A value that no node makes can be held in any Sharding, but for what the planner demands.
void Constraints::check_held(ValueId id, const NodeDemand& demand) const {
  const auto pin = pins_.find(id);
  if (pin == pins_.end() || !pin->second.requested || demand.out.empty() ||
      allowed(demand.out[0], pin->second.sharding))
    return;
  for (const Node& node : graph_.nodes()) {
    if (std::find(node.inputs.begin(), node.inputs.end(), id) != node.inputs.end())
      contradict_planner(graph_.value(id), pin->second,
                         str("node '", node.name, "', which reads it"));
  }
}

void Constraints::restrict_node(const Node& node, std::vector<Strategy>& strategies,
                                NodeDemand& demand) const {
  if (schedule_) relax(strategies, demand);
  check_pins(node, demand, strategies);
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    const auto pin = pins_.find(node.outputs[r]);
    if (pin == pins_.end()) continue;
    const Sharding& sharding = pin->second.sharding;
    std::erase_if(strategies, [&](const Strategy& s) { return s.out[r] != sharding; });
    demand.out.resize(node.outputs.size());
    demand.out[r].assign(at(mesh_.axis_count()), 0);
    for (int axis = 0; axis < mesh_.axis_count(); ++axis)
      demand.out[r][at(axis)] = placement_of(sharding, axis);
  }
  std::erase_if(strategies, [&](const Strategy& s) { return !allowed(demand, s); });
}

bool Constraints::may_redistribute(ValueId id, const Sharding& sharding) const {
  return !demands_ || allowed(demands_->redistributed(id), sharding);
}

void Constraints::restrict_held(SearchSpace& space, const Folding& folding) const {
  if (!demands_) return;
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    if (!folding.classes[c].nodes.empty()) continue;
    const ValueId id = folding.classes[c].values[0];
    if (pins_.count(id) > 0) continue;
    const NodeDemand& demand = class_demand_[c];
    std::vector<Strategy>& strategies = space.strategies[c];
    if (!any_allowed(demand, strategies)) strategies = {{{}, {cut_as(id, demand.out[0])}, 0}};
    if (any_allowed(demand, strategies))
      std::erase_if(strategies, [&](const Strategy& s) { return !allowed(demand, s); });
  }
}

/// A Sharding that nobody asked for but the planner: axis by axis the largest dim that may be cut,
/// if all its ranks get something.
Sharding Constraints::cut_as(ValueId id, const std::vector<Placements>& masks) const {
  const Shape& shape = graph_.type(id).shape;
  Sharding out = Sharding::replicated(shape.size());
  std::vector<int64_t> left(shape.begin(), shape.end());
  for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
    if ((masks[at(axis)] & kReplicated) != 0) continue;
    size_t best = shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      const bool may = (masks[at(axis)] & cut_along(d)) != 0 && left[d] >= mesh_.axis_size(axis);
      if (may && (best == shape.size() || left[d] > left[best])) best = d;
    }
    if (best == shape.size()) continue;
    out.dims[best].push_back(axis);
    left[best] = shard_range(left[best], mesh_.axis_size(axis), 0).size;
  }
  return out;
}

}  // namespace shardrun
