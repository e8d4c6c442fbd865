// softmax, log_softmax, cross_entropy and their gradients.
//
//   cross_entropy(logits [.., V], labels [..]){ignore_index} -> losses [..], lse [..]
//   cross_entropy_grad(dlosses, logits, labels, lse){ignore_index, offset} -> dlogits
//
// and the losses in the steps that a mesh needs, which can be cut along the classes: what ranks
// find of theirs joins by maximum and sum (split_losses; whole again in Programs that cut no
// classes):
//
//   top = reduce_max(logits)
//   cross_entropy_sums(logits, labels, top){ignore_index, classes, offset} -> sums [.., 2]
//   cross_entropy_join(labels, top, sums){ignore_index} -> losses, lse
//
// sums[.., 0] adds up exp(logits - top), sums[.., 1] is the label's logit; 0 where that is another
// rank's, or ignored. `offset` is the class of the first logit, of `classes` in all. lse is the log
// of the sum of exponentials: top + log(sums[.., 0]).
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

void check_axis(const Node& node, const TensorType& x) {
  const int64_t axis = node.attrs.i("axis");
  SR_REQUIRE(is_float(x.dtype), invalid_input, node.op, " wants a floating operand, got ", x);
  SR_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(x.shape.size()), invalid_input, node.op,
             " has axis ", axis, " for an operand of ", x);
}

std::vector<TensorType> softmax_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 1, invalid_input, node.op, " takes 1 operand, got ", in.size());
  check_axis(node, in[0]);
  return {in[0]};
}

std::vector<TensorType> softmax_grad_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2 && in[0] == in[1], invalid_input, node.op,
             " wants dy and y of one type, got ", in[0],
             in.size() > 1 ? " and " + to_string(in[1]) : "");
  check_axis(node, in[0]);
  return {in[1]};
}

template <const char* kGradOp>
std::vector<ValueId> softmax_gradient(GradientContext& c) {
  return {c.graph.add(kGradOp, {c.out_grads[0], c.node.outputs[0]}, c.node.attrs)};
}
constexpr char kSoftmaxGrad[] = "softmax_grad";
constexpr char kLogSoftmaxGrad[] = "log_softmax_grad";

// Checks logits [..., V] and labels [...]; returns the losses' type.
TensorType check_labels(const Node& node, const TensorType& logits, const TensorType& labels) {
  SR_REQUIRE(is_float(logits.dtype) && !logits.shape.empty(), invalid_input, node.op,
             " wants floating logits of rank 1 or more, got ", logits);
  SR_REQUIRE(labels.dtype == DType::i64 || labels.dtype == DType::i32, invalid_input, node.op,
             " wants i64 or i32 labels, got ", labels);
  const Shape tokens(logits.shape.begin(), logits.shape.end() - 1);
  SR_REQUIRE(labels.shape == tokens, invalid_input, node.op, " wants labels of ", to_string(tokens),
             " for logits of ", logits, ", got ", labels);
  return {statistics_type(logits.dtype), tokens};
}

std::vector<TensorType> cross_entropy_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2, invalid_input, "cross_entropy takes 2 operands, got ", in.size());
  const TensorType loss = check_labels(node, in[0], in[1]);
  return {loss, loss};
}

std::vector<TensorType> cross_entropy_grad_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 4, invalid_input, "cross_entropy_grad takes 4 operands, got ", in.size());
  const TensorType loss = check_labels(node, in[1], in[2]);
  SR_REQUIRE(in[0] == loss && in[3] == loss, invalid_input,
             "cross_entropy_grad wants dloss and lse of ", loss, ", got ", in[0], " and ", in[3]);
  return {in[1]};
}

// ---- in parts ----

std::vector<TensorType> cross_entropy_sums_infer(const Node& node, std::span<const TensorType> in) {
  require_operands(in, 3);
  TensorType sums = check_labels(node, in[0], in[1]);
  SR_REQUIRE(in[2].dtype == in[0].dtype && in[2].shape == sums.shape, invalid_input,
             "cross_entropy_sums wants the maxima of logits ", in[0], ", got ", in[2]);
  sums.shape.push_back(2);
  return {sums};
}

std::vector<TensorType> cross_entropy_join_infer(const Node&, std::span<const TensorType> in) {
  require_operands(in, 3);
  require_index(in[0], "labels");
  require_float(in[1], "top");
  Shape sums = in[0].shape;
  sums.push_back(2);
  const TensorType loss{statistics_type(in[1].dtype), in[0].shape};
  SR_REQUIRE(in[1].shape == loss.shape && in[2].dtype == loss.dtype && in[2].shape == sums,
             invalid_input, "labels are ", in[0], ", top is ", in[1], ", sums are ", in[2],
             "; wanted a maximum and two sums of each label");
  return {loss, loss};
}

Attrs cross_entropy_sums_localise(const Node& node, std::span<const TensorType>, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  attrs.set("offset", attrs.i("offset", 0) + boxes.in[0].back().begin);
  return attrs;
}

Attrs cross_entropy_sums_shrink(const Node& node, std::span<const TensorType>,
                                std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  attrs.set("classes", in[0].shape.back());
  attrs.set("offset", int64_t{0});
  return attrs;
}

Attrs cross_entropy_join_shrink(const Node& node, std::span<const TensorType>,
                                std::vector<TensorType>& in) {
  in[2].shape.back() = 2;
  return node.attrs;
}

std::vector<ValueId> cross_entropy_gradient(GradientContext& c) {
  SR_REQUIRE(c.out_grads[1] == kNoValue, unsupported, "cross_entropy '", c.node.name,
             "' has no gradient through its second result (the log of the sum of exponentials)");
  const ValueId dlogits = c.graph.add(
      "cross_entropy_grad", {c.out_grads[0], c.node.inputs[0], c.node.inputs[1], c.node.outputs[1]},
      {{"ignore_index", c.node.attrs.i("ignore_index", -100)}});
  return {dlogits, kNoValue};
}

// Given lse, the gradient is elementwise over the classes too: a rank that holds classes
// [offset, offset + V) subtracts 1 where v + offset is the label.
Attrs cross_entropy_grad_localise(const Node& node, std::span<const TensorType>, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  attrs.set("offset", attrs.i("offset", 0) + boxes.in[1].back().begin);
  return attrs;
}

template <int kLogits>
std::optional<int64_t> label_bound(const Node& node, std::span<const TensorType> in,
                                   size_t operand) {
  if (operand != kLogits + 1) return std::nullopt;
  return in[kLogits].shape.back() + node.attrs.i("offset", 0);
}

template <int kPerElement, int kOperand>
double softmax_flops(const Node&, std::span<const TensorType> in, std::span<const TensorType>) {
  return kPerElement * static_cast<double>(element_count(in[kOperand].shape));
}

std::vector<OpDef::Sample> softmax_samples(size_t operands) {
  const std::vector<std::pair<Shape, int64_t>> shapes = {
      {{4, 6}, 1}, {{2, 3, 8}, 2}, {{3, 5, 7}, 1}, {{5, 3}, 0}, {{7}, 0}};
  std::vector<OpDef::Sample> out;
  for (const auto& [shape, axis] : shapes) {
    out.push_back({std::vector<TensorType>(operands, {DType::f32, shape}), {{"axis", axis}}});
  }
  return out;
}

enum class LossPart { whole, grad, sums, join };

std::vector<OpDef::Sample> cross_entropy_samples(LossPart part) {
  std::vector<OpDef::Sample> out;
  for (const Shape& tokens : {Shape{4}, Shape{2, 4}, Shape{3, 5}, Shape{}}) {
    for (const DType label : {DType::i64, DType::i32}) {
      Shape logits = tokens;
      logits.push_back(label == DType::i64 ? 6 : 7);
      OpDef::Sample s{{{DType::f32, logits}, {label, tokens}},
                      {{"ignore_index", label == DType::i64 ? int64_t{-100} : int64_t{1}}}};
      const TensorType each{DType::f32, tokens};
      if (part == LossPart::grad) {
        s.in.insert(s.in.begin(), each);
        s.in.push_back(each);
      } else if (part == LossPart::sums) {
        s.in.push_back(each);
        s.attrs.set("classes", logits.back());
      } else if (part == LossPart::join) {
        logits.back() = 2;
        s.in = {{label, tokens}, each, {DType::f32, logits}};
        s.low = 0.4;  // sums of exponentials are well above 0
      }
      out.push_back(s);
    }
  }
  return out;
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  return {
      {.name = "softmax",
       .infer = softmax_infer,
       .gradient = softmax_gradient<kSoftmaxGrad>,
       .flops = softmax_flops<5, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .model_body = true,
       .in_place = {{0, 0}},
       .samples = softmax_samples(1)},
      {.name = "softmax_grad",
       .infer = softmax_grad_infer,
       .flops = softmax_flops<4, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {0, 1}},
       .samples = softmax_samples(2)},
      {.name = "log_softmax",
       .infer = softmax_infer,
       .gradient = softmax_gradient<kLogSoftmaxGrad>,
       .flops = softmax_flops<5, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::f32,
       .in_place = {{0, 0}},
       .samples = softmax_samples(1)},
      {.name = "log_softmax_grad",
       .infer = softmax_grad_infer,
       .flops = softmax_flops<4, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {0, 1}},
       .samples = softmax_samples(2)},
      {.name = "cross_entropy",
       .infer = cross_entropy_infer,
       .gradient = cross_entropy_gradient,
       .flops = softmax_flops<4, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .model_body = true,
       .index_bound = label_bound<0>,
       .samples = cross_entropy_samples(LossPart::whole)},
      {.name = "cross_entropy_grad",
       .infer = cross_entropy_grad_infer,
       .flops = softmax_flops<4, 1>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .localise = cross_entropy_grad_localise,
       .index_bound = label_bound<1>,
       .in_place = {{0, 1}},
       .samples = cross_entropy_samples(LossPart::grad)},
      {.name = "cross_entropy_sums",
       .infer = cross_entropy_sums_infer,
       .flops = softmax_flops<3, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .model_body = true,
       .localise = cross_entropy_sums_localise,
       .shrink = cross_entropy_sums_shrink,
       .index_bound = [](const Node& node, std::span<const TensorType>,
                         size_t operand) -> std::optional<int64_t> {
         if (operand != 1) return std::nullopt;
         return node.attrs.i("classes");
       },
       .samples = cross_entropy_samples(LossPart::sums)},
      {.name = "cross_entropy_join",
       .infer = cross_entropy_join_infer,
       .flops = softmax_flops<4, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .shrink = cross_entropy_join_shrink,
       .samples = cross_entropy_samples(LossPart::join)},
  };
}

}  // namespace shardrun
