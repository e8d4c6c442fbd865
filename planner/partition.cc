// Partition: Graph and Plan into Programs.
//
// Steps come out in one order on every rank, since nothing here looks at the rank but boxes: that,
// and collectives being called in step order, is why no two ranks can wait for each other. So all
// but boxes, and what follows from them, is found once for all ranks.
#include "planner/partition.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "graph/op_def.h"
#include "planner/collective_order.h"
#include "planner/halo.h"
#include "planner/reshard.h"

namespace shardrun {
namespace {

/// Operand or result `index` of a node, as the node takes or makes it.
struct NodeSide {
  NodeId node = -1;
  bool result = false;
  int index = 0;
};

/// What a buffer holds a rank's part of: of `value` its chunk under `sharding`, or what a node
/// takes or makes in its place.
struct BufferForm {
  ValueId value = kNoValue;
  const Sharding* sharding = nullptr;
  std::optional<NodeSide> exchanged = {};
};

/// What a step comes from: a node's kernel, a resharding, an exchange, or (none of them) a copy.
struct StepForm {
  NodeId kernel = -1;
  const ReshardStep* move = nullptr;  // of `value`, which lies in `before`
  ValueId value = kNoValue;
  const Sharding* before = nullptr;
  std::optional<NodeSide> exchange = {};
};

struct FormedStep {
  Step step;
  StepForm form;
};

}  // namespace

/// Shardings are pointed at: they are the plan's, the reshardings', or `whole`.
struct Partition::Skeleton {
  const Graph& graph;
  const Plan& plan;
  std::vector<const NodePlan*> node_plans;  // by node
  Program program = {};                     // without local types, boxes, attributes, collectives
  std::vector<BufferForm> buffers = {};
  std::vector<StepForm> steps = {};
  std::map<std::tuple<DType, Shape, Sharding, Sharding>, std::vector<ReshardStep>, std::less<>>
      reshards = {};
  std::map<size_t, Sharding> whole = {};  // by number of dims
  Cuts cuts = {};
};

namespace {

struct NodeShapes {
  std::vector<Shape> in, out;
};

NodeShapes shapes_of(const Graph& graph, const Node& node) {
  NodeShapes out;
  for (ValueId id : node.inputs) out.in.push_back(graph.type(id).shape);
  for (ValueId id : node.outputs) out.out.push_back(graph.type(id).shape);
  return out;
}

/// Of the numbers that name rows, their routing. nullopt: chunks are what the node takes or makes,
/// on every rank.
std::optional<Collective> exchange_of(const Partition::Skeleton& skeleton, const NodeSide& side,
                                      int64_t rank) {
  const NodePlan& np = *skeleton.node_plans[static_cast<size_t>(side.node)];
  if (!np.exchanges()) return std::nullopt;
  const NodeShapes shapes = shapes_of(skeleton.graph, skeleton.graph.node(side.node));
  if (!side.result && !np.rows.empty() && np.rows[0].by.index == side.index)
    return route_of(np, shapes.in, shapes.out, skeleton.plan.mesh, rank);
  return exchange_of(np, shapes.in, shapes.out, side.result, side.index, skeleton.plan.mesh, rank);
}

class Partitioner {
 public:
  Partitioner(Partition::Skeleton& skeleton, const Cluster& cluster)
      : graph_(skeleton.graph),
        plan_(skeleton.plan),
        cluster_(cluster),
        mesh_(plan_.mesh),
        out_(skeleton),
        program_(skeleton.program) {
    program_.mesh = mesh_;
  }

  void run() {
    collect_wants();
    make_bindings();
    const std::vector<Node>& nodes = graph_.nodes();
    // Where update nodes stand among the others there is one micro-batch, and all is of it.
    one_phase_ = !std::is_sorted(nodes.begin(), nodes.end(),
                                 [](const Node& a, const Node& b) { return a.phase < b.phase; });
    if (!nodes.empty()) last_phase_ = phase_of(nodes.back());
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (phase_of(nodes[n]) != phase_) {
        finish_phase();
        phase_ = Phase::update;
      }
      add_node(static_cast<NodeId>(n));
    }
    finish_phase();
    merge_updates();
    drop_unused_buffers();
    add_cuts();
  }

 private:
  struct Copy {
    const Sharding* sharding = nullptr;
    BufferId buffer = -1;
  };
  struct ValueState {
    const Sharding* produced = nullptr;
    const Sharding* handed = nullptr;           // nullptr: in no particular one
    bool regathered = false, updating = false;  // updating: replaces a held value
    std::vector<Copy> copies;                   // the first is as produced
    std::vector<const Sharding*> wanted;        // distinct
  };
  struct Update {
    BufferId persistent, next;
    std::string name;
  };

  static bool same(const Sharding* a, const Sharding* b) { return a == b || *a == *b; }
  ValueState& state(ValueId id) { return values_[static_cast<size_t>(id)]; }
  int64_t bytes_of(ValueId id, const Sharding& sharding) const {
    return max_local_count(graph_.type(id).shape, sharding, mesh_) * size_of(graph_.type(id).dtype);
  }
  Phase phase_of(const Node& node) const { return one_phase_ ? Phase::micro : node.phase; }
  Phase phase_of(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.producer < 0 ? last_phase_ : phase_of(graph_.node(value.producer));
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
  const Sharding* whole(ValueId id) {
    const size_t dims = graph_.type(id).shape.size();
    return &out_.whole.try_emplace(dims, Sharding::replicated(dims)).first->second;
  }

  void want(ValueId id, const Sharding* sharding) {
    auto& wanted = state(id).wanted;
    if (std::none_of(wanted.begin(), wanted.end(),
                     [&](const Sharding* other) { return same(sharding, other); }))
      wanted.push_back(sharding);
  }

  void collect_wants() {
    values_.resize(graph_.values().size());
    for (size_t i = 0; i < values_.size(); ++i) {
      const std::string& name = graph_.values()[i].name;
      ValueState& s = values_[i];
      const auto it = plan_.values.find(name);
      s.produced = it != plan_.values.end() ? &it->second : whole(static_cast<ValueId>(i));
      const auto handed = plan_.handed.find(name);
      if (handed != plan_.handed.end()) s.handed = &handed->second;
      s.regathered = plan_.regathered.count(name) > 0;
    }
    for (const Node& node : graph_.nodes()) {
      const NodePlan& np = node_plan(node);
      out_.node_plans.push_back(&np);
      for (size_t i = 0; i < node.inputs.size(); ++i) want(node.inputs[i], &np.in[i]);
      for (size_t i = 0; i < node.outputs.size(); ++i) state(node.outputs[i]).produced = &np.out[i];
    }
    for (ValueId id : graph_.outputs) want(id, whole(id));
    for (const auto& [name, id] : graph_.metrics) want(id, whole(id));
    for (const auto& [persistent, next] : graph_.updates) {
      want(next, state(persistent).produced);
      state(next).updating = true;
    }
  }

  BufferId new_buffer(ValueId value, const Sharding* sharding, bool copy) {
    const Value& v = graph_.value(value);
    return push_buffer(copy ? v.name + "@" + to_string(*sharding, mesh_) : v.name,
                       {value, sharding, std::nullopt});
  }

  BufferId push_buffer(std::string name, const BufferForm& form) {
    Buffer buffer;
    buffer.name = std::move(name);
    buffer.type.dtype = graph_.type(form.value).dtype;
    program_.buffers.push_back(std::move(buffer));
    out_.buffers.push_back(form);
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
      const Sharding& held = *values_[i].produced;
      SR_REQUIRE(value.role != Role::scalar || held.is_replicated(), invalid_input,
                 "plan: values: scalar '", value.name, "' is ", to_string(held, mesh_),
                 ", wanted replicated");
      SR_REQUIRE(persistent || held.partial.empty(), invalid_input, "plan: values: input '",
                 value.name, "' is ", to_string(held, mesh_),
                 "; what the host fills cannot be partial");
      Binding b;
      b.name = value.name;
      b.role = value.role;
      b.global = value.type;
      b.sharding = held;
      b.zeroed_each_step = graph_.zeroed_each_step.count(id) > 0;
      if (source != graph_.sources.end()) b.source = source->second;
      b.buffer = new_buffer(id, &held, false);
      values_[i].copies.push_back({&held, b.buffer});
      program_.bindings.push_back(std::move(b));
    }
  }

  const std::vector<ReshardStep>& reshard(const TensorType& type, const Sharding& from,
                                          const Sharding& to) {
    const auto it = out_.reshards.find(std::tie(type.dtype, type.shape, from, to));
    if (it != out_.reshards.end()) return it->second;
    return out_.reshards
        .emplace(std::tuple(type.dtype, type.shape, from, to),
                 cheapest_reshard(type, from, to, mesh_, cluster_))
        .first->second;
  }

  /// The buffer that holds `value` in `sharding`, made now if there is none, from the copy that is
  /// the cheapest to start from.
  BufferId buffer_in(ValueId value, const Sharding* sharding) {
    ValueState& s = state(value);
    auto find = [&](const Sharding* wanted) -> BufferId {
      for (const Copy& copy : s.copies) {
        if (same(copy.sharding, wanted)) return copy.buffer;
      }
      return -1;
    };
    if (const BufferId found = find(sharding); found >= 0) return found;
    SR_REQUIRE(!s.copies.empty(), internal, "value '", graph_.value(value).name,
               "' is used before it is made");
    if (s.handed != nullptr && !same(s.handed, sharding) && find(s.handed) < 0)
      buffer_in(value, s.handed);
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
      if (const BufferId found = find(&step.after); found >= 0) {
        from.buffer = found;
      } else {
        from.buffer = add_reshard(value, from.sharding, step, from.buffer);
        s.copies.push_back({&step.after, from.buffer});
      }
      from.sharding = &step.after;
    }
    return from.buffer;
  }

  /// What earlier readers had of a value that each gets anew.
  void drop_copies(ValueId value) {
    ValueState& s = state(value);
    if (!s.regathered) return;
    const auto stays = [&](const Copy& copy) {
      return s.handed != nullptr && same(copy.sharding, s.handed);
    };
    const bool has_handed = std::any_of(s.copies.begin(), s.copies.end(), stays);
    const bool held = graph_.value(value).role != Role::computed;
    const bool wants_produced =
        std::any_of(s.wanted.begin(), s.wanted.end(),
                    [&](const Sharding* wanted) { return same(wanted, s.produced); });
    std::erase_if(s.copies, [&](const Copy& copy) {
      if (same(copy.sharding, s.produced)) return has_handed && !wants_produced && !held;
      return !stays(copy);
    });
  }

  BufferId add_reshard(ValueId value, const Sharding* before, const ReshardStep& move,
                       BufferId from) {
    int64_t members = 1;
    for (int axis : move.axes) members *= mesh_.axis_size(axis);
    if (members == 1) return from;
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase_;
    step.source = graph_.value(value).name;
    step.node.name = step.source + "@" + std::string(to_string(move.kind));
    step.in = {from};
    const BufferId to = new_buffer(value, &move.after, true);
    step.out = {to};
    StepForm form;
    form.move = &move;
    form.value = value;
    form.before = before;
    steps_.push_back({std::move(step), form});
    return to;
  }

  /// The exchange between `from` and `to`, one of them in chunks of `value`, the other as its node
  /// takes or makes it. `routing`: of named rows (-1: there are none).
  void add_exchange(ValueId value, Collective::Kind kind, const NodeSide& side, BufferId from,
                    BufferId to, BufferId routing = -1) {
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase_;
    step.source = graph_.value(value).name;
    step.node.name = step.source + "@" + std::string(to_string(kind));
    step.in = {from};
    if (routing >= 0) step.in.push_back(routing);
    step.out = {to};
    StepForm form;
    form.exchange = side;
    steps_.push_back({std::move(step), form});
  }

  /// Numbers that count a rank's own and named rows, and the routing of these: once for all nodes
  /// with the same numbers and bounds.
  struct Route {
    BufferId numbers = -1, routing = -1;
  };
  Route route(NodeId id, BufferId numbers) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *out_.node_plans[static_cast<size_t>(id)];
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
    it->second.numbers = push_buffer(name + "@renumbered", {value, &np.in[by], std::nullopt});
    it->second.routing = push_buffer(name + "@routing", {value, &np.in[by], side});
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
    steps_.push_back({std::move(step), form});
    return it->second;
  }

  /// A buffer for what a node takes or makes of `value` in place of its chunks.
  BufferId new_exchanged(ValueId value, const Sharding& sharding, const NodeSide& side) {
    return push_buffer(graph_.value(value).name + "@" + to_string(sharding, mesh_) + "@halo",
                       {value, &sharding, side});
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *out_.node_plans[static_cast<size_t>(id)];
    Step step;
    step.phase = phase_;
    step.source = node.name;
    for (ValueId in : node.inputs) drop_copies(in);
    const auto exchange_operand = [&](size_t i, BufferId buffer, BufferId routing) {
      const NodeSide side{id, false, static_cast<int>(i)};
      const auto exchange = exchange_of(out_, side, 0);
      if (!exchange || exchange->kind == Collective::Kind::row_route) return buffer;
      const BufferId widened = new_exchanged(node.inputs[i], np.in[i], side);
      add_exchange(node.inputs[i], exchange->kind, side, buffer, widened, routing);
      return widened;
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const BufferId buffer = buffer_in(node.inputs[i], &np.in[i]);
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
      const BufferId buffer = new_buffer(value, &np.out[i], false);
      state(value).copies.push_back({&np.out[i], buffer});
      BufferId made = buffer;
      const NodeSide side{id, true, static_cast<int>(i)};
      if (const auto exchange = exchange_of(out_, side, 0)) {
        made = new_exchanged(value, np.out[i], side);
        after.push_back({value, exchange->kind, side, made, buffer});
      }
      step.out.push_back(made);
    }
    step.node = node;
    StepForm form;
    form.kernel = id;
    steps_.push_back({std::move(step), form});
    for (const After& a : after) {
      const bool by_rows = rows_of(np, true, a.side.index) != nullptr;
      add_exchange(a.value, a.kind, a.side, a.from, a.to, by_rows ? rows.routing : -1);
    }
    for (ValueId out : node.outputs) reshard_early(out);
  }

  /// A value that nobody wants as it was made, and whose wanted forms together are no larger, is
  /// resharded at once: a partial gradient of 4 MB becomes a 1 MB shard and its memory is free
  /// again. So is what replaces a held value, into that one's memory. Everything else is resharded
  /// just before its first use.
  void reshard_early(ValueId value) {
    const ValueState& s = state(value);
    const auto wants_produced = [&] {
      return std::any_of(s.wanted.begin(), s.wanted.end(),
                         [&](const Sharding* wanted) { return same(wanted, s.produced); });
    };
    if (s.handed != nullptr && !s.updating) {
      if (!wants_produced() && bytes_of(value, *s.handed) <= bytes_of(value, *s.produced))
        buffer_in(value, s.handed);
      return;
    }
    if (s.regathered || s.wanted.empty() || wants_produced()) return;
    int64_t bytes = 0;
    for (const Sharding* wanted : s.wanted) bytes += bytes_of(value, *wanted);
    if (bytes > bytes_of(value, *s.produced) && !s.updating) return;
    for (const Sharding* wanted : s.wanted) buffer_in(value, wanted);
  }

  BufferId add_identity(BufferId from, BufferId to, const std::string& name) {
    steps_.push_back(identity(from, to, phase_, name));
    return to;
  }

  static FormedStep identity(BufferId from, BufferId to, Phase phase, const std::string& name) {
    Step step;
    step.phase = phase;
    step.source = name;
    step.node.op = "identity";
    step.node.name = name + "@copy";
    step.node.phase = phase;
    step.node.inputs = step.in = {from};
    step.node.outputs = step.out = {to};
    return {std::move(step), {}};
  }

  /// What the phase owes its end: outputs and metrics whole on every rank, updates as their
  /// persistent values are held.
  void finish_phase() {
    auto binding = [&](const std::string& name, ValueId id) {
      Binding b;
      b.name = name;
      b.global = graph_.type(id);
      b.box = full_box(b.global.shape);
      b.sharding = *whole(id);
      b.buffer = buffer_in(id, whole(id));
      if (graph_.value(id).role !=
          Role::computed) {  // its buffer may hold a new value by the time it is read
        b.buffer = add_identity(b.buffer, new_buffer(id, whole(id), true), b.name);
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
      const Sharding* held = state(persistent).produced;
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
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (BufferId b : steps_[s].step.in) last_read[static_cast<size_t>(b)] = static_cast<int>(s);
      for (BufferId b : steps_[s].step.out) producer[static_cast<size_t>(b)] = static_cast<int>(s);
    }
    std::vector<BufferId> becomes(n);
    for (size_t b = 0; b < n; ++b) becomes[b] = static_cast<BufferId>(b);
    struct Insert {
      int after;
      FormedStep step;
    };
    std::vector<Insert> inserts;
    for (const Update& u : updates_) {
      if (u.next == u.persistent) continue;
      const int made = producer[static_cast<size_t>(u.next)];
      const int read = last_read[static_cast<size_t>(u.persistent)];
      SR_REQUIRE(made >= 0, internal, "update of '", u.name, "' is made by no step");
      const bool taken = becomes[static_cast<size_t>(u.next)] != u.next;
      if (!taken && (read < made ||
                     (read == made && runs_in_place(steps_[static_cast<size_t>(made)].step, u)))) {
        becomes[static_cast<size_t>(u.next)] = u.persistent;
        continue;
      }
      const int after = std::max(made, read);
      const Phase phase = steps_[static_cast<size_t>(made)].step.phase;
      SR_REQUIRE(steps_[static_cast<size_t>(after)].step.phase == phase, internal, "update of '",
                 u.name, "' is made in every micro-batch, but step '",
                 steps_[static_cast<size_t>(after)].step.node.name,
                 "' of the update phase reads the old value");
      inserts.push_back({after, identity(u.next, u.persistent, phase, u.name)});
      for (size_t s = static_cast<size_t>(after) + 1; s < steps_.size(); ++s) {
        std::vector<BufferId>& in = steps_[s].step.in;
        std::replace(in.begin(), in.end(), u.next, u.persistent);
      }
    }
    auto rename = [&](std::vector<BufferId>& ids) {
      for (BufferId& id : ids) id = becomes[static_cast<size_t>(id)];
    };
    std::stable_sort(inserts.begin(), inserts.end(),
                     [](const Insert& a, const Insert& b) { return a.after < b.after; });
    const auto push = [&](FormedStep formed) {
      program_.steps.push_back(std::move(formed.step));
      out_.steps.push_back(formed.form);
    };
    size_t next = 0;
    for (size_t s = 0; s < steps_.size(); ++s) {
      push(std::move(steps_[s]));
      while (next < inserts.size() && inserts[next].after == static_cast<int>(s))
        push(std::move(inserts[next++].step));
    }
    for (Step& step : program_.steps) {
      rename(step.in);
      rename(step.out);
    }
    for (auto* list : {&program_.outputs, &program_.metrics}) {
      for (Binding& b : *list) b.buffer = becomes[static_cast<size_t>(b.buffer)];
    }
  }

  bool runs_in_place(const Step& step, const Update& u) const {
    if (step.kind != Step::Kind::kernel) return false;
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
    size_t kept = 0;
    for (size_t i = 0; i < renamed.size(); ++i) {
      if (renamed[i] < 0) continue;
      renamed[i] = static_cast<BufferId>(kept);
      if (kept < i) program_.buffers[kept] = std::move(program_.buffers[i]);
      out_.buffers[kept++] = out_.buffers[i];
    }
    program_.buffers.resize(kept);
    out_.buffers.resize(kept);
    visit_all([&](BufferId& b) { b = renamed[static_cast<size_t>(b)]; });
    for (Step& step : program_.steps) {
      if (step.kind != Step::Kind::kernel) continue;
      step.node.inputs = step.in;
      step.node.outputs = step.out;
    }
  }

  void add_cuts() {
    for (const BufferForm& form : out_.buffers) {
      const Shape& shape = graph_.type(form.value).shape;
      for (size_t d = 0; d < shape.size(); ++d) {
        const std::vector<int>& axes = form.sharding->dims[d];
        if (!axes.empty()) out_.cuts.emplace(shape[d], axes);
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  const Mesh& mesh_;
  Partition::Skeleton& out_;
  Program& program_;
  std::vector<FormedStep> steps_;
  std::vector<ValueState> values_;
  std::vector<Update> updates_;
  /// By the numbers, the extent and axes of the rows, and the bounds.
  std::map<std::tuple<BufferId, int64_t, std::vector<int>, int64_t, int64_t>, Route> routes_;
  Phase phase_ = Phase::micro, last_phase_ = Phase::micro;
  bool one_phase_ = false;
};

void bring_together(Partition::Skeleton& skeleton) {
  const Mesh& mesh = skeleton.plan.mesh;
  std::vector<bool> meets;  // exchanges do, too, but stay with their node
  for (const StepForm& form : skeleton.steps)
    meets.push_back(form.move != nullptr && !is_local(form.move->kind));
  std::vector<int64_t> bytes;
  for (size_t b = 0; b < skeleton.buffers.size(); ++b) {
    const BufferForm& form = skeleton.buffers[b];
    bytes.push_back(max_local_count(skeleton.graph.type(form.value).shape, *form.sharding, mesh) *
                    size_of(skeleton.program.buffers[b].type.dtype));
  }
  std::vector<Step> steps;
  std::vector<StepForm> forms;
  for (size_t s : order_collectives(skeleton.program, meets, bytes)) {
    steps.push_back(std::move(skeleton.program.steps[s]));
    forms.push_back(skeleton.steps[s]);
  }
  skeleton.program.steps = std::move(steps);
  skeleton.steps = std::move(forms);
}

/// Fills in what of a Program depends on the rank.
class Localiser {
 public:
  Localiser(const Partition::Skeleton& skeleton, int64_t rank)
      : skeleton_(skeleton),
        graph_(skeleton.graph),
        mesh_(skeleton.plan.mesh),
        coordinates_(mesh_.coordinates(rank)),
        program_(skeleton.program) {
    program_.rank = rank;
  }

  Program run() {
    for (Binding& b : program_.bindings)
      b.box = local_box(b.global.shape, b.sharding, mesh_, coordinates_);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const BufferForm& form = skeleton_.buffers[b];
      if (!form.exchanged)
        program_.buffers[b].type.shape = chunk_shape(graph_.type(form.value).shape, *form.sharding);
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      Step& step = program_.steps[s];
      const StepForm& form = skeleton_.steps[s];
      if (form.kernel >= 0) fill_kernel(step, form.kernel);
      if (form.move != nullptr) fill_reshard(step, form);
      if (form.exchange) {
        step.collective = std::make_shared<const Collective>(
            *exchange_of(skeleton_, *form.exchange, program_.rank));
        if (step.collective->kind == Collective::Kind::row_route)
          local_type(step.out[1]).shape = {routing_size(*step.collective)};
      }
    }
    return std::move(program_);
  }

 private:
  TensorType& local_type(BufferId id) { return program_.buffers[static_cast<size_t>(id)].type; }

  Shape chunk_shape(const Shape& shape, const Sharding& sharding) const {
    Shape out = shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      for (int axis : sharding.dims[d])
        out[d] = chunk(out[d], mesh_.axis_size(axis), coordinates_[static_cast<size_t>(axis)]).size;
    }
    return out;
  }

  void fill_kernel(Step& step, NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *skeleton_.node_plans[static_cast<size_t>(id)];
    const OpDef& def = op_def(node.op);
    NodeBoxes boxes;
    if (np.exchanges() || def.localise) {
      const NodeShapes shapes = shapes_of(graph_, node);
      boxes = node_boxes(np, shapes.in, shapes.out, mesh_, coordinates_);
    }
    const auto types = [&](const std::vector<BufferId>& ids, const std::vector<Box>& parts) {
      std::vector<TensorType> out;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (skeleton_.buffers[static_cast<size_t>(ids[i])].exchanged)
          local_type(ids[i]).shape = box_shape(parts[i]);
        out.push_back(local_type(ids[i]));
      }
      return out;
    };
    const std::vector<TensorType> in = types(step.in, boxes.in), out = types(step.out, boxes.out);
    try {
      if (def.localise)
        step.node.attrs = def.localise(node, graph_.types(node.inputs), {boxes.in, boxes.out});
      const std::vector<TensorType> got = infer_types(step.node, in);
      for (size_t i = 0; i < out.size(); ++i) {
        SR_REQUIRE(got.at(i) == out[i], internal, "on rank ", program_.rank, " result ", i, " is ",
                   got[i], " by the shape rule, the plan says ", out[i], " (",
                   to_string(np.out[i], mesh_), ")");
      }
    } catch (const Error& e) {
      throw e.with_context(str("node '", node.name, "' cut over ", mesh_.to_string()));
    }
  }

  void fill_reshard(Step& step, const StepForm& form) {
    std::shared_ptr<const Collective>& collective = collectives_[form.move];
    if (!collective) {
      collective = std::make_shared<const Collective>(collective_of(
          *form.move, graph_.type(form.value).shape, *form.before, mesh_, program_.rank));
    }
    step.collective = collective;
  }

  const Partition::Skeleton& skeleton_;
  const Graph& graph_;
  const Mesh& mesh_;
  std::vector<int64_t> coordinates_;
  Program program_;
  std::unordered_map<const ReshardStep*, std::shared_ptr<const Collective>> collectives_;
};

}  // namespace

Partition::Partition(const Graph& graph, const Plan& plan, const Cluster& cluster,
                     Collectives collectives) {
  auto skeleton = std::make_unique<Skeleton>(Skeleton{graph, plan, {}});
  Partitioner(*skeleton, cluster).run();
  if (collectives == Collectives::together) bring_together(*skeleton);
  skeleton_ = std::move(skeleton);
}
Partition::~Partition() = default;

Program Partition::program(int64_t rank) const {
  const Mesh& mesh = skeleton_->plan.mesh;
  SR_REQUIRE(rank >= 0 && rank < mesh.size(), internal, "rank ", rank, " is not in the mesh ",
             mesh.to_string());
  return Localiser(*skeleton_, rank).run();
}

const Cuts& Partition::cuts() const { return skeleton_->cuts; }

}  // namespace shardrun
