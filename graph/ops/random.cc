// dropout and random_uniform: what is drawn is a pure function of seed, key, step and the element's
// global position, so any mesh draws the same numbers and the backward pass draws them again
// instead of keeping them.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

std::vector<TensorType> dropout_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2, invalid_input, "dropout takes x and step, got ", in.size(),
             " operands");
  SR_REQUIRE(is_float(in[0].dtype), invalid_input, "dropout wants a floating x, got ", in[0]);
  SR_REQUIRE((in[1] == TensorType{DType::i64, {}}), invalid_input,
             "dropout wants step as i64[], got ", in[1]);
  const double p = node.attrs.f("p");
  SR_REQUIRE(p >= 0 && p < 1, invalid_input, "dropout has p=", p, "; it must be in [0, 1)");
  SR_REQUIRE(node.attrs.ints("global_shape").size() == in[0].shape.size() &&
                 node.attrs.ints("start").size() == in[0].shape.size(),
             invalid_input, "dropout wants one number per dim of x in global_shape and start");
  return {in[0]};
}

std::vector<ValueId> dropout_gradient(GradientContext& c) {
  return {c.graph.add("dropout", {c.out_grads[0], c.node.inputs[1]}, c.node.attrs), kNoValue};
}

Attrs dropout_localise(const Node& node, std::span<const TensorType>, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  std::vector<int64_t> start = attrs.ints("start");
  for (size_t d = 0; d < start.size(); ++d) start[d] += boxes.in[0][d].begin;
  attrs.set("start", start);
  return attrs;
}

Attrs dropout_shrink(const Node& node, std::span<const TensorType>, std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  attrs.set("global_shape", in[0].shape);
  attrs.set("start", std::vector<int64_t>(in[0].shape.size(), 0));
  return attrs;
}

double random_flops(const Node&, std::span<const TensorType>, std::span<const TensorType> out) {
  return 12 * static_cast<double>(element_count(out[0].shape));
}

std::vector<TensorType> uniform_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 1 && (in[0] == TensorType{DType::i64, {}}), invalid_input,
             "random_uniform wants step as i64[]");
  const Shape& shape = node.attrs.ints("shape");
  element_count(shape);  // throws where a dim is negative
  SR_REQUIRE(node.attrs.ints("global_shape").size() == shape.size() &&
                 node.attrs.ints("start").size() == shape.size(),
             invalid_input, "random_uniform wants one number per dim in global_shape and start");
  return {{DType::f32, shape}};
}

Attrs uniform_localise(const Node& node, std::span<const TensorType>, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  std::vector<int64_t> start = attrs.ints("start");
  for (size_t d = 0; d < start.size(); ++d) start[d] += boxes.out[0][d].begin;
  attrs.set("start", start);
  attrs.set("shape", box_shape(boxes.out[0]));
  return attrs;
}

Attrs uniform_shrink(const Node& node, std::span<const TensorType> original,
                     std::vector<TensorType>& in) {
  Shape shape = node.attrs.ints("shape");
  for (int64_t& size : shape) size = shrunk_size(size, original, in);
  Attrs attrs = node.attrs;
  attrs.set("shape", shape);
  attrs.set("global_shape", shape);
  attrs.set("start", std::vector<int64_t>(shape.size(), 0));
  return attrs;
}

}  // namespace

std::vector<OpDef> random_ops() {
  OpDef op;
  op.name = "dropout";
  op.infer = dropout_infer;
  op.gradient = dropout_gradient;
  op.flops = random_flops;
  op.cost = CostClass::streamed;
  op.precision = Precision::follows;
  op.evaluation.passes = {{0, 0}};
  op.localise = dropout_localise;
  op.shrink = dropout_shrink;
  op.in_place = {{0, 0}};
  for (const Shape& shape : {Shape{4, 6}, Shape{3, 5}, Shape{2, 3, 7}, Shape{9}}) {
    op.samples.push_back({{{DType::f32, shape}, {DType::i64, {}}},
                          {{"p", 0.4},
                           {"key", int64_t{11}},
                           {"seed", int64_t{3}},
                           {"global_shape", shape},
                           {"start", std::vector<int64_t>(shape.size(), 0)}}});
  }
  OpDef uniform;
  uniform.name = "random_uniform";
  uniform.infer = uniform_infer;
  uniform.flops = random_flops;
  uniform.cost = CostClass::streamed;
  uniform.precision = Precision::follows;
  uniform.draws = true;
  uniform.localise = uniform_localise;
  uniform.shrink = uniform_shrink;
  for (const Shape& shape : {Shape{4, 6}, Shape{3, 5}, Shape{2, 3, 7}, Shape{9}, Shape{}}) {
    uniform.samples.push_back({{{DType::i64, {}}},
                               {{"shape", shape},
                                {"key", int64_t{11}},
                                {"seed", int64_t{3}},
                                {"global_shape", shape},
                                {"start", std::vector<int64_t>(shape.size(), 0)}}});
  }
  return {op, uniform};
}

}  // namespace shardrun
