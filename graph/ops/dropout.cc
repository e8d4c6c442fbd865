// dropout: the mask is a pure function of seed, key, step and the element's global position, so any
// mesh drops the same elements and the backward pass draws the mask again instead of keeping it.
#include "graph/ops/families.h"

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

double dropout_flops(const Node&, std::span<const TensorType> in, std::span<const TensorType>) {
  return 12 * static_cast<double>(element_count(in[0].shape));
}

}  // namespace

std::vector<OpDef> dropout_ops() {
  OpDef op;
  op.name = "dropout";
  op.infer = dropout_infer;
  op.gradient = dropout_gradient;
  op.flops = dropout_flops;
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
  return {op};
}

}  // namespace shardrun
