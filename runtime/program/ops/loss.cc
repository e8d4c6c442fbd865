// cross_entropy_and_grad(dlosses, logits, labels){ignore_index} -> losses, dlogits: both at once,
// where the losses' gradient is known beforehand (runtime/program/fusion/patterns.h).
#include "graph/ops/gradients.h"
#include "program/ops/families.h"

namespace shardrun {
namespace {

Types infer(const Node& node, InTypes in) {
  require_operands(in, 3);
  Node losses = node;
  losses.op = "cross_entropy";
  const TensorType loss = infer_types(losses, in.subspan(1))[0];
  SR_REQUIRE(in[0] == loss, invalid_input, "cross_entropy_and_grad wants dloss of ", loss, ", got ",
             in[0]);
  return {loss, in[1]};
}

std::vector<OpDef::Sample> samples() {
  std::vector<OpDef::Sample> out;
  for (const Shape& tokens : {Shape{4}, Shape{2, 4}, Shape{3, 5}, Shape{}}) {
    for (const DType label : {DType::i64, DType::i32}) {
      Shape logits = tokens;
      logits.push_back(label == DType::i64 ? 6 : 7);
      out.push_back({{{DType::f32, tokens}, {DType::f32, logits}, {label, tokens}},
                     {{"ignore_index", label == DType::i64 ? int64_t{-100} : int64_t{1}}}});
    }
  }
  return out;
}

}  // namespace

std::vector<OpDef> fused_loss_ops() {
  return {{.name = "cross_entropy_and_grad",
           .infer = infer,
           .flops = [](const Node&, InTypes in,
                       InTypes) { return 8 * static_cast<double>(element_count(in[1].shape)); },
           .cost = CostClass::streamed,
           .precision = Precision::follows,
           .index_bound = [](const Node&, InTypes in, size_t operand) -> std::optional<int64_t> {
             if (operand != 2) return std::nullopt;
             return in[1].shape.back();
           },
           .in_place = {{1, 1}},
           .samples = samples()}};
}

}  // namespace shardrun
