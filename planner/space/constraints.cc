// Requests and baselines, checked and applied to a search space.
#include "planner/space/constraints.h"

#include <algorithm>
#include <set>

#include "base/at.h"
#include "planner/schedule/roles.h"

namespace shardrun {
namespace {

constexpr size_t kShownShardings = 12;

bool allowed(const std::vector<Placements>& masks, const Sharding& sharding) {
  for (size_t axis = 0; axis < masks.size(); ++axis) {
    if ((masks[axis] & as_mask(side_along(sharding, static_cast<int>(axis)))) == 0) return false;
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
             : p.kind == Placement::Kind::partial ? kSummands
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
  for (auto& masks : demand.in) masks[axis] |= kReplicated | kSummands;
  for (auto& masks : demand.out) masks[axis] |= kReplicated | kSummands;
}

/// Is `a` what is left of `b` when it is gathered along some axes?
bool is_gathered(const Sharding& a, const Sharding& b) {
  for (size_t d = 0; d < a.dims.size(); ++d) {
    for (int axis : a.dims[d]) {
      if (!b.dims[d].contains(axis)) return false;
    }
  }
  return a.dims != b.dims;
}

std::string list_tactics(const std::vector<std::string>& tactics) {
  std::string out;
  for (const std::string& tactic : tactics) out += str(out.empty() ? "" : " ", "--tactic ", tactic);
  return out;
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

Constraints::Constraints(const Graph& graph, const Mesh& mesh, const PlannerChoice& planner,
                         const std::vector<std::string>& tactics,
                         const std::vector<std::string>& requests,
                         const std::map<std::string, Sharding>& pinned)
    : graph_(graph),
      mesh_(mesh),
      planner_(planner),
      by_tactics_(list_tactics(tactics)),
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
  const RequestFinder finder(graph, mesh);
  for (const std::string& text : requests) request(finder.find(text));
  state_apart_ = asks_for_state_apart();
  pin_updates();
  note_asked_nodes();
  for (const auto& [id, pin] : pins_) pinned_.emplace(graph.value(id).name, pin.sharding);
  allow_empty();
}

/// Where what has to be cut, or may be, does not divide evenly.
void Constraints::allow_empty() {
  std::vector<int> rows;     // axes that cut the batch, or may
  std::vector<int> weights;  // that have to cut weights
  bool all_given = schedule_.has_value();
  for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
    const AxisCuts cuts = axes_.empty() ? AxisCuts{.free = true} : axes_[at(axis)];
    if (mesh_.axis_size(axis) == 1) continue;
    if (cuts.inner) weights.push_back(axis);
    if (cuts.free || cuts.batch || cuts.dims) rows.push_back(axis);
    all_given = all_given && !cuts.free;
  }
  for (ValueId id : graph_.with_role(Role::batch)) {
    const Shape& shape = graph_.type(id).shape;
    if (shape.empty() || leaves_none_empty(shape[0], rows, mesh_)) continue;
    // 12 samples on 5 ranks are 3, 3, 3, 3 and none, and better than 12 on each; so are 4 on 5. Who
    // is free to cut something else does not leave most ranks without a sample.
    const bool none_divides = std::none_of(rows.begin(), rows.end(), [&](int axis) {
      return leaves_none_empty(shape[0], {axis}, mesh_);
    });
    if (all_given || shape[0] >= mesh_.size() || (none_divides && 2 * shape[0] >= mesh_.size()))
      leaves_empty_ = true;
  }
  for (ValueId id : graph_.with_role(Role::parameter)) {
    for (const int64_t size : graph_.type(id).shape) {
      if (size > 1 && !leaves_none_empty(size, weights, mesh_)) leaves_empty_ = true;
    }
  }
}

void Constraints::request(const Request& request) {
  for (const Request::Lies& asked : request.lies) {
    const Pin pin{asked.sharding, request.by, true};
    if (asked.node < 0) {
      this->pin(asked.value, pin);
    } else {
      pin_operand(asked.node, asked.operand, pin);
    }
  }
  for (const Request::Cut& asked : request.cuts) {
    const auto [known, fresh] = cuts_.emplace(asked.node, Cut{asked.axes, request.by});
    SR_REQUIRE(fresh || known->second.axes == asked.axes, invalid_input, known->second.by, " and ",
               request.by, " contradict at node '", graph_.node(asked.node).name,
               "'; leave out one of the two");
  }
  for (const Request::Copies& asked : request.copies) copies_.add(graph_, asked, request.by);
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

void Constraints::pin_operand(NodeId id, size_t operand, const Pin& pin) {
  const Node& node = graph_.node(id);
  const Value& value = graph_.value(node.inputs[operand]);
  const auto [known, fresh] = operands_.emplace(std::pair(id, operand), pin);
  SR_REQUIRE(fresh || known->second.sharding == pin.sharding, invalid_input, known->second.by,
             " and ", pin.by, " contradict at node '", node.name, "', which reads '", value.name,
             "' ", to_string(known->second.sharding, mesh_), " and ",
             to_string(pin.sharding, mesh_), "; leave out one of the two");
  for (size_t d = 0; d < value.type.shape.size(); ++d) {
    if (!leaves_none_empty(value.type.shape[d], pin.sharding.dims[d], mesh_)) leaves_empty_ = true;
  }
}

void Constraints::note_asked_nodes() {
  for (const auto& [place, pin] : operands_)
    asked_nodes_[place.first] += str(place.second, to_string(pin.sharding, mesh_));
  for (const auto& [id, cut] : cuts_) {
    asked_nodes_[id] += "()";
    for (const Axes& axes : cut.axes) {
      for (int axis : axes) asked_nodes_[id] += str(axis, '+');
      asked_nodes_[id] += ',';
    }
  }
}

std::map<NodeId, std::string> Constraints::marked_nodes() const {
  std::map<NodeId, std::string> out = asked_nodes_;
  copies_.mark(graph_, mesh_, out);
  return out;
}

bool Constraints::asks(const Node& node, NodeId id) const {
  return asked_nodes_.count(id) > 0 ||
         std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId out) { return pins_.count(out) > 0; });
}

/// Do requests cut the state of a parameter that they leave whole along some axis, as ZeRO-1 does?
bool Constraints::asks_for_state_apart() const {
  for (const auto& [held, pin] : pins_) {
    const auto next = graph_.updates.find(held);
    if (graph_.value(held).role != Role::parameter || next == graph_.updates.end() ||
        graph_.value(next->second).role != Role::computed)
      continue;
    for (ValueId in : graph_.node(graph_.value(next->second).producer).inputs) {
      const auto state = pins_.find(in);
      if (graph_.value(in).role == Role::state && state != pins_.end() &&
          graph_.type(in).shape == graph_.type(held).shape &&
          is_gathered(pin.sharding, state->second.sharding))
        return true;
    }
  }
  return false;
}

/// Do requests hold a parameter in smaller parts than nodes read, as fsdp does?
bool Constraints::asks_to_gather() const {
  return std::any_of(operands_.begin(), operands_.end(), [&](const auto& operand) {
    const auto& [node, k] = operand.first;
    const ValueId id = graph_.node(node).inputs[k];
    const auto held = pins_.find(id);
    return graph_.value(id).role == Role::parameter && held != pins_.end() &&
           is_gathered(operand.second.sharding, held->second.sharding);
  });
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
  if (state_apart_) return true;
  // Whoever is free gathers what is updated in parts once a step, not in every micro-batch.
  if (!schedule_) return graph_.micro_batches > 1;
  return std::any_of(axes_.begin(), axes_.end(),
                     [](const AxisCuts& cuts) { return cuts.state && !cuts.weights; });
}

void Constraints::say_copies(SearchSpace& space) const {
  if (regathers_weights()) space.regathered = made_of_weights(graph_);
  copies_.apply(graph_, space);
}

bool Constraints::regathers_weights() const {
  if (planner_.kind == PlannerKind::propagate && copies_.empty() && asks_to_gather()) return true;
  return std::any_of(axes_.begin(), axes_.end(), [](const AxisCuts& cuts) { return cuts.weights; });
}

std::span<const Unresolved> Constraints::unresolved() const {
  return demands_ ? std::span<const Unresolved>(demands_->unresolved())
                  : std::span<const Unresolved>();
}

std::vector<Constraints::Ask> Constraints::asks_of(const Node& node, NodeId id) const {
  std::vector<Ask> out;
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    const auto pin = pins_.find(node.outputs[r]);
    if (pin == pins_.end()) continue;
    const Sharding& sharding = pin->second.sharding;
    const std::string name = graph_.value(node.outputs[r]).name, as = to_string(sharding, mesh_);
    out.push_back({pin->second.by, "leave", str("'", name, "' ", as), str("'", name, "' lie ", as),
                   [&sharding, r](const Strategy& s) { return s.out[r] == sharding; },
                   [this, r](const Strategy& s) { return to_string(s.out[r], mesh_); }});
  }
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    const auto pin = operands_.find(std::pair(id, k));
    if (pin == operands_.end()) continue;
    const Sharding& sharding = pin->second.sharding;
    const std::string name = graph_.value(node.inputs[k]).name, as = to_string(sharding, mesh_);
    out.push_back({pin->second.by, "read", str("'", name, "' ", as),
                   str("it read '", name, "' ", as),
                   [&sharding, k](const Strategy& s) { return s.in[k] == sharding; },
                   [this, k](const Strategy& s) { return to_string(s.in[k], mesh_); }});
  }
  if (const auto cut = cuts_.find(id); cut != cuts_.end()) {
    out.push_back({cut->second.by, "be cut", "in those ways", "it be cut so",
                   [&demand = cut->second.demand](const Strategy& s) { return allowed(demand, s); },
                   nullptr});
  }
  return out;
}

void Constraints::contradict_planner(const std::string& by, const std::string& value,
                                     const std::string& where) const {
  const bool tactics = !by_tactics_.empty();
  fail(ErrorKind::invalid_input, by, " and ",
       tactics ? by_tactics_ : str("--planner ", to_string(planner_)), " contradict at ", where,
       tactics ? ": the tactics do not let " : ": the planner does not let ", value,
       "; leave out the request or take another ", tactics ? "tactic" : "planner");
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
  const NodeId first = folding.classes[item_class].nodes[0];
  // What stands against a request is looked for among all.
  if (!schedule_ || asks(graph_.node(first), first)) return list(nullptr);
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

bool Constraints::are_met(size_t item_class, const std::vector<Strategy>& strategies) const {
  return !schedule_ || any_allowed(class_demand_[item_class], strategies);
}

/// Throws if no strategy does what is asked and the planner demands.
void Constraints::check_asks(const std::vector<Ask>& asks, const Node& node,
                             const NodeDemand& demand,
                             const std::vector<Strategy>& strategies) const {
  const std::string where = str("node '", node.name, "' (", node.op, ")");
  const auto some = [&](const auto& good) {
    return std::any_of(strategies.begin(), strategies.end(), good);
  };
  for (const Ask& ask : asks) {
    if (!some(ask.fits)) {
      std::set<std::string> possible;
      for (const Strategy& s : strategies) {
        if (ask.instead) possible.insert(ask.instead(s));
      }
      fail(ErrorKind::invalid_input, ask.by, ": ", where, " cannot ", ask.verb, ' ', ask.what,
           possible.empty() ? "" : str("; it can ", ask.verb, " it "), list_shardings(possible));
    }
    for (const Ask* other = asks.data(); other != &ask; ++other) {
      if (some([&](const Strategy& s) { return ask.fits(s) && other->fits(s); })) continue;
      fail(ErrorKind::invalid_input, other->by, " and ", ask.by, " contradict at ", where,
           ": it cannot ", other->verb, ' ', other->what, " and ",
           ask.verb == other->verb ? "" : ask.verb + " ", ask.what,
           " at once; leave out one of the two");
    }
  }
  for (const Ask& ask : asks) {
    if (!some([&](const Strategy& s) { return ask.fits(s) && allowed(demand, s); }))
      contradict_planner(ask.by, ask.let, where);
  }
  const bool together = some([&](const Strategy& s) {
    return allowed(demand, s) &&
           std::all_of(asks.begin(), asks.end(), [&](const Ask& ask) { return ask.fits(s); });
  });
  if (!together) contradict_planner(asks[0].by, asks[0].let, where);
}

void Constraints::apply(const Folding& folding, SearchSpace& space) {
  if (!schedule_ && pins_.empty() && asked_nodes_.empty()) return;
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    if (folding.classes[c].nodes.empty()) {
      check_held(folding.classes[c].values[0], class_demand_[c]);
    } else {
      restrict_node(folding.classes[c].nodes[0], space.strategies[c], class_demand_[c]);
    }
  }
}

/// Classes anew, in the order of their first members: those that were one and are asked the same.
void Constraints::split(Folding& folding, std::vector<SpmdRule>& rules) {
  class_demand_.assign(folding.classes.size(), {});
  const RuleOf rule_of = [&](NodeId n) -> const SpmdRule& {
    return rules[at(folding.class_of_node[at(n)])];
  };
  if (!cuts_.empty()) find_ways(rule_of);
  if (!schedule_) return;
  demands_.emplace(graph_, mesh_, *schedule_, rule_of,
                   planner_.kind == PlannerKind::propagate ? required() : Required());
  Folding split;
  split.rounds = folding.rounds;
  split.class_of_node.assign(folding.class_of_node.size(), -1);
  split.class_of_value.assign(folding.class_of_value.size(), -1);
  std::map<std::tuple<int, NodeDemand, int>, int> known;
  std::vector<SpmdRule> split_rules;
  class_demand_.clear();
  const auto class_for = [&](int old, NodeDemand demand, int maker) {
    const auto [it, fresh] =
        known.emplace(std::tuple(old, demand, maker), static_cast<int>(split.classes.size()));
    if (fresh) {
      split.classes.emplace_back();
      split_rules.push_back(rules[at(old)]);
      class_demand_.push_back(std::move(demand));
    }
    return it->second;
  };
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const auto id = static_cast<NodeId>(n);
    const int c = class_for(folding.class_of_node[n], demands_->node(id), -1);
    split.class_of_node[n] = c;
    split.classes[at(c)].nodes.push_back(id);
  }
  for (size_t v = 0; v < graph_.values().size(); ++v) {
    if (folding.class_of_value[v] < 0) continue;
    const auto id = static_cast<ValueId>(v);
    NodeDemand demand;
    demand.out = {demands_->held(id)};
    // What lies as it is made is apart where it is made otherwise.
    const int maker =
        is_made(id) ? split.class_of_node[at(graph_.value(graph_.updates.at(id)).producer)] : -1;
    const int c = class_for(folding.class_of_value[v], std::move(demand), maker);
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
      contradict_planner(
          pin->second.by,
          str("'", graph_.value(id).name, "' lie ", to_string(pin->second.sharding, mesh_)),
          str("node '", node.name, "', which reads it"));
  }
}

void Constraints::restrict_node(NodeId id, std::vector<Strategy>& strategies,
                                NodeDemand& demand) const {
  const Node& node = graph_.node(id);
  if (schedule_) relax(strategies, demand);
  const std::vector<Ask> asks = asks_of(node, id);
  const auto does_all = [&](const Strategy& s) {
    return std::all_of(asks.begin(), asks.end(), [&](const Ask& ask) { return ask.fits(s); });
  };
  const auto is_allowed = [&](const Strategy& s) { return allowed(demand, s); };
  // Where all that propagates are requests, a node may do what they ask in no way that it has, as
  // one that reads rows whole and leaves them cut.
  const bool by_requests = planner_.kind == PlannerKind::propagate && schedule_->empty();
  const bool free = by_requests && !asks.empty() && std::ranges::any_of(strategies, does_all) &&
                    std::ranges::none_of(strategies, [&](const Strategy& s) {
                      return does_all(s) && is_allowed(s);
                    });
  if (!asks.empty()) {
    if (!free) check_asks(asks, node, demand, strategies);
    std::erase_if(strategies, std::not_fn(does_all));
  }
  if (!free) std::erase_if(strategies, std::not_fn(is_allowed));
}

bool Constraints::may_redistribute(ValueId id, const Sharding& sharding) const {
  return !demands_ || allowed(demands_->redistributed(id), sharding);
}

/// Does a node make what this value is in the next step, and in the Sharding that it is held in?
bool Constraints::is_made(ValueId held) const {
  const auto next = graph_.updates.find(held);
  return next != graph_.updates.end() && graph_.value(next->second).role == Role::computed &&
         !(reshards_updates() && graph_.value(held).role == Role::parameter);
}

/// May that node make it so?
bool Constraints::may_be_made(ValueId held, const Sharding& sharding, const Folding& folding,
                              const SearchSpace& space) const {
  if (!is_made(held)) return true;
  const auto [maker, result] = folding.origin(graph_, graph_.updates.at(held));
  const std::vector<Strategy>& strategies = space.strategies[at(maker)];
  return std::any_of(strategies.begin(), strategies.end(),
                     [&, r = at(result)](const Strategy& s) { return s.out[r] == sharding; });
}

void Constraints::restrict_held(SearchSpace& space, const Folding& folding) const {
  if (!demands_) return;
  for (size_t c = 0; c < folding.classes.size(); ++c) {
    if (!folding.classes[c].nodes.empty()) continue;
    const ValueId id = folding.classes[c].values[0];
    if (pins_.count(id) > 0) continue;
    const NodeDemand& demand = class_demand_[c];
    std::vector<Strategy>& strategies = space.strategies[c];
    const auto good = [&](const Strategy& s) {
      return allowed(demand, s) && may_be_made(id, s.out[0], folding, space);
    };
    if (std::any_of(strategies.begin(), strategies.end(), good)) {
      std::erase_if(strategies, [&](const Strategy& s) { return !good(s); });
    } else if (!is_made(id)) {
      strategies = {{{}, {cut_as(id, demand.out[0])}, 0}};
    }  // else its update cannot be made as is demanded, and it lies as that makes it
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
