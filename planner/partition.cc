// Partition: Graph and Plan into one rank's Program.
//
// Steps come out in one order on every rank, since nothing below looks at the rank but boxes: that,
// and collectives being called in step order, is why no two ranks can wait for each other.
#include "planner/partition.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "graph/op_def.h"
#include "planner/halo.h"
#include "planner/reshard.h"

namespace shardrun {
namespace {

class Partitioner {
 public:
  Partitioner(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank)
      : graph_(graph),
        plan_(plan),
        cluster_(cluster),
        mesh_(plan.mesh),
        rank_(rank),
        coordinates_(mesh_.coordinates(rank)) {
    SR_REQUIRE(rank >= 0 && rank < mesh_.size(), internal, "rank ", rank, " is not in the mesh ",
               mesh_.to_string());
    program_.mesh = mesh_;
    program_.rank = rank;
  }

  Program run() {
    collect_wants();
    make_bindings();
    const bool has_update = std::any_of(graph_.nodes().begin(), graph_.nodes().end(),
                                        [](const Node& n) { return n.phase == Phase::update; });
    last_phase_ = has_update ? Phase::update : Phase::micro;
    for (const Node& node : graph_.nodes()) {
      if (node.phase == Phase::micro) {
        SR_REQUIRE(phase_ == Phase::micro, internal, "node '", node.name,
                   "': a micro node stands behind an update node");
      } else if (phase_ == Phase::micro) {
        finish_phase();
        phase_ = Phase::update;
      }
      add_node(node);
    }
    finish_phase();
    merge_updates();
    drop_unused_buffers();
    return std::move(program_);
  }

  void add_cuts(Cuts& cuts) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      const Shape& shape = graph_.values()[i].type.shape;
      for (const Copy& copy : values_[i].copies) {
        for (size_t d = 0; d < shape.size(); ++d) {
          if (!copy.sharding.dims[d].empty()) cuts.emplace(shape[d], copy.sharding.dims[d]);
        }
      }
    }
  }

 private:
  struct Copy {
    Sharding sharding = {};
    BufferId buffer = -1;
  };
  struct ValueState {
    Sharding produced;
    std::vector<Copy> copies;      // the first is as produced
    std::vector<Sharding> wanted;  // distinct
  };
  struct Update {
    BufferId persistent, next;
    std::string name;
  };

  ValueState& state(ValueId id) { return values_[static_cast<size_t>(id)]; }
  const TensorType& local_type(BufferId id) const {
    return program_.buffers[static_cast<size_t>(id)].type;
  }
  Box box_of(const Shape& shape, const Sharding& sharding) const {
    return local_box(shape, sharding, mesh_, coordinates_);
  }
  int64_t bytes_of(ValueId id, const Sharding& sharding) const {
    return max_local_count(graph_.type(id).shape, sharding, mesh_) * size_of(graph_.type(id).dtype);
  }
  Phase phase_of(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.producer < 0 ? last_phase_ : graph_.node(value.producer).phase;
  }
  const NodePlan& node_plan(const Node& node) const {
    const auto it = plan_.nodes.find(node.name);
    SR_REQUIRE(it != plan_.nodes.end(), invalid_input, "plan: nodes: '", node.name, "' is missing");
    SR_REQUIRE(
        it->second.in.size() == node.inputs.size() && it->second.out.size() == node.outputs.size(),
        invalid_input, "plan: nodes: '", node.name, "' has ", it->second.in.size(),
        " operands and ", it->second.out.size(), " results, the graph has ", node.inputs.size(),
        " and ", node.outputs.size());
    return it->second;
  }

  void want(ValueId id, const Sharding& sharding) {
    auto& wanted = state(id).wanted;
    if (std::find(wanted.begin(), wanted.end(), sharding) == wanted.end())
      wanted.push_back(sharding);
  }

  void collect_wants() {
    values_.resize(graph_.values().size());
    for (size_t i = 0; i < values_.size(); ++i) {
      const Value& value = graph_.values()[i];
      const auto it = plan_.values.find(value.name);
      if (it != plan_.values.end()) {
        values_[i].produced = it->second;
      } else {
        values_[i].produced = Sharding::replicated(value.type.shape.size());
      }
    }
    for (const Node& node : graph_.nodes()) {
      const NodePlan& np = node_plan(node);
      for (size_t i = 0; i < node.inputs.size(); ++i) want(node.inputs[i], np.in[i]);
      for (size_t i = 0; i < node.outputs.size(); ++i) state(node.outputs[i]).produced = np.out[i];
    }
    auto want_whole = [&](ValueId id) {
      want(id, Sharding::replicated(graph_.type(id).shape.size()));
    };
    for (ValueId id : graph_.outputs) want_whole(id);
    for (const auto& [name, id] : graph_.metrics) want_whole(id);
    for (const auto& [persistent, next] : graph_.updates) {
      want(next, state(persistent).produced);
      updating_.insert(next);
    }
  }

  BufferId new_buffer(ValueId value, const Sharding& sharding, bool copy) {
    const Value& v = graph_.value(value);
    Buffer buffer;
    buffer.name = copy ? v.name + "@" + to_string(sharding, mesh_) : v.name;
    buffer.type = {v.type.dtype, box_shape(box_of(v.type.shape, sharding))};
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }

  void make_bindings() {
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto id = static_cast<ValueId>(i);
      const Value& value = graph_.value(id);
      if (value.role == Role::computed) continue;
      const auto source = graph_.sources.find(id);
      const bool persistent = value.role != Role::batch && value.role != Role::scalar;
      if (values_[i].wanted.empty() && !(persistent && source != graph_.sources.end())) continue;
      SR_REQUIRE(value.role != Role::scalar || values_[i].produced.is_replicated(), invalid_input,
                 "plan: values: scalar '", value.name, "' is ",
                 to_string(values_[i].produced, mesh_), ", wanted replicated");
      SR_REQUIRE(persistent || values_[i].produced.partial.empty(), invalid_input,
                 "plan: values: input '", value.name, "' is ",
                 to_string(values_[i].produced, mesh_), "; what the host fills cannot be partial");
      Binding b;
      b.name = value.name;
      b.role = value.role;
      b.global = value.type;
      b.sharding = values_[i].produced;
      b.box = box_of(value.type.shape, b.sharding);
      b.zeroed_each_step = graph_.zeroed_each_step.count(id) > 0;
      if (source != graph_.sources.end()) b.source = source->second;
      b.buffer = new_buffer(id, b.sharding, false);
      values_[i].copies.push_back({b.sharding, b.buffer});
      program_.bindings.push_back(std::move(b));
    }
  }

  const std::vector<ReshardStep>& reshard(const TensorType& type, const Sharding& from,
                                          const Sharding& to) {
    const auto key = std::make_tuple(type.dtype, type.shape, from, to);
    auto it = reshards_.find(key);
    if (it == reshards_.end())
      it = reshards_.emplace(key, cheapest_reshard(type, from, to, mesh_, cluster_)).first;
    return it->second;
  }

  /// The buffer that holds `value` in `sharding`, made now if there is none, from the copy that is
  /// the cheapest to start from.
  BufferId buffer_in(ValueId value, const Sharding& sharding) {
    auto find = [&](const Sharding& s) -> BufferId {
      for (const Copy& copy : state(value).copies) {
        if (copy.sharding == s) return copy.buffer;
      }
      return -1;
    };
    if (const BufferId found = find(sharding); found >= 0) return found;
    SR_REQUIRE(!state(value).copies.empty(), internal, "value '", graph_.value(value).name,
               "' is used before it is made");
    const auto handed = plan_.handed.find(graph_.value(value).name);
    if (handed != plan_.handed.end() && handed->second != sharding && find(handed->second) < 0)
      buffer_in(value, handed->second);
    const TensorType& type = graph_.type(value);
    // From the copy that is the cheapest to start from, the first of equals: a partial sum that two
    // readers want cut differently is all-reduced once and then sliced twice, if that is what the
    // first reader made of it.
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < state(value).copies.size(); ++i) {
      const double seconds =
          reshard_seconds(reshard(type, state(value).copies[i].sharding, sharding));
      if (seconds < least) {
        least = seconds;
        best = i;
      }
    }
    Sharding at = state(value).copies[best].sharding;
    BufferId buffer = state(value).copies[best].buffer;
    const std::vector<ReshardStep>& steps = reshard(type, at, sharding);
    for (const ReshardStep& step : steps) {
      if (const BufferId found = find(step.after); found >= 0) {
        buffer = found;
      } else {
        buffer = add_reshard(value, at, step, buffer);
        state(value).copies.push_back({step.after, buffer});
      }
      at = step.after;
    }
    return buffer;
  }

  /// What earlier readers had of a value that each gets anew.
  void drop_copies(ValueId value) {
    const std::string& name = graph_.value(value).name;
    if (plan_.regathered.count(name) == 0) return;
    ValueState& s = state(value);
    const auto handed = plan_.handed.find(name);
    const auto stays = [&](const Sharding& sharding) {
      return handed != plan_.handed.end() && sharding == handed->second;
    };
    const bool has_handed = std::any_of(s.copies.begin(), s.copies.end(),
                                        [&](const Copy& c) { return stays(c.sharding); });
    const bool held = graph_.value(value).role != Role::computed;
    const bool wants_produced =
        std::find(s.wanted.begin(), s.wanted.end(), s.produced) != s.wanted.end();
    std::erase_if(s.copies, [&](const Copy& copy) {
      if (copy.sharding == s.produced) return has_handed && !wants_produced && !held;
      return !stays(copy.sharding);
    });
  }

  BufferId add_reshard(ValueId value, const Sharding& before, const ReshardStep& move,
                       BufferId from) {
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase_;
    std::shared_ptr<const Collective>& collective = collectives_[&move];
    if (!collective) {
      collective = std::make_shared<const Collective>(
          collective_of(move, graph_.type(value).shape, before, mesh_, rank_));
    }
    step.collective = collective;
    if (collective->group.size() == 1) return from;
    step.source = graph_.value(value).name;
    step.node.name = step.source + "@" + std::string(to_string(move.kind));
    step.in = {from};
    const BufferId to = new_buffer(value, move.after, true);
    step.out = {to};
    program_.steps.push_back(std::move(step));
    return to;
  }

  /// The exchange between `from` and `to`, one of them in chunks of `value`'s `sharding`, the other
  /// as its node takes or makes it.
  void add_exchange(ValueId value, Collective collective, BufferId from, BufferId to) {
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase_;
    step.collective = std::make_shared<const Collective>(std::move(collective));
    step.source = graph_.value(value).name;
    step.node.name = step.source + "@" + std::string(to_string(step.collective->kind));
    step.in = {from};
    step.out = {to};
    program_.steps.push_back(std::move(step));
  }

  /// A buffer for what a node takes or makes of `value` in place of its chunks.
  BufferId new_exchanged(ValueId value, const Sharding& sharding, const Box& box) {
    Buffer buffer;
    buffer.name = graph_.value(value).name + "@" + to_string(sharding, mesh_) + "@halo";
    buffer.type = {graph_.type(value).dtype, box_shape(box)};
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }

  void add_node(const Node& node) {
    const NodePlan& np = node_plan(node);
    Step step;
    step.phase = node.phase;
    step.source = node.name;
    std::vector<TensorType> in_types = graph_.types(node.inputs), local_in, local_out;
    std::vector<Shape> in_shapes, out_shapes;
    for (const TensorType& type : in_types) in_shapes.push_back(type.shape);
    for (ValueId id : node.outputs) out_shapes.push_back(graph_.type(id).shape);
    const NodeBoxes boxes = node_boxes(np, in_shapes, out_shapes, mesh_, coordinates_);
    for (ValueId in : node.inputs) drop_copies(in);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      BufferId buffer = buffer_in(value, np.in[i]);
      if (auto exchange =
              exchange_of(np, in_shapes, out_shapes, false, static_cast<int>(i), mesh_, rank_)) {
        const BufferId widened = new_exchanged(value, np.in[i], boxes.in[i]);
        add_exchange(value, std::move(*exchange), buffer, widened);
        buffer = widened;
      }
      step.in.push_back(buffer);
      local_in.push_back(local_type(buffer));
    }
    struct After {
      ValueId value;
      Collective exchange;
      BufferId from, to;
    };
    std::vector<After> after;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId value = node.outputs[i];
      const BufferId buffer = new_buffer(value, np.out[i], false);
      state(value).copies.push_back({np.out[i], buffer});
      BufferId made = buffer;
      if (auto exchange =
              exchange_of(np, in_shapes, out_shapes, true, static_cast<int>(i), mesh_, rank_)) {
        made = new_exchanged(value, np.out[i], boxes.out[i]);
        after.push_back({value, std::move(*exchange), made, buffer});
      }
      step.out.push_back(made);
      local_out.push_back(local_type(made));
    }
    step.node = node;
    const OpDef& def = op_def(node.op);
    try {
      if (def.localise) step.node.attrs = def.localise(node, in_types, {boxes.in, boxes.out});
      const std::vector<TensorType> got = infer_types(step.node, local_in);
      for (size_t i = 0; i < local_out.size(); ++i) {
        SR_REQUIRE(got.at(i) == local_out[i], internal, "on rank ", rank_, " result ", i, " is ",
                   got[i], " by the shape rule, the plan says ", local_out[i], " (",
                   to_string(np.out[i], mesh_), ")");
      }
    } catch (const Error& e) {
      throw e.with_context(str("node '", node.name, "' cut over ", mesh_.to_string()));
    }
    step.node.inputs = step.in;
    step.node.outputs = step.out;
    program_.steps.push_back(std::move(step));
    for (After& a : after) add_exchange(a.value, std::move(a.exchange), a.from, a.to);
    for (ValueId out : node.outputs) reshard_early(out);
  }

  /// A value that nobody wants as it was made, and whose wanted forms together are no larger, is
  /// resharded at once: a partial gradient of 4 MB becomes a 1 MB shard and its memory is free
  /// again. So is what replaces a held value, into that one's memory. Everything else is resharded
  /// just before its first use.
  void reshard_early(ValueId value) {
    const ValueState& s = state(value);
    const auto handed = plan_.handed.find(graph_.value(value).name);
    if (handed != plan_.handed.end() && updating_.count(value) == 0) {
      const bool wants_produced =
          std::find(s.wanted.begin(), s.wanted.end(), s.produced) != s.wanted.end();
      if (!wants_produced && bytes_of(value, handed->second) <= bytes_of(value, s.produced))
        buffer_in(value, handed->second);
      return;
    }
    if (plan_.regathered.count(graph_.value(value).name) > 0) return;
    int64_t bytes = 0;
    for (const Sharding& w : s.wanted) {
      if (w == s.produced) return;
      bytes += bytes_of(value, w);
    }
    if (s.wanted.empty() || (bytes > bytes_of(value, s.produced) && updating_.count(value) == 0))
      return;
    const std::vector<Sharding> wanted = s.wanted;
    for (const Sharding& w : wanted) buffer_in(value, w);
  }

  BufferId add_identity(BufferId from, BufferId to, const std::string& name) {
    Step step = identity(from, to, phase_, name);
    program_.steps.push_back(std::move(step));
    return to;
  }

  static Step identity(BufferId from, BufferId to, Phase phase, const std::string& name) {
    Step step;
    step.phase = phase;
    step.source = name;
    step.node.op = "identity";
    step.node.name = name + "@copy";
    step.node.phase = phase;
    step.node.inputs = step.in = {from};
    step.node.outputs = step.out = {to};
    return step;
  }

  /// What the phase owes its end: outputs and metrics whole on every rank, updates as their
  /// persistent values are held.
  void finish_phase() {
    auto binding = [&](const std::string& name, ValueId id) {
      Binding b;
      b.name = name;
      b.global = graph_.type(id);
      b.box = full_box(b.global.shape);
      b.sharding = Sharding::replicated(b.global.shape.size());
      b.buffer = buffer_in(id, b.sharding);
      if (graph_.value(id).role !=
          Role::computed) {  // its buffer may hold a new value by the time it is read
        b.buffer = add_identity(b.buffer, new_buffer(id, b.sharding, true), b.name);
      }
      return b;
    };
    program_.outputs.resize(graph_.outputs.size());
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const ValueId id = graph_.outputs[i];
      if (phase_of(id) == phase_) program_.outputs[i] = binding(graph_.value(id).name, id);
    }
    program_.metrics.resize(graph_.metrics.size());
    size_t index = 0;
    for (const auto& [name, id] : graph_.metrics) {
      if (phase_of(id) == phase_) program_.metrics[index] = binding(name, id);
      ++index;
    }
    for (const auto& [persistent, next] : graph_.updates) {
      if (phase_of(next) != phase_) continue;
      const Sharding& held = state(persistent).produced;
      BufferId buffer = buffer_in(next, held);
      if (graph_.value(next).role !=
          Role::computed) {  // another input: take it before that is overwritten
        buffer = add_identity(buffer, new_buffer(next, held, true), graph_.value(next).name);
      }
      updates_.push_back(
          {state(persistent).copies.front().buffer, buffer, graph_.value(persistent).name});
    }
  }

  /// Makes every persistent buffer hold its new value when its phase ends. The step that makes the
  /// new value writes it there directly if nobody reads the old one any more (or only that step
  /// does, and its op may run in place); otherwise a copy follows the last reader of the old value.
  void merge_updates() {
    const size_t n = program_.buffers.size();
    std::vector<int> producer(n, -1), last_read(n, -1);
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      for (BufferId b : program_.steps[s].in)
        last_read[static_cast<size_t>(b)] = static_cast<int>(s);
      for (BufferId b : program_.steps[s].out)
        producer[static_cast<size_t>(b)] = static_cast<int>(s);
    }
    std::vector<BufferId> becomes(n);
    for (size_t b = 0; b < n; ++b) becomes[b] = static_cast<BufferId>(b);
    struct Insert {
      int after;
      Step step;
    };
    std::vector<Insert> inserts;
    for (const Update& u : updates_) {
      if (u.next == u.persistent) continue;
      const int made = producer[static_cast<size_t>(u.next)];
      const int read = last_read[static_cast<size_t>(u.persistent)];
      SR_REQUIRE(made >= 0, internal, "update of '", u.name, "' is made by no step");
      const bool taken = becomes[static_cast<size_t>(u.next)] != u.next;
      if (!taken &&
          (read < made ||
           (read == made && runs_in_place(program_.steps[static_cast<size_t>(made)], u)))) {
        becomes[static_cast<size_t>(u.next)] = u.persistent;
        continue;
      }
      const int after = std::max(made, read);
      const Phase phase = program_.steps[static_cast<size_t>(made)].phase;
      SR_REQUIRE(program_.steps[static_cast<size_t>(after)].phase == phase, internal, "update of '",
                 u.name, "' is made in every micro-batch, but step '",
                 program_.steps[static_cast<size_t>(after)].node.name,
                 "' of the update phase reads the old value");
      inserts.push_back({after, identity(u.next, u.persistent, phase, u.name)});
      for (size_t s = static_cast<size_t>(after) + 1; s < program_.steps.size(); ++s) {
        std::replace(program_.steps[s].in.begin(), program_.steps[s].in.end(), u.next,
                     u.persistent);
      }
    }
    auto rename = [&](std::vector<BufferId>& ids) {
      for (BufferId& id : ids) id = becomes[static_cast<size_t>(id)];
    };
    std::stable_sort(inserts.begin(), inserts.end(),
                     [](const Insert& a, const Insert& b) { return a.after < b.after; });
    std::vector<Step> steps;
    size_t next = 0;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      steps.push_back(std::move(program_.steps[s]));
      while (next < inserts.size() && inserts[next].after == static_cast<int>(s))
        steps.push_back(std::move(inserts[next++].step));
    }
    program_.steps = std::move(steps);
    for (Step& step : program_.steps) {
      rename(step.in);
      rename(step.out);
    }
    for (auto* list : {&program_.outputs, &program_.metrics}) {
      for (Binding& b : *list) b.buffer = becomes[static_cast<size_t>(b.buffer)];
    }
  }

  bool runs_in_place(const Step& step, const Update& u) const {
    if (step.kind != Step::Kind::kernel || local_type(u.next) != local_type(u.persistent))
      return false;
    if (std::count(step.in.begin(), step.in.end(), u.persistent) != 1) return false;
    for (const auto& [result, operand] : op_def(step.node.op).in_place) {
      if (static_cast<size_t>(result) < step.out.size() &&
          step.out[static_cast<size_t>(result)] == u.next &&
          static_cast<size_t>(operand) < step.in.size() &&
          step.in[static_cast<size_t>(operand)] == u.persistent) {
        return true;
      }
    }
    return false;
  }

  void drop_unused_buffers() {
    std::vector<BufferId> renamed(program_.buffers.size(), -1);
    auto visit_all = [&](auto f) {
      for (Binding& b : program_.bindings) f(b.buffer);
      for (Step& step : program_.steps) {
        for (BufferId& b : step.in) f(b);
        for (BufferId& b : step.out) f(b);
      }
      for (Binding& b : program_.outputs) f(b.buffer);
      for (Binding& b : program_.metrics) f(b.buffer);
    };
    visit_all([&](BufferId& b) { renamed[static_cast<size_t>(b)] = 0; });
    std::vector<Buffer> kept;
    for (size_t i = 0; i < renamed.size(); ++i) {
      if (renamed[i] < 0) continue;
      renamed[i] = static_cast<BufferId>(kept.size());
      kept.push_back(std::move(program_.buffers[i]));
    }
    program_.buffers = std::move(kept);
    visit_all([&](BufferId& b) { b = renamed[static_cast<size_t>(b)]; });
    for (Step& step : program_.steps) {
      if (step.kind != Step::Kind::kernel) continue;
      step.node.inputs = step.in;
      step.node.outputs = step.out;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  const Mesh& mesh_;
  int64_t rank_;
  std::vector<int64_t> coordinates_;
  std::vector<ValueState> values_;
  std::vector<Update> updates_;
  std::set<ValueId> updating_;  // what replaces a held value
  std::map<std::tuple<DType, Shape, Sharding, Sharding>, std::vector<ReshardStep>> reshards_;
  std::unordered_map<const ReshardStep*, std::shared_ptr<const Collective>>
      collectives_;  // of them
  Phase phase_ = Phase::micro, last_phase_ = Phase::micro;
  Program program_;
};

}  // namespace

Program partition(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                  Cuts* cuts) {
  Partitioner partitioner(graph, plan, cluster, rank);
  Program program = partitioner.run();
  if (cuts != nullptr) partitioner.add_cuts(*cuts);
  return program;
}

}  // namespace shardrun
