// One node after the other, and the ends of phases.
#include "program/partition/lower_nodes.h"

#include <algorithm>

#include "graph/node_exchanges.h"
#include "program/partition/value_copies.h"

namespace shardrun {
namespace {

class Lowering {
 public:
  Lowering(Skeleton& skeleton, const Cluster& cluster)
      : skeleton_(skeleton),
        graph_(skeleton.graph),
        program_(skeleton.program),
        copies_(skeleton, cluster) {}

  std::vector<HeldUpdate> run() {
    const std::vector<Node>& nodes = graph_.nodes();
    for (size_t n = 0; n < nodes.size(); ++n) {
      const Phase phase = graph_.phase_of(nodes[n]);
      SR_REQUIRE(phase >= phase_, internal, "micro node '", nodes[n].name,
                 "' stands after an update node in a step of ", graph_.micro_batches,
                 " micro-batches");
      if (phase != phase_) {
        finish_phase();
        phase_ = Phase::update;
        copies_.begin(phase_);
      }
      add_node(static_cast<NodeId>(n));
    }
    finish_phase();
    return std::move(updates_);
  }

 private:
  /// The exchange between `from` and `to`, one of them in shards of `value`, the other as its node
  /// takes or makes it. `routing`: of named rows (-1: there are none).
  void add_exchange(ValueId value, Collective::Kind kind, const NodeSide& side, BufferId from,
                    BufferId to, BufferId routing) {
    std::vector<BufferId> in{from};
    if (routing >= 0) in.push_back(routing);
    StepForm form;
    form.exchange = side;
    skeleton_.add_collective(value, kind, phase_, std::move(in), to, form);
  }

  /// Numbers that count a rank's own and named rows, and the routing of these: once for all nodes
  /// with the same numbers and bounds.
  struct Route {
    BufferId numbers = -1, routing = -1;
  };
  Route route(NodeId id, BufferId numbers) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *skeleton_.node_plans[static_cast<size_t>(id)];
    const Rows& rows = np.rows[0];
    const auto by = static_cast<size_t>(rows.by.index), of = static_cast<size_t>(rows.of.index),
               dim = static_cast<size_t>(rows.of.dim);
    const Sharding& table = (rows.of.result ? np.out : np.in)[of];
    const Shape& shape = graph_.type((rows.of.result ? node.outputs : node.inputs)[of]).shape;
    const auto [it, fresh] = routes_.try_emplace(
        std::make_tuple(numbers, shape[dim], table.dims[dim], rows.most_named, rows.most_owned));
    if (!fresh) return it->second;
    const ValueId value = node.inputs[by];
    const NodeSide side{id, false, rows.by.index};
    const std::string& name = graph_.value(value).name;
    it->second.numbers =
        skeleton_.add_buffer(name + "@renumbered", {value, &np.in[by], std::nullopt});
    it->second.routing = skeleton_.add_buffer(name + "@routing", {value, &np.in[by], side});
    program_.buffers.back().type.dtype = DType::i64;
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase_;
    step.source = name;
    step.node.name =
        str(name, "@", to_string(Collective::Kind::row_route), " of node '", node.name, "'");
    step.in = {numbers};
    step.out = {it->second.numbers, it->second.routing};
    StepForm form;
    form.exchange = side;
    skeleton_.add_step(std::move(step), form);
    return it->second;
  }

  /// A buffer for what a node takes or makes of `value` in place of its shards.
  BufferId new_exchanged(ValueId value, const Sharding& sharding, const NodeSide& side) {
    return skeleton_.add_buffer(
        graph_.value(value).name + "@" + to_string(sharding, program_.mesh) + "@halo",
        {value, &sharding, side});
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *skeleton_.node_plans[static_cast<size_t>(id)];
    Step step;
    step.phase = phase_;
    step.source = node.name;
    for (ValueId in : node.inputs) copies_.drop(in);
    const auto exchange_operand = [&](size_t i, BufferId buffer, BufferId routing) {
      const NodeSide side{id, false, static_cast<int>(i)};
      const auto exchange = skeleton_.exchange_of(side, 0);
      if (!exchange || exchange->kind == Collective::Kind::row_route) return buffer;
      const BufferId widened = new_exchanged(node.inputs[i], np.in[i], side);
      add_exchange(node.inputs[i], exchange->kind, side, buffer, widened, routing);
      return widened;
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const BufferId buffer = copies_.in(node.inputs[i], &np.in[i]);
      const bool by_rows = rows_of(np, false, static_cast<int>(i)) != nullptr;
      step.in.push_back(by_rows ? buffer : exchange_operand(i, buffer, -1));
    }
    Route rows;
    if (!np.rows.empty()) {
      BufferId& numbers = step.in[static_cast<size_t>(np.rows[0].by.index)];
      rows = route(id, numbers);
      numbers = rows.numbers;
    }
    for (const Rows& fetched : np.rows) {
      const auto i = static_cast<size_t>(fetched.of.index);
      if (!fetched.of.result) step.in[i] = exchange_operand(i, step.in[i], rows.routing);
    }
    struct After {
      ValueId value;
      Collective::Kind kind;
      NodeSide side;
      BufferId from, to;
    };
    std::vector<After> after;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId value = node.outputs[i];
      const BufferId buffer = copies_.make(value);
      BufferId made = buffer;
      const NodeSide side{id, true, static_cast<int>(i)};
      if (const auto exchange = skeleton_.exchange_of(side, 0)) {
        made = new_exchanged(value, np.out[i], side);
        after.push_back({value, exchange->kind, side, made, buffer});
      }
      step.out.push_back(made);
    }
    step.node = node;
    StepForm form;
    form.kernel = id;
    skeleton_.add_step(std::move(step), form);
    for (const After& a : after) {
      const bool by_rows = rows_of(np, true, a.side.index) != nullptr;
      add_exchange(a.value, a.kind, a.side, a.from, a.to, by_rows ? rows.routing : -1);
    }
    for (ValueId out : node.outputs) copies_.reshard_early(out);
  }

  /// Of an input, whose buffer may hold a new value by the time it is read, a copy.
  BufferId kept(ValueId value, const Sharding* sharding, BufferId buffer) {
    if (graph_.value(value).role == Role::computed) return buffer;
    const BufferId copy = skeleton_.add_buffer(value, sharding, true);
    skeleton_.add_copy(buffer, copy, phase_, graph_.value(value).name);
    return copy;
  }

  /// A result that a step reports, laid out as `sharding`; its box here is the whole one, each
  /// rank's own comes later.
  Binding reported(const std::string& name, ValueId id, const Sharding* sharding) {
    Binding b;
    b.name = name;
    b.global = graph_.type(id);
    b.box = full_box(b.global.shape);
    b.sharding = *sharding;
    b.buffer = kept(id, sharding, copies_.in(id, sharding));
    return b;
  }

  /// What is owed at the end of a phase: updates that it makes, as their persistent values are
  /// held; at the end of the step, before them, outputs as they are left, and metrics whole on
  /// every rank.
  void finish_phase() {
    if (phase_ == graph_.last_phase()) {
      for (ValueId id : graph_.outputs)
        program_.outputs.push_back(reported(graph_.value(id).name, id, skeleton_.end(id)));
      for (const auto& [name, id] : graph_.metrics)
        program_.metrics.push_back(reported(name, id, skeleton_.whole(id)));
    }
    for (const auto& [persistent, next] : graph_.updates) {
      if (graph_.phase_of(next) != phase_) continue;
      const Sharding* held = copies_.produced(persistent);
      updates_.push_back({copies_.in(persistent, held), kept(next, held, copies_.in(next, held)),
                          graph_.value(persistent).name});
    }
  }

  Skeleton& skeleton_;
  const Graph& graph_;
  Program& program_;
  ValueCopies copies_;
  std::vector<HeldUpdate> updates_;
  /// By the numbers, the extent and axes of the rows, and the bounds.
  std::map<std::tuple<BufferId, int64_t, Axes, int64_t, int64_t>, Route> routes_;
  Phase phase_ = Phase::micro;
};

}  // namespace

std::vector<HeldUpdate> lower_nodes(Skeleton& skeleton, const Cluster& cluster) {
  return Lowering(skeleton, cluster).run();
}

}  // namespace shardrun
