// Data parallelism, ZeRO and Megatron-LM as demands on the search.
#include "planner/space/baselines.h"

#include <algorithm>
#include <map>

#include "base/at.h"
#include "planner/space/roles.h"

namespace shardrun {
namespace {

/// By name, the order in which they are tried.
std::map<std::string, Baseline> by_name() {
  std::map<std::string, Baseline> out;
  for (const Named<Baseline>& one : kBaselines) out.emplace(one.name, one.kind);
  return out;
}

/// Empty if one of the names is none.
std::vector<Baseline> names_in(const std::string& planner) {
  std::vector<Baseline> out;
  for (size_t begin = 0; begin <= planner.size();) {
    const size_t end = std::min(planner.find('+', begin), planner.size());
    const std::optional<Baseline> kind =
        kind_named(kBaselines, std::string_view(planner).substr(begin, end - begin));
    if (!kind) return {};
    out.push_back(*kind);
    begin = end + 1;
  }
  return out;
}

bool on_model(Baseline kind) { return kind == Baseline::megatron || kind == Baseline::megatron_sp; }

}  // namespace

std::optional<PlannerKind> planner_named(const std::string& name) {
  return names_in(name).empty() ? kind_named(kPlanners, name) : PlannerKind::baselines;
}

std::optional<std::vector<Baseline>> parse_baselines(const std::string& planner, const Mesh& mesh) {
  std::vector<Baseline> names = names_in(planner);
  if (names.empty()) return std::nullopt;
  const auto axes = static_cast<size_t>(mesh.axis_count());
  if (names.size() == 1 || axes == 0) return std::vector<Baseline>(axes, names[0]);
  SR_REQUIRE(names.size() == axes, invalid_input, "planner '", planner, "' names ", names.size(),
             " mesh axes, the mesh ", mesh.to_string(), " has ", axes,
             "; give each axis one, as --planner fsdp+megatron --mesh data=2,model=4 does");
  return names;
}

int baseline_names(const std::string& planner) {
  return static_cast<int>(names_in(planner).size());
}

std::vector<std::string> baselines_of(const Mesh& mesh) {
  std::vector<std::string> out;
  if (mesh.size() == 1) return out;
  const std::map<std::string, Baseline> known = by_name();
  for (const auto& [name, kind] : known) out.push_back(name);
  if (mesh.axis_count() != 2) return out;
  for (const auto& [name, kind] : known) {
    for (const auto& [other, its] : known) {
      if (on_model(kind) != on_model(its)) out.push_back(name + "+" + other);
    }
  }
  return out;
}

BaselineDemands::BaselineDemands(const Graph& graph, const Mesh& mesh, std::vector<Baseline> kinds,
                                 const std::function<const SpmdRule&(NodeId)>& rule_of)
    : graph_(graph),
      kinds_(std::move(kinds)),
      groups_(graph, rule_of),
      of_batch_(depends_on_batch(graph)),
      of_weights_(made_of_weights(graph)) {
  find_roles();
  find_batch_groups();
  int64_t rows = 0;
  for (ValueId id : graph.with_role(Role::batch)) {
    const Shape& shape = graph.type(id).shape;
    if (!shape.empty()) rows = std::max(rows, shape[0]);
  }
  for (size_t axis = 0; axis < kinds_.size(); ++axis) {
    const bool cuts = kinds_[axis] != Baseline::none && !on_model(kinds_[axis]) && rows > 1;
    cuts_batch_.push_back(cuts);
    if (cuts) rows = shard_range(rows, mesh.axis_size(static_cast<int>(axis)), 0).size;
  }
  if (std::any_of(kinds_.begin(), kinds_.end(), on_model)) {
    find_stream(rule_of);
    find_weights(rule_of);
    find_sequence();
  }
}

void BaselineDemands::find_roles() {
  const size_t values = graph_.values().size(), nodes = graph_.nodes().size();
  forward_.assign(nodes, false);
  std::vector<bool> needed(values, false);
  if (graph_.loss != kNoValue) needed[at(graph_.loss)] = true;
  for (size_t n = nodes; n-- > 0;) {
    const Node& node = graph_.nodes()[n];
    forward_[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                              [&](ValueId id) { return needed[at(id)]; });
    if (!forward_[n]) continue;
    for (ValueId in : node.inputs) needed[at(in)] = true;
  }
  gradients_.assign(values, false);
  for (const Node& node : graph_.nodes()) {
    if (node.phase != Phase::update) continue;
    for (ValueId in : node.inputs) {
      const Value& value = graph_.value(in);
      gradients_[at(in)] =
          value.role == Role::computed && graph_.node(value.producer).phase == Phase::micro;
    }
  }
  updates_.assign(nodes, false);
  accumulates_.assign(nodes, false);
  for (const auto& [held, next] : graph_.updates) {
    if (graph_.value(next).role != Role::computed) continue;
    const NodeId maker = graph_.value(next).producer;
    if (graph_.zeroed_each_step.count(held) > 0) {
      accumulates_[at(maker)] = true;
    } else if (graph_.node(maker).phase == Phase::update) {
      updates_[at(maker)] = true;
    }
  }
}

void BaselineDemands::find_batch_groups() {
  for (ValueId id : graph_.with_role(Role::batch)) {
    for (size_t d = 0; d < graph_.type(id).shape.size(); ++d)
      (d == 0 ? batch_ : sample_).insert(groups_.group(id, d));
  }
  for (int group : batch_) sample_.erase(group);
}

/// Does `to` depend on `from` through a product with a weight?
bool BaselineDemands::passes_product(ValueId from, ValueId to,
                                     const std::vector<bool>& product) const {
  const NodeId begin = graph_.value(from).producer;  // -1: an input
  std::map<NodeId, bool, std::greater<>> open;       // last nodes first; passed a product yet?
  const auto reach = [&](ValueId id, bool passed) {
    const NodeId maker = graph_.value(id).producer;
    if (graph_.value(id).role != Role::computed || maker <= begin) return;
    bool& known = open[maker];
    known = known || passed;
  };
  reach(to, false);
  while (!open.empty()) {
    const auto [id, before] = *open.begin();
    open.erase(open.begin());
    const bool passed = before || product[at(id)];
    for (ValueId in : graph_.node(id).inputs) {
      if (in == from && passed) return true;
      reach(in, passed);
    }
  }
  return false;
}

/// The stream between blocks is what residual connections add to: x in x + f(x), where f has a
/// product with a weight.
void BaselineDemands::find_stream(const std::function<const SpmdRule&(NodeId)>& rule_of) {
  std::vector<bool> product(graph_.nodes().size(), false);
  for (size_t n = 0; n < product.size(); ++n) {
    const Node& node = graph_.nodes()[n];
    const bool weighs = std::any_of(node.inputs.begin(), node.inputs.end(),
                                    [&](ValueId id) { return of_weights_[at(id)]; });
    if (!forward_[n] || !weighs) continue;
    for (const SpmdRule::Option& option : rule_of(static_cast<NodeId>(n)).options) {
      const auto cut = std::count_if(option.in.begin(), option.in.end(), [](const Placement& p) {
        return p.kind == Placement::Kind::shard;
      });
      const bool sums = std::any_of(option.out.begin(), option.out.end(), [](const Placement& p) {
        return p.kind == Placement::Kind::partial;
      });
      if (cut >= 2 && sums) product[n] = true;
    }
  }
  for (size_t n = 0; n < product.size(); ++n) {
    const Node& node = graph_.nodes()[n];
    const bool normalised = node.op == "batch_norm" && node.inputs.size() == 6;  // and then added
    if (!forward_[n] || !(normalised || node.op == "add")) continue;
    const ValueId sum = node.outputs[0], a = node.inputs[0], b = node.inputs[normalised ? 5 : 1];
    const TensorType& type = graph_.type(sum);
    if (type.shape.size() < 2 || !is_float(type.dtype) || graph_.type(a) != type ||
        graph_.type(b) != type || !(passes_product(a, b, product) || passes_product(b, a, product)))
      continue;
    for (size_t d = 0; d < type.shape.size(); ++d) {
      const int group = groups_.group(sum, d);
      if (batch_.count(group) == 0 && sample_.count(group) == 0) stream_.insert(group);
    }
  }
}

/// A weight meets the batch in some node. Of its dims, those that are neither the batch's nor the
/// stream's lie inside a block and are cut. Where residual connections do not tell, node after
/// node: what a product sums over is the stream, and what it leaves lies inside; the next product
/// sums over that, and leaves the stream.
void BaselineDemands::find_weights(const std::function<const SpmdRule&(NodeId)>& rule_of) {
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& node = graph_.nodes()[n];
    const bool meets = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return of_batch_[at(id)]; });
    for (size_t k = 0; forward_[n] && meets && k < node.inputs.size(); ++k) {
      if (of_weights_[at(node.inputs[k])] && graph_.type(node.inputs[k]).shape.size() >= 2)
        find_weight(node, rule_of(static_cast<NodeId>(n)), k);
    }
  }
}

void BaselineDemands::find_weight(const Node& node, const SpmdRule& rule, size_t operand) {
  std::set<int> summed, chosen, left;  // groups: of a contraction, of a table's rows, of the result
  for (const SpmdRule::Option& option : rule.options) {
    if (option.in[operand].kind != Placement::Kind::shard) continue;
    const int group = groups_.group(node.inputs[operand], at(option.in[operand].dim));
    if (batch_.count(group) + sample_.count(group) > 0) continue;
    const auto cut = std::count_if(option.in.begin(), option.in.end(), [](const Placement& p) {
      return p.kind == Placement::Kind::shard;
    });
    const bool sums = option.out[0].kind == Placement::Kind::partial;
    (!sums ? left : cut > 1 ? summed : chosen).insert(group);
  }
  const auto known = [&](int group) { return stream_.count(group) + inner_.count(group) > 0; };
  for (int group : chosen) {
    if (!known(group)) inner_.insert(group);
  }
  const auto inside = [&](int group) { return inner_.count(group) > 0; };
  const bool by_rows = std::any_of(summed.begin(), summed.end(), inside) ||
                       std::any_of(chosen.begin(), chosen.end(), inside);
  for (int group : left) {
    if (!known(group)) (by_rows ? stream_ : inner_).insert(group);
  }
  for (int group : summed) {
    if (!known(group)) stream_.insert(group);
  }
}

/// The sequence: what else the batch's values and the stream have in common.
void BaselineDemands::find_sequence() {
  for (size_t v = 0; v < graph_.values().size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    if (!of_batch_[v] || cuts(id, stream_) == 0) continue;
    for (size_t d = 0; d < graph_.type(id).shape.size(); ++d) {
      if (sample_.count(groups_.group(id, d)) > 0) sequence_.insert(groups_.group(id, d));
    }
  }
}

/// Cuts of the dims in one of `groups`.
Placements BaselineDemands::cuts(ValueId id, const std::set<int>& groups) const {
  Placements out = 0;
  const Shape& shape = graph_.type(id).shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && groups.count(groups_.group(id, d)) > 0) out |= cut_along(d);
  }
  return out;
}

Placements BaselineDemands::all_cuts(ValueId id) const {
  Placements out = 0;
  for (size_t d = 0; d < graph_.type(id).shape.size(); ++d) out |= cut_along(d);
  return out;
}

/// Along an axis that cuts the batch: its rows if it has some.
Placements BaselineDemands::data(ValueId id) const {
  const Placements rows = cuts(id, batch_);
  return rows != 0 ? rows : kReplicated | kPartial;
}

/// Cuts of the dims that lie inside a block.
Placements BaselineDemands::inner(ValueId id) const { return cuts(id, inner_); }

/// The same of a weight, which has to be cut; 0: `id` is none.
Placements BaselineDemands::weight(ValueId id) const {
  return of_weights_[at(id)] && graph_.type(id).shape.size() >= 2 ? inner(id) : 0;
}

bool BaselineDemands::is_held(ValueId id) const { return is_persistent(graph_.value(id).role); }

bool BaselineDemands::of_stream(ValueId id) const {
  return of_batch_[at(id)] && cuts(id, stream_) != 0 && cuts(id, sequence_) != 0;
}

NodeDemand BaselineDemands::node(NodeId id) const {
  const Node& node = graph_.node(id);
  NodeDemand demand;
  demand.in.assign(node.inputs.size(), std::vector<Placements>(kinds_.size(), kAnyPlacement));
  demand.out.assign(node.outputs.size(), std::vector<Placements>(kinds_.size(), kAnyPlacement));
  for (size_t axis = 0; axis < kinds_.size(); ++axis) {
    if (kinds_[axis] == Baseline::none) continue;
    on_model(kinds_[axis]) ? demand_model(id, axis, demand) : demand_data(id, axis, demand);
  }
  return demand;
}

void BaselineDemands::demand_data(NodeId id, size_t axis, NodeDemand& demand) const {
  const Node& node = graph_.node(id);
  const Baseline kind = kinds_[axis];
  const bool cuts_gradients = kind == Baseline::zero2 || kind == Baseline::fsdp;
  const bool updating = node.phase == Phase::update || accumulates_[at(id)];
  // fsdp casts and transposes weights while they are cut, and gathers them then.
  const bool prepares = kind == Baseline::fsdp && of_weights_[at(node.outputs[0])];
  const bool cut =
      updates_[at(id)] ? kind != Baseline::dp : prepares || (updating && cuts_gradients);
  const auto of = [&](ValueId value) -> Placements {
    if (cut && !graph_.type(value).shape.empty()) return all_cuts(value);
    if (updating || !cuts_batch_[axis]) return kReplicated | kPartial;
    if (is_held(value)) return kReplicated | cuts(value, batch_);
    return data(value);
  };
  for (size_t k = 0; k < node.inputs.size(); ++k) demand.in[k][axis] = of(node.inputs[k]);
  for (size_t r = 0; r < node.outputs.size(); ++r) demand.out[r][axis] = of(node.outputs[r]);
}

void BaselineDemands::demand_model(NodeId id, size_t axis, NodeDemand& demand) const {
  const Node& node = graph_.node(id);
  const bool sequence = kinds_[axis] == Baseline::megatron_sp;
  // Does the node work inside a block? Then it takes the stream whole.
  const auto inside = [&](ValueId value) { return inner(value) != 0; };
  const bool leaves = std::any_of(node.outputs.begin(), node.outputs.end(), inside);
  const bool works = leaves || std::any_of(node.inputs.begin(), node.inputs.end(), inside);
  const auto of = [&](ValueId value, bool made) -> Placements {
    const Placements own = kReplicated | kPartial | inner(value);
    if (node.phase == Phase::update) return own;
    if (weight(value) != 0) return weight(value);
    if (!sequence) return own;
    if (of_stream(value))
      return cuts(value, sequence_) | (made ? kPartial : works ? kReplicated : 0);
    return inside(value) && leaves ? own : own | cuts(value, sequence_);
  };
  for (size_t k = 0; k < node.inputs.size(); ++k) demand.in[k][axis] = of(node.inputs[k], false);
  for (size_t r = 0; r < node.outputs.size(); ++r) demand.out[r][axis] = of(node.outputs[r], true);
}

std::vector<Placements> BaselineDemands::held(ValueId id) const {
  const Value& value = graph_.value(id);
  const auto next = graph_.updates.find(id);
  // As its update makes it: nothing to demand here.
  const bool follows = next != graph_.updates.end() &&
                       graph_.value(next->second).role == Role::computed &&
                       updates_[at(graph_.value(next->second).producer)];
  const bool accumulated = graph_.zeroed_each_step.count(id) > 0;  // likewise
  std::vector<Placements> out;
  for (size_t axis = 0; axis < kinds_.size(); ++axis) {
    const Baseline kind = kinds_[axis];
    if (kind == Baseline::none || value.role == Role::scalar || value.type.shape.empty() ||
        accumulated) {
      out.push_back(kAnyPlacement);
    } else if (on_model(kind)) {
      out.push_back(value.role == Role::batch ? kReplicated
                    : weight(id) != 0         ? weight(id)
                                              : kReplicated | inner(id));
    } else if (value.role == Role::batch) {
      out.push_back(cuts_batch_[axis] ? cut_along(0) : kReplicated);
    } else if (value.role == Role::parameter) {
      out.push_back(kind != Baseline::fsdp ? kReplicated : follows ? kAnyPlacement : all_cuts(id));
    } else {
      // A tensor of the model may keep something of each sample.
      out.push_back(follows ? kAnyPlacement : kReplicated | cuts(id, batch_));
    }
  }
  return out;
}

std::vector<Placements> BaselineDemands::redistributed(ValueId id) const {
  std::vector<Placements> out;
  for (const Baseline kind : kinds_)
    out.push_back(gradients_[at(id)] && kind == Baseline::zero1 ? kReplicated | kPartial
                                                                : kAnyPlacement);
  return out;
}

}  // namespace shardrun
