// Who wants a value how, what the host fills, and the reshardings between.
#include "program/partition/value_copies.h"

#include <algorithm>
#include <limits>

namespace shardrun {
namespace {

bool same(const Sharding* a, const Sharding* b) { return a == b || *a == *b; }

}  // namespace

ValueCopies::ValueCopies(Skeleton& skeleton, const Cluster& cluster)
    : skeleton_(skeleton),
      graph_(skeleton.graph),
      plan_(skeleton.plan),
      cluster_(cluster),
      states_(graph_.values().size()) {
  collect_wants();
  bind();
}

BufferId ValueCopies::find(const State& state, const Sharding* sharding) {
  for (const Copy& copy : state.copies) {
    if (same(copy.sharding, sharding)) return copy.buffer;
  }
  return -1;
}

bool ValueCopies::wants_produced(const State& state) {
  return std::any_of(state.wanted.begin(), state.wanted.end(),
                     [&](const Want& want) { return same(want.sharding, state.produced); });
}

int64_t ValueCopies::bytes_of(ValueId id, const Sharding& sharding) const {
  return max_local_bytes(graph_.type(id), sharding, plan_.mesh);
}

void ValueCopies::want(ValueId id, const Sharding* sharding, Phase phase) {
  auto& wanted = state(id).wanted;
  if (std::none_of(wanted.begin(), wanted.end(),
                   [&](const Want& other) { return same(sharding, other.sharding); }))
    wanted.push_back({sharding, phase});
}

void ValueCopies::collect_wants() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const std::string& name = graph_.values()[i].name;
    State& s = states_[i];
    const auto it = plan_.values.find(name);
    s.produced = it != plan_.values.end() ? &it->second : skeleton_.whole(static_cast<ValueId>(i));
    const auto redistributed = plan_.redistributed.find(name);
    if (redistributed != plan_.redistributed.end()) s.redistributed = &redistributed->second;
    s.regathered = plan_.regathered.count(name) > 0;
  }
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& node = graph_.nodes()[n];
    const NodePlan& np = *skeleton_.node_plans[n];
    const Phase phase = graph_.phase_of(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) want(node.inputs[i], &np.in[i], phase);
    for (size_t i = 0; i < node.outputs.size(); ++i) state(node.outputs[i]).produced = &np.out[i];
  }
  const Phase end = graph_.last_phase();
  for (ValueId id : graph_.outputs) want(id, skeleton_.end(id), end);
  for (const auto& [name, id] : graph_.metrics) want(id, skeleton_.whole(id), end);
  for (const auto& [persistent, next] : graph_.updates) {
    want(next, state(persistent).produced, graph_.phase_of(next));
    state(next).updating = true;
  }
}

void ValueCopies::bind() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    const Value& value = graph_.value(id);
    if (value.role == Role::computed) continue;
    const auto source = graph_.sources.find(id);
    const bool persistent = value.role != Role::batch && value.role != Role::scalar;
    if (states_[i].wanted.empty() && !(persistent && source != graph_.sources.end())) continue;
    const Sharding& held = *states_[i].produced;
    SR_REQUIRE(value.role != Role::scalar || held.is_replicated(), invalid_input,
               "plan: values: scalar '", value.name, "' is ", to_string(held, plan_.mesh),
               ", wanted replicated");
    SR_REQUIRE(persistent || held.partial.empty(), invalid_input, "plan: values: input '",
               value.name, "' is ", to_string(held, plan_.mesh),
               "; what the host fills cannot be partial");
    Binding b;
    b.name = value.name;
    b.role = value.role;
    b.global = value.type;
    b.sharding = held;
    b.zeroed_each_step = graph_.zeroed_each_step.count(id) > 0;
    if (source != graph_.sources.end()) b.source = source->second;
    if (is_persistent(value.role)) b.file_shape = graph_.file_shape(id);
    b.buffer = make(id);
    skeleton_.program.bindings.push_back(std::move(b));
  }
}

BufferId ValueCopies::make(ValueId value) {
  State& s = state(value);
  const BufferId buffer = skeleton_.add_buffer(value, s.produced, false);
  s.copies.push_back({s.produced, buffer});
  return buffer;
}

BufferId ValueCopies::in(ValueId value, const Sharding* sharding) {
  State& s = state(value);
  if (const BufferId found = find(s, sharding); found >= 0) return found;
  SR_REQUIRE(!s.copies.empty(), internal, "value '", graph_.value(value).name,
             "' is used before it is made");
  if (s.redistributed != nullptr && !same(s.redistributed, sharding)) in(value, s.redistributed);
  const TensorType& type = graph_.type(value);
  // From the copy that is the cheapest to start from, the first of equals: a partial sum that two
  // readers want cut differently is all-reduced once and then sliced twice, if that is what the
  // first reader made of it.
  Copy from;
  const std::vector<ReshardStep>* steps = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const Copy& copy : s.copies) {
    const std::vector<ReshardStep>& candidate = reshard(type, *copy.sharding, *sharding);
    const double seconds = reshard_seconds(candidate);
    if (seconds < least) {
      least = seconds;
      from = copy;
      steps = &candidate;
    }
  }
  for (const ReshardStep& step : *steps) {
    if (const BufferId found = find(s, &step.after); found >= 0) {
      from.buffer = found;
    } else {
      from.buffer = add_reshard(value, from.sharding, step, from.buffer);
      s.copies.push_back({&step.after, from.buffer});
    }
    from.sharding = &step.after;
  }
  return from.buffer;
}

const std::vector<ReshardStep>& ValueCopies::reshard(const TensorType& type, const Sharding& from,
                                                     const Sharding& to) {
  auto& known = skeleton_.reshards;
  const auto it = known.find(std::tie(type.dtype, type.shape, from, to));
  if (it != known.end()) return it->second;
  return known
      .emplace(std::tuple(type.dtype, type.shape, from, to),
               cheapest_reshard(type, from, to, plan_.mesh, cluster_))
      .first->second;
}

BufferId ValueCopies::add_reshard(ValueId value, const Sharding* before, const ReshardStep& move,
                                  BufferId from) {
  int64_t members = 1;
  for (int axis : move.axes) members *= plan_.mesh.axis_size(axis);
  if (members == 1) return from;
  const BufferId to = skeleton_.add_buffer(value, &move.after, true);
  StepForm form;
  form.move = &move;
  form.value = value;
  form.before = before;
  skeleton_.add_collective(value, move.kind, phase_, {from}, to, form);
  return to;
}

void ValueCopies::drop(ValueId value) {
  State& s = state(value);
  if (!s.regathered) return;
  const bool has_redistributed = s.redistributed != nullptr && find(s, s.redistributed) >= 0;
  const bool held = graph_.value(value).role != Role::computed;
  const bool keeps_produced = !has_redistributed || wants_produced(s) || held;
  std::erase_if(s.copies, [&](const Copy& copy) {
    if (same(copy.sharding, s.produced)) return !keeps_produced;
    return s.redistributed == nullptr || !same(copy.sharding, s.redistributed);
  });
}

void ValueCopies::reshard_early(ValueId value) {
  const State& s = state(value);
  if (s.wanted.empty() || wants_produced(s)) return;
  const auto now = [this](const Want& want) { return want.phase == phase_; };
  if (s.redistributed != nullptr && !s.updating) {
    if (std::any_of(s.wanted.begin(), s.wanted.end(), now) &&
        bytes_of(value, *s.redistributed) <= bytes_of(value, *s.produced))
      in(value, s.redistributed);
    return;
  }
  if (s.regathered || !std::all_of(s.wanted.begin(), s.wanted.end(), now)) return;
  int64_t bytes = 0;
  for (const Want& want : s.wanted) bytes += bytes_of(value, *want.sharding);
  if (bytes > bytes_of(value, *s.produced) && !s.updating) return;
  for (const Want& want : s.wanted) in(value, want.sharding);
}

}  // namespace shardrun
