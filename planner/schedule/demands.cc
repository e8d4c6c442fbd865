// What the cuts of a schedule demand of nodes and held values, axis by axis.
#include "planner/schedule/demands.h"

#include <algorithm>
#include <map>

#include "base/at.h"
#include "base/regex.h"

namespace shardrun {
namespace {

constexpr Placements kUncut = kReplicated | kSummands;

bool says_something(const std::vector<Placements>& masks) {
  return std::any_of(masks.begin(), masks.end(), [](Placements mask) { return mask != kUncut; });
}

}  // namespace

int side_along(const Sharding& sharding, int axis) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (sharding.dims[d].contains(axis)) return static_cast<int>(d);
  }
  const bool partial = std::any_of(sharding.partial.begin(), sharding.partial.end(),
                                   [&](const Sharding::Partial& one) { return one.axis == axis; });
  return partial ? Way::kPartial : Way::kWhole;
}

Placements as_mask(int side) {
  return side >= 0 ? cut_along(at(side)) : side == Way::kPartial ? kSummands : kReplicated;
}

Demands::Demands(const Graph& graph, const Mesh& mesh, const Schedule& schedule,
                 const RuleOf& rule_of, const Required& required)
    : graph_(graph),
      roles_(step_roles(graph)),
      colours_(graph, rule_of),
      dims_(find_batch_dims(graph, colours_)) {
  bool of_blocks = false;
  for (const AxisCuts& cuts : cuts_by_axis(schedule, mesh)) {
    const bool trivial = mesh.axis_size(static_cast<int>(axes_.size())) == 1;
    axes_.push_back({cuts, trivial, false, {}, std::nullopt});
    of_blocks = of_blocks || cuts.inner || cuts.sequence;
  }
  if (of_blocks) dims_ = find_named_dims(graph, colours_, rule_of, roles_);
  const auto add_voice = [&](int axis, Voice voice) {
    std::vector<Voice>& voices = axes_[at(axis)].voices;
    if (std::find(voices.begin(), voices.end(), voice) == voices.end()) voices.push_back(voice);
  };
  if (!required.empty()) {
    for (int axis = 0; axis < mesh.axis_count(); ++axis) add_voice(axis, Voice::dims);
  }
  for (const Cut& cut : schedule) {
    SR_REQUIRE(
        cut.target != Target::sequence || cut.digits.empty() || !axes_[at(cut.axis)].cuts.inner,
        invalid_input, "--tactic '", cut.text, "': with inner on the same axis nothing is ",
        "left to resolve; leave out what stands behind the axis");
    switch (cut.target) {
      case Target::automatic: break;
      case Target::batch:
      case Target::state:
      case Target::gradients:
      case Target::weights: add_voice(cut.axis, Voice::data); break;
      case Target::inner: add_voice(cut.axis, Voice::model); break;
      case Target::sequence:
        add_voice(cut.axis, axes_[at(cut.axis)].cuts.inner ? Voice::model : Voice::dims);
        break;
      case Target::colours:
      case Target::value:
      case Target::node: add_voice(cut.axis, Voice::dims); break;
    }
  }
  for (const auto& [value, sharding] : required.held) required_held_.insert(value);
  count_rows(mesh);
  propagate(schedule, mesh, required);
}

void Demands::count_rows(const Mesh& mesh) {
  int64_t rows = 0;
  for (ValueId id : graph_.with_role(Role::batch)) {
    const Shape& shape = graph_.type(id).shape;
    if (!shape.empty()) rows = std::max(rows, shape[0]);
  }
  for (size_t a = 0; a < axes_.size(); ++a) {
    axes_[a].cuts_batch = axes_[a].cuts.batch && rows > 1;
    if (axes_[a].cuts_batch) rows = shard_range(rows, mesh.axis_size(static_cast<int>(a)), 0).size;
  }
}

void Demands::start(const Required& required, int axis, Propagation& propagation) const {
  for (const auto& [value, sharding] : required.values)
    propagation.cut(value, side_along(sharding, axis));
  for (const Required::Operand& one : required.operands)
    propagation.read(one.node, one.operand, side_along(one.sharding, axis));
  for (const auto& [node, ways] : required.nodes) propagation.take(node, ways[at(axis)]);
}

/// Nodes that make what is held take the way that leaves it so.
void Demands::take_updates(const Required& required, int axis, Propagation& propagation) const {
  std::map<NodeId, std::map<ValueId, int>> asked;  // of results
  for (const auto& [value, sharding] : required.held) {
    const NodeId maker = graph_.value(value).producer;
    if (maker >= 0) asked[maker][value] = side_along(sharding, axis);
  }
  for (const auto& [node, sides] : asked) {
    const std::vector<ValueId>& results = graph_.node(node).outputs;
    const auto fits = [&](const Way& way) {
      for (size_t r = 0; r < results.size(); ++r) {
        const auto side = sides.find(results[r]);
        if (side != sides.end() && side->second != way.out[r]) return false;
      }
      return true;
    };
    const auto whole = [](const auto& side) { return side.second == Way::kWhole; };
    const auto ways = colours_.ways(node);
    const auto way = std::find_if(ways.begin(), ways.end(), fits);
    if (std::all_of(sides.begin(), sides.end(), whole)) {
      propagation.take_alone(node, Propagation::kWhole);
    } else if (way != ways.end()) {
      propagation.take_alone(node, static_cast<int>(way - ways.begin()));
    }
  }
}

/// What is held is known, and what else the update does with a gradient that it takes in parts,
/// such as its norm, it does with these parts.
void Demands::place_held(const Required& required, int axis, Propagation& propagation) const {
  std::map<ValueId, int> in_parts;
  for (const auto& [value, sharding] : required.held) {
    propagation.cut(value, side_along(sharding, axis));
    const NodeId maker = graph_.value(value).producer;
    if (maker < 0 || propagation.way(maker) < 0) continue;
    const Way& way = colours_.ways(maker)[at(propagation.way(maker))];
    for (size_t k = 0; k < way.in.size(); ++k) {
      const ValueId in = graph_.node(maker).inputs[k];
      if (way.in[k] >= 0 && roles_.gradients[at(in)]) in_parts.emplace(in, way.in[k]);
    }
  }
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& node = graph_.nodes()[n];
    const auto id = static_cast<NodeId>(n);
    if (node.phase != Phase::update || propagation.way(id) != Propagation::kOpen) continue;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const auto part = in_parts.find(node.inputs[k]);
      if (part != in_parts.end()) propagation.read(id, k, part->second);
    }
  }
}

void Demands::propagate(const Schedule& schedule, const Mesh& mesh, const Required& required) {
  for (int a = 0; a < mesh.axis_count(); ++a) {
    Axis& axis = axes_[at(a)];
    if (axis.trivial ||
        std::find(axis.voices.begin(), axis.voices.end(), Voice::dims) == axis.voices.end())
      continue;
    Propagation& propagation = axis.propagation.emplace(graph_, colours_);
    start(required, a, propagation);
    take_updates(required, a, propagation);
    propagation.run();
    place_held(required, a, propagation);
    propagation.run();
    for (const Cut& cut : schedule) {
      if (cut.axis != a) continue;
      if (cut.target == Target::sequence && !axis.cuts.inner) {
        for (int colour : dims_.sequence) {
          check_digits(cut, colour);
          propagation.cut_colour(colour, cut.digits);
        }
      } else if (cut.target == Target::colours || cut.target == Target::value ||
                 cut.target == Target::node) {
        start(cut, propagation);
      } else {
        continue;
      }
      propagation.run(cut.digits);
    }
    for (const auto& [node, ways] : propagation.unresolved()) {
      Unresolved& one = unresolved_.emplace_back(Unresolved{node, a, {}});
      for (int way : ways) one.ways.emplace_back(way, colours_.ways(node)[at(way)]);
    }
  }
}

/// A schedule's digits resolve the sets of conflicts that the colour's group has.
void Demands::check_digits(const Cut& cut, int colour) const {
  if (cut.digits.empty()) return;
  const int group = colours_.group(colour);
  const std::vector<int> own = group < 0 ? std::vector<int>() : colours_.digits_of(group);
  SR_REQUIRE(cut.digits.size() <= own.size(), invalid_input, "--tactic '", cut.text,
             "': digits given: ", cut.digits.size(),
             ", sets of conflicts to resolve: ", own.size());
  for (size_t i = 0; i < cut.digits.size(); ++i) {
    const int resolutions = colours_.resolutions(own[i]);
    SR_REQUIRE(cut.digits[i] < resolutions, invalid_input, "--tactic '", cut.text, "': digit ",
               cut.digits[i], ": there are ", resolutions, " resolutions, 0 to ", resolutions - 1);
  }
}

/// What a tactic says of colours, values or nodes.
void Demands::start(const Cut& cut, Propagation& propagation) const {
  const std::string by = "--tactic '" + cut.text + "'";
  if (cut.target == Target::colours) {
    const auto groups = static_cast<int>(colours_.alike().size());
    SR_REQUIRE(cut.number < groups, invalid_input, by, ": there are groups #0 to #", groups - 1);
    for (int colour : colours_.alike()[at(cut.number)]) {
      check_digits(cut, colour);
      propagation.cut_colour(colour, cut.digits);
    }
    return;
  }
  const Regex regex("--tactic", cut.name);
  bool found = false;
  if (cut.target == Target::value) {
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      const Value& value = graph_.values()[v];
      const bool marked = !value.name.empty() && value.name[0] == '%';
      if ((value.role == Role::computed && value.producer < 0) ||
          !(regex.matches(value.name) ||
            (marked && regex.matches(std::string_view(value.name).substr(1)))))
        continue;
      found = true;
      SR_REQUIRE(at(cut.number) < value.type.shape.size(), invalid_input, by, ": value '",
                 value.name, "' is ", value.type, ", it has no dim ", cut.number);
      check_digits(cut, colours_.of(static_cast<ValueId>(v), at(cut.number)));
      SR_REQUIRE(propagation.cut(static_cast<ValueId>(v), cut.number), invalid_input, by,
                 ": value '", value.name, "' cannot be cut along dim ", cut.number,
                 ": its node has no such way, or an earlier tactic says otherwise");
    }
  } else {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (!regex.matches(node.name)) continue;
      found = true;
      const auto ways = static_cast<int>(colours_.ways(static_cast<NodeId>(n)).size());
      SR_REQUIRE(cut.number < ways, invalid_input, by, ": node '", node.name, "' (", node.op,
                 ") has ", ways, " ways to be cut");
      if (cut.number >= 0)
        check_digits(cut, colours_.ways(static_cast<NodeId>(n))[at(cut.number)].colour);
      SR_REQUIRE(propagation.take(static_cast<NodeId>(n), cut.number), invalid_input, by,
                 ": an earlier tactic cuts node '", node.name, "' otherwise");
    }
  }
  SR_REQUIRE(found, invalid_input, by, ": no ", cut.target == Target::value ? "value" : "node",
             " has that name");
}

/// Cuts of the dims of one of `colours`.
Placements Demands::cuts(ValueId id, const std::set<int>& colours) const {
  Placements out = 0;
  const Shape& shape = graph_.type(id).shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && colours.count(colours_.of(id, d)) > 0) out |= cut_along(d);
  }
  return out;
}

Placements Demands::all_cuts(ValueId id) const {
  Placements out = 0;
  for (size_t d = 0; d < graph_.type(id).shape.size(); ++d) out |= cut_along(d);
  return out;
}

/// Along an axis that cuts the batch: its rows if it has some.
Placements Demands::data(ValueId id) const {
  const Placements rows = cuts(id, dims_.batch);
  return rows != 0 ? rows : kUncut;
}

/// Cuts of the dims that lie inside a block.
Placements Demands::inner(ValueId id) const { return cuts(id, dims_.inner); }

/// The same of a weight, which has to be cut; 0: `id` is none.
Placements Demands::weight(ValueId id) const {
  return roles_.of_weights[at(id)] && graph_.type(id).shape.size() >= 2 ? inner(id) : 0;
}

bool Demands::is_held(ValueId id) const { return is_persistent(graph_.value(id).role); }

bool Demands::of_stream(ValueId id) const {
  return roles_.of_batch[at(id)] && cuts(id, dims_.stream) != 0 && cuts(id, dims_.sequence) != 0;
}

NodeDemand Demands::node(NodeId id) const {
  const Node& node = graph_.node(id);
  NodeDemand demand;
  demand.in.assign(node.inputs.size(), std::vector<Placements>(axes_.size(), kAnyPlacement));
  demand.out.assign(node.outputs.size(), std::vector<Placements>(axes_.size(), kAnyPlacement));
  for (size_t a = 0; a < axes_.size(); ++a) {
    if (axes_[a].trivial) continue;
    const Placements unsaid = axes_[a].cuts.free        ? kAnyPlacement
                              : axes_[a].cuts_nothing() ? kReplicated
                                                        : kUncut;
    Placed placed{std::vector<Placements>(node.inputs.size(), unsaid),
                  std::vector<Placements>(node.outputs.size(), unsaid)};
    for (Voice voice : axes_[a].voices) {
      Placed said = this->placed(voice, id, axes_[a]);
      if (!says_something(said.in) && !says_something(said.out)) continue;
      placed = std::move(said);
      break;
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) demand.in[k][a] = placed.in[k];
    for (size_t r = 0; r < node.outputs.size(); ++r) demand.out[r][a] = placed.out[r];
  }
  return demand;
}

Demands::Placed Demands::placed(Voice voice, NodeId id, const Axis& axis) const {
  switch (voice) {
    case Voice::data: return by_data(id, axis);
    case Voice::model: return by_model(id, axis);
    case Voice::dims: return by_dims(id, axis);
  }
  return {};
}

Demands::Placed Demands::by_data(NodeId id, const Axis& axis) const {
  const Node& node = graph_.node(id);
  const bool updating = node.phase == Phase::update || roles_.accumulates[at(id)];
  // Weights are cast and transposed while they are cut, and gathered then.
  const bool prepares = axis.cuts.weights && roles_.of_weights[at(node.outputs[0])];
  const bool cut =
      roles_.updates[at(id)] ? axis.cuts.state : prepares || (updating && axis.cuts.gradients);
  const auto of = [&](ValueId value) -> Placements {
    if (cut && !graph_.type(value).shape.empty()) return all_cuts(value);
    if (updating || !axis.cuts_batch) return kUncut;
    if (is_held(value)) return kReplicated | cuts(value, dims_.batch);
    return data(value);
  };
  Placed out;
  for (ValueId value : node.inputs) out.in.push_back(of(value));
  for (ValueId value : node.outputs) out.out.push_back(of(value));
  return out;
}

Demands::Placed Demands::by_model(NodeId id, const Axis& axis) const {
  const Node& node = graph_.node(id);
  // Does the node work inside a block? Then it takes the stream whole.
  const auto inside = [&](ValueId value) { return inner(value) != 0; };
  const bool leaves = std::any_of(node.outputs.begin(), node.outputs.end(), inside);
  const bool works = leaves || std::any_of(node.inputs.begin(), node.inputs.end(), inside);
  const auto of = [&](ValueId value, bool made) -> Placements {
    const Placements own = kUncut | inner(value);
    if (node.phase == Phase::update) return own;
    if (weight(value) != 0) return weight(value);
    if (!axis.cuts.sequence) return own;
    if (of_stream(value))
      return cuts(value, dims_.sequence) | (made ? kSummands : works ? kReplicated : 0);
    return inside(value) && leaves ? own : own | cuts(value, dims_.sequence);
  };
  Placed out;
  for (ValueId value : node.inputs) out.in.push_back(of(value, false));
  for (ValueId value : node.outputs) out.out.push_back(of(value, true));
  return out;
}

Demands::Placed Demands::by_dims(NodeId id, const Axis& axis) const {
  const Node& node = graph_.node(id);
  Placed out{std::vector<Placements>(node.inputs.size(), kUncut),
             std::vector<Placements>(node.outputs.size(), kUncut)};
  const int way = axis.propagation->way(id);
  if (way == Propagation::kWhole) {
    for (Placements& mask : out.in) mask = kReplicated;
    for (Placements& mask : out.out) mask = kReplicated;
  }
  if (way < 0) return out;
  const Way& cut = colours_.ways(id)[at(way)];
  for (size_t k = 0; k < cut.in.size(); ++k) out.in[k] = as_mask(cut.in[k]);
  for (size_t r = 0; r < cut.out.size(); ++r) out.out[r] = as_mask(cut.out[r]);
  return out;
}

std::vector<Placements> Demands::held(ValueId id) const {
  const Value& value = graph_.value(id);
  std::vector<Placements> out;
  for (const Axis& axis : axes_) {
    // Gradients that add up over micro-batches lie as what makes them. What is required to lie so
    // has nodes that read it otherwise.
    if (axis.trivial || required_held_.count(id) > 0 || value.role == Role::scalar ||
        value.type.shape.empty() || graph_.zeroed_each_step.count(id) > 0) {
      out.push_back(kAnyPlacement);
      continue;
    }
    Placements mask = kReplicated;
    for (Voice voice : axis.voices) {
      mask = held(voice, id, axis);
      if (mask != kReplicated) break;
    }
    out.push_back(mask == kReplicated && axis.cuts.free ? kAnyPlacement : mask);
  }
  return out;
}

Placements Demands::held(Voice voice, ValueId id, const Axis& axis) const {
  const Value& value = graph_.value(id);
  if (voice == Voice::dims) {
    const int dim = axis.propagation->dim(id);
    return dim >= 0 ? cut_along(at(dim)) : kReplicated;
  }
  if (voice == Voice::model) {
    return value.role == Role::batch ? kReplicated
           : weight(id) != 0         ? weight(id)
                                     : kReplicated | inner(id);
  }
  const auto next = graph_.updates.find(id);
  // As its update makes it: nothing to demand here.
  const bool follows = next != graph_.updates.end() &&
                       graph_.value(next->second).role == Role::computed &&
                       roles_.updates[at(graph_.value(next->second).producer)];
  if (value.role == Role::batch) return axis.cuts_batch ? cut_along(0) : kReplicated;
  if (value.role == Role::parameter)
    return !axis.cuts.weights ? kReplicated : follows ? kAnyPlacement : all_cuts(id);
  // A tensor of the model may keep something of each sample.
  return follows ? kAnyPlacement : kReplicated | cuts(id, dims_.batch);
}

std::vector<Placements> Demands::redistributed(ValueId id) const {
  std::vector<Placements> out;
  for (const Axis& axis : axes_) {
    const bool gradient = roles_.gradients[at(id)];
    out.push_back(gradient && axis.cuts.gradients ? ~kReplicated
                  : gradient && axis.cuts.state   ? kUncut
                  : axis.cuts_nothing()           ? kReplicated
                                                  : kAnyPlacement);
  }
  return out;
}

}  // namespace shardrun
