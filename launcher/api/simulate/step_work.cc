// Prices of steps, their parts and layers, and what assumptions change in them.
#include "simulate/step_work.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "explain/planned_steps.h"
#include "planner/cost/attention_cost.h"
#include "planner/cost/collective_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/cost/tile_cost.h"
#include "program/memory.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

constexpr double kScoreBytes = 2;
constexpr int64_t kAlignedBytes = 16;
constexpr double kHeadsAtOnce = 4, kLongestRow = 2048;  // of Megatron-LM's kernel for softmax

/// For a step that comes from a node, or that moves a value, what is known of that node.
class NodesOf {
 public:
  explicit NodesOf(const Graph& graph)
      : graph_(graph), layers_(layers_of(graph)), parts_(parts_of(graph)) {
    for (size_t n = 0; n < graph.nodes().size(); ++n)
      nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
    for (size_t v = 0; v < graph.values().size(); ++v)
      values_.emplace(graph.values()[v].name, static_cast<ValueId>(v));
  }

  /// `before`: the step in front of it, whose part a move of a parameter has.
  void place(const Step& step, const StepWork* before, StepWork& work) const {
    const NodeId node = node_of(step);
    if (node >= 0) {
      work.layer = layers_[static_cast<size_t>(node)];
      work.part = parts_[static_cast<size_t>(node)];
    } else {
      work.layer = layer_in(step.source);
      if (before != nullptr) work.part = before->part;
    }
    // What updates a parameter within a micro-batch stands between kernels of the backward pass.
    if (step.phase == Phase::update) work.part = StepPart::update;
    if (step.phase == Phase::micro && work.part == StepPart::update) work.part = StepPart::backward;
  }

 private:
  NodeId node_of(const Step& step) const {
    if (step.kind == Step::Kind::kernel) {
      const auto own = nodes_.find(step.node.name);
      const auto node = own != nodes_.end() ? own : nodes_.find(step.source);
      return node == nodes_.end() ? -1 : node->second;
    }
    const auto value = values_.find(step.source);
    return value == values_.end() ? -1 : graph_.value(value->second).producer;
  }

  const Graph& graph_;
  std::vector<std::string> layers_;
  std::vector<StepPart> parts_;
  std::map<std::string, NodeId> nodes_;
  std::map<std::string, ValueId> values_;
};

/// Sets the seconds of attention that is not fused, those of its products, and its launches. Each
/// product passes over the scores once. Between them are kernels that do nothing else. Backward the
/// probabilities are there already.
void price_unfused(const Step& step, const Program& program, const Cluster& cluster,
                   StepWork& work) {
  const AttentionWork attention =
      attention_work(op_def(step.node.op).cost, step.node, types_of(program, step.in));
  const double pairs = attention.heads * attention.queries * attention.keys;
  const double pass = kScoreBytes * pairs / cluster.memory_bandwidth.value();
  double passes = attention.gradient ? kBackwardPasses : kForwardPasses;
  work.products = 0, work.seconds = kScoreKernels * cluster.kernel_latency;
  std::vector<MatmulWork> products = attention_products(attention);
  if (attention.gradient) products.erase(products.begin());
  for (const MatmulWork& product : products) {
    const double arithmetic = product_seconds(product, attention.dtype, cluster);
    work.products += arithmetic;
    work.seconds += std::max(arithmetic, pass) + cluster.kernel_latency;
    passes -= 1;
  }
  work.seconds += passes * pass;
  if (std::fmod(attention.heads, kHeadsAtOnce) != 0 || attention.keys > kLongestRow)
    work.launches += kPlainSoftmaxLaunches;
}

/// The seconds of the loss where each of its kernels takes the logits through memory. In parts, the
/// maximum before and the quotient behind keep their prices: they are of tokens, or one pass.
void price_unfused_loss(const Step& step, const Program& program, const Cluster& cluster,
                        StepWork& work) {
  const std::string& op = step.node.op;
  const bool both = op == "cross_entropy_and_grad", grad = op == "cross_entropy_grad";
  const bool forward = op == "cross_entropy" || op == "cross_entropy_sums" || both;
  if (!forward && !grad) return;
  const TensorType logits = type_of(program, step.in[both || grad ? 1 : 0]);
  const double bytes = (forward ? kLossBytes : 0) + (both || grad ? kLossBackwardBytes : 0);
  const double kernels = (forward ? kLossKernels : 0) + (both || grad ? kLossBackwardKernels : 0);
  work.products = 0;
  work.seconds =
      bytes * static_cast<double>(element_count(logits.shape)) / cluster.memory_bandwidth.value() +
      kernels * cluster.kernel_latency;
}

/// Does a product have a matrix whose rows are no multiple of 16 bytes? Weights are multiplied in
/// the type of the other operands, whatever they are kept in.
bool is_unaligned(const Step& step, const Program& program) {
  const Node product = has_post_ops(step.node.op) ? without_post_ops(step.node) : step.node;
  if (op_def(product.op).cost != CostClass::product) return false;
  const int64_t element = size_of(type_of(program, step.in[0]).dtype);
  const auto lies_badly = [&](BufferId id) {
    const Shape& shape = type_of(program, id).shape;
    return !shape.empty() && shape.back() > 1 && shape.back() * element % kAlignedBytes != 0;
  };
  return lies_badly(step.in[0]) || lies_badly(step.in[1]) || lies_badly(step.out[0]);
}

/// What the host asks for where nothing is fused with a product but what is assumed otherwise.
int launches_of(const Step& step, bool eager) {
  if (!eager || step.kind != Step::Kind::kernel || !has_post_ops(step.node.op)) return 1;
  return 1 + static_cast<int>(post_ops(step.node).size()) +
         (summed_operand(step.node).has_value() ? 1 : 0);
}

/// What a kernel's arithmetic takes, at most all of its time.
double arithmetic_of(const Step& step, const Program& program, const Cluster& cluster,
                     double seconds) {
  return std::min(seconds, arithmetic_seconds(step.node, types_of(program, step.in),
                                              types_of(program, step.out), cluster));
}

/// What a collective takes without bytes, at most all of its time.
double latency_of(const Step& step, const Program& program, const Cluster& cluster,
                  double seconds) {
  if (!step.collective->traits().is_measured()) return 0;  // of exchanges bytes take most
  return std::min(
      seconds, collective_seconds(step.collective->kind, MovedBytes{},
                                  wire_of(step.collective->axes, program.mesh, cluster), cluster));
}

/// A collective of half the bytes, its fraction of a call of `call` bytes.
double halved_seconds(const Step& step, const Program& program, const Cluster& cluster,
                      double call) {
  const auto half = [&](BufferId id) {
    return static_cast<double>(byte_size(type_of(program, id))) / 2;
  };
  return collective_seconds(step.collective->kind, {half(step.in[0]), half(step.out[0]), 0, call},
                            wire_of(step.collective->axes, program.mesh, cluster), cluster);
}

bool moves_gradient(const StepWork& work, const Step& step, const Program& program) {
  return communicates(step) && step.collective->traits().reduces &&
         step.collective->traits().is_measured() && work.part != StepPart::forward &&
         type_of(program, step.in[0]).dtype == DType::f32;
}

/// f32 gradients in two bytes for each element; all_reduces of one phase over the same axes as one
/// call.
void halve_gradients(const Program& program, const Cluster& cluster, std::vector<StepWork>& works) {
  std::map<std::pair<Phase, AxisSet>, double> calls;  // bytes
  for (const bool price : {false, true}) {
    for (size_t s = 0; s < works.size(); ++s) {
      const Step& step = program.steps[s];
      if (!moves_gradient(works[s], step, program)) continue;
      double& call = calls[{step.phase, axes_of(step)}];
      if (!price) {
        call += static_cast<double>(byte_size(type_of(program, step.in[0]))) / 2;
      } else {
        const double bytes = static_cast<double>(byte_size(type_of(program, step.in[0]))) / 2;
        works[s].seconds = halved_seconds(step, program, cluster, call);
        works[s].latency =
            latency_of(step, program, cluster, works[s].seconds * call / bytes) * bytes / call;
        works[s].sent /= 2;
      }
    }
  }
}

}  // namespace

Assumptions assumptions_named(const std::string& name) {
  if (name.empty()) return {};
  SR_REQUIRE(name == "megatron", invalid_input, "--assume is '", name, "', wanted megatron");
  return {.recompute_layers = true,
          .unfused_attention = true,
          .unfused_loss = true,
          .half_gradients = true,
          .collectives_between = true,
          .unaligned_products = true,
          .eager = true};
}

ProgramWork work_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                    const Program& program, CommStreams streams, const Assumptions& assumed) {
  ProgramWork out;
  out.program = &program;
  out.order = order_of(program, streams);
  const PlannedSteps planned(graph, plan, cluster, program);
  const NodesOf nodes(graph);
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    StepWork work;
    nodes.place(step, out.steps.empty() ? nullptr : &out.steps.back(), work);
    work.seconds = planned.of(s).seconds;
    work.launches = stays_in_place(program, step) ? 0 : launches_of(step, assumed.eager);
    if (communicates(step)) {
      work.kind = TaskKind::communication;
      const GroupSpan span = cluster.span_of(program.mesh, step.collective->axes);
      work.link = span.nodes > 1 ? TaskLink::between_nodes : TaskLink::within_node;
      work.latency = latency_of(step, program, cluster, work.seconds);
      work.sent = bytes_sent(*step.collective, type_of(program, step.in[0]).dtype, program.rank);
    } else if (assumed.unfused_attention &&
               (step.node.op == "attention" || step.node.op == "attention_grad")) {
      price_unfused(step, program, cluster, work);
    } else if (step.kind == Step::Kind::kernel) {
      work.products = arithmetic_of(step, program, cluster, work.seconds);
      if (assumed.unfused_loss) price_unfused_loss(step, program, cluster, work);
      if (assumed.unaligned_products && is_unaligned(step, program)) {
        work.seconds += (kUnalignedTimes - 1) * work.products;
        work.products *= kUnalignedTimes;
      }
    }
    out.steps.push_back(std::move(work));
  }
  if (assumed.half_gradients) halve_gradients(program, cluster, out.steps);
  for (const Binding& b : program.bindings) {
    const auto bytes = static_cast<double>(byte_size(type_of(program, b.buffer)));
    if (b.role == Role::batch) out.read_bytes += byte_size(type_of(program, b.buffer));
    if (b.zeroed_each_step)
      out.zeroed.push_back({b.buffer, bytes / cluster.memory_bandwidth.value()});
  }
  return out;
}

}  // namespace shardrun
