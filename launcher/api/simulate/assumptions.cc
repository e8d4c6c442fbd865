// What each assumption changes in the prices of steps.
#include "simulate/assumptions.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/at.h"
#include "base/error.h"
#include "planner/cost/attention_cost.h"
#include "planner/cost/collective_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/cost/tile_cost.h"
#include "program/ops/post.h"
#include "simulate/step_work.h"

namespace shardrun {
namespace {

constexpr double kScoreBytes = 2;
constexpr int64_t kAlignedBytes = 16;
constexpr double kHeadsAtOnce = 4, kLongestRow = 2048;  // of Megatron-LM's kernel for softmax

bool is_attention(const Step& step) {
  if (step.kind != Step::Kind::kernel) return false;
  const CostClass cost = op_def(step.node.op).cost;
  return cost == CostClass::attention || cost == CostClass::attention_grad;
}

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

/// Is a step a view in a framework whose tensors have strides?
bool is_view(const Step& step) {
  if (step.kind != Step::Kind::kernel) return false;
  const OpDef& op = op_def(step.node.op);
  return op.reshapes || op.cost == CostClass::transpose ||
         (op.elements == Elements::some && op.cost == CostClass::streamed);
}

/// Views that attention alone reads, and those of what its gradient made, take no time.
void free_views(const Program& program, std::vector<StepWork>& works) {
  std::vector<bool> copied(program.buffers.size(), false);  // is read by what is no view
  std::vector<bool> gradient(program.buffers.size(), false);
  for (size_t s = works.size(); s-- > 0;) {
    const Step& step = program.steps[s];
    const bool strides =
        is_attention(step) ||
        (is_view(step) && std::none_of(step.out.begin(), step.out.end(),
                                       [&](BufferId id) { return copied[at(id)]; }));
    if (strides && is_view(step)) works[s].seconds = 0, works[s].launches = 0;
    for (BufferId id : step.in) copied[at(id)] = copied[at(id)] || !strides;
  }
  for (size_t s = 0; s < works.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind != Step::Kind::kernel) continue;
    const OpDef& op = op_def(step.node.op);
    const bool moves = is_view(step) || op.elements == Elements::among;
    const bool of_gradient = op.cost == CostClass::attention_grad ||
                             (moves && std::all_of(step.in.begin(), step.in.end(),
                                                   [&](BufferId id) { return gradient[at(id)]; }));
    if (of_gradient && is_view(step)) works[s].seconds = 0, works[s].launches = 0;
    for (BufferId id : step.out) gradient[at(id)] = of_gradient;
  }
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

/// Adds to a gradient, in two bytes for each element.
void halve_adds(const Program& program, const Cluster& cluster, std::vector<StepWork>& works) {
  for (size_t s = 0; s < works.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind != Step::Kind::kernel || works[s].part != StepPart::backward) continue;
    if (!op_def(step.node.op).adds || type_of(program, step.out[0]).dtype != DType::f32) continue;
    works[s].seconds -= std::max(0.0, works[s].seconds - cluster.kernel_latency) / 2;
    works[s].products = std::min(works[s].products, works[s].seconds);
  }
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
        works[s].seconds = halved_seconds(step, program, cluster, call);
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
          .attention_views = true,
          .unfused_loss = true,
          .half_gradients = true,
          .collectives_between = true,
          .one_card = true,
          .scattered_activations = true,
          .unaligned_products = true,
          .eager = true};
}

void assume(const Assumptions& assumed, const Program& program, const Cluster& cluster,
            std::vector<StepWork>& works) {
  for (size_t s = 0; s < works.size(); ++s) {
    const Step& step = program.steps[s];
    StepWork& work = works[s];
    if (step.kind != Step::Kind::kernel) continue;
    if (assumed.unfused_attention && is_attention(step)) {
      price_unfused(step, program, cluster, work);
      continue;
    }
    if (assumed.unfused_loss) price_unfused_loss(step, program, cluster, work);
    if (assumed.unaligned_products && is_unaligned(step, program)) {
      work.seconds += (kUnalignedTimes - 1) * work.products;
      work.products *= kUnalignedTimes;
    }
  }
  if (assumed.attention_views) free_views(program, works);
  if (assumed.half_gradients) {
    halve_adds(program, cluster, works);
    halve_gradients(program, cluster, works);
  }
  for (size_t s = 0; assumed.one_card && s < works.size(); ++s) {
    const Step& step = program.steps[s];
    if (!moves_gradient(works[s], step, program)) continue;
    const GroupSpan span = cluster.span_of(program.mesh, step.collective->axes);
    works[s].mixed = span.nodes > 1 && span.per_node > 1;
    works[s].seconds *= works[s].mixed ? kCards : 1;
  }
}

}  // namespace shardrun
