// LSTM over all of its steps: a layer is two nodes of a training step, however many steps it has.
//
//   lstm(x [S, B, 4, H], r [4, H, H], h0 [B, H], c0 [B, H]){reverse}
//     -> h [S, B, H], c [S, B, H], gates [S, B, 4, H]
//
// x is what the inputs give to the gates i, o, f and the candidate g, biases included. With the
// states h', c' of the step before (behind, where reverse is 1):
//
//   i, o, f = sigmoid(x + r h'), g = tanh(x + r h'), c = f c' + i g, h = o tanh(c)
//
//   lstm_grad(dh, dc, gates, c, r, c0){reverse} -> dx [S, B, 4, H], dh0 [B, H], dc0 [B, H]
//
// The gradient of r is a product of dx and the states before each step.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

constexpr int64_t kGates = 4;

void require(const TensorType& got, const TensorType& want, const char* operand) {
  SR_REQUIRE(got == want, invalid_input, operand, " is ", got, ", wanted ", want);
}

/// What states are of, by gates' type [S, B, 4, H].
TensorType states_of(const TensorType& gates) {
  require_float(gates, "the gates' operand");
  SR_REQUIRE(gates.shape.size() == 4 && gates.shape[2] == kGates, invalid_input,
             "the gates' operand is ", gates, ", wanted [steps, samples, 4, hidden]");
  return {gates.dtype, {gates.shape[0], gates.shape[1], gates.shape[3]}};
}
TensorType first_of(const TensorType& states) {
  return {states.dtype, {states.shape[1], states.shape[2]}};
}
TensorType weights_of(const TensorType& states) {
  return {states.dtype, {kGates, states.shape[2], states.shape[2]}};
}

Types infer_lstm(const Node&, InTypes in) {
  require_operands(in, 4);
  const TensorType states = states_of(in[0]);
  require(in[1], weights_of(states), "r");
  require(in[2], first_of(states), "h0");
  require(in[3], first_of(states), "c0");
  return {states, states, in[0]};
}

Types infer_lstm_grad(const Node&, InTypes in) {
  require_operands(in, 6);
  const TensorType states = states_of(in[2]);
  require(in[0], states, "dh");
  require(in[1], states, "dc");
  require(in[3], states, "c");
  require(in[4], weights_of(states), "r");
  require(in[5], first_of(states), "c0");
  return {in[2], first_of(states), first_of(states)};
}

/// The products; what else a step does to each number is little.
template <size_t kOfGates>
double recurrent_flops(const Node&, InTypes in, InTypes) {
  return static_cast<double>(element_count(in[kOfGates].shape)) *
         (2 * static_cast<double>(in[kOfGates].shape[3]) + 10);
}

/// Four stays four, of whatever other dims have that size.
template <size_t kOfGates, size_t kOfWeights>
Attrs shrink(const Node& node, InTypes, Types& in) {
  in[kOfGates].shape[2] = kGates;
  in[kOfWeights].shape[0] = kGates;
  return node.attrs;
}

/// [S, B, H]: the state before each step of `after`, the first of them `first` [B, H].
ValueId before_each(Graph& g, ValueId after, ValueId first, bool reverse) {
  const Shape shape = g.type(after).shape;
  const ValueId one = g.add("reshape", {first}, {{"shape", Shape{1, shape[1], shape[2]}}});
  if (shape[0] <= 1) return one;
  Ints starts(3, 0), ends = shape;
  reverse ? ++starts[0] : --ends[0];
  const ValueId rest =
      g.add("slice", {after}, {{"starts", starts}, {"ends", ends}, {"steps", Ints(3, 1)}});
  return g.add("concat", reverse ? Grads{rest, one} : Grads{one, rest}, {{"axis", int64_t{0}}});
}

Grads lstm_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId r = c.node.inputs[1], h0 = c.node.inputs[2], c0 = c.node.inputs[3];
  const ValueId h = c.node.outputs[0], cells = c.node.outputs[1], gates = c.node.outputs[2];
  SR_REQUIRE(c.out_grads[2] == kNoValue, unsupported, "an lstm's gates have no gradient");
  const auto or_zero = [&](ValueId grad) {
    return grad != kNoValue ? grad : fill(g, g.type(h), 0);
  };
  const Attrs reverse = {{"reverse", c.node.attrs.i("reverse", 0)}};
  const std::vector<ValueId> made =
      g.add_node("lstm_grad",
                 {or_zero(c.out_grads[0]), or_zero(c.out_grads[1]), gates, cells, r, c0}, reverse);
  ValueId dr = kNoValue;
  if (c.needs[1]) {
    const ValueId before = before_each(g, h, h0, c.node.attrs.i("reverse", 0) != 0);
    dr = g.add("matmul", {made[0], before}, {{"equation", std::string("sbkh,sbi->khi")}});
  }
  return {made[0], dr, made[1], made[2]};
}

TensorType floats(Shape shape) { return {DType::f32, std::move(shape)}; }

OpDef::Sample sample(int64_t s, int64_t b, int64_t h, int64_t reverse) {
  return {{floats({s, b, 4, h}), floats({4, h, h}), floats({b, h}), floats({b, h})},
          {{"reverse", reverse}}};
}
OpDef::Sample grad_sample(int64_t s, int64_t b, int64_t h, int64_t reverse) {
  return {{floats({s, b, h}), floats({s, b, h}), floats({s, b, 4, h}), floats({s, b, h}),
           floats({4, h, h}), floats({b, h})},
          {{"reverse", reverse}}};
}

}  // namespace

std::vector<OpDef> recurrence_ops() {
  return {{.name = "lstm",
           .infer = infer_lstm,
           .gradient = lstm_gradient,
           .flops = recurrent_flops<0>,
           .cost = CostClass::streamed,
           .precision = Precision::f32,
           .model_body = true,
           .shrink = shrink<0, 1>,
           .samples = {sample(3, 4, 2, 0), sample(2, 3, 5, 1), sample(1, 8, 3, 0)}},
          {.name = "lstm_grad",
           .infer = infer_lstm_grad,
           .flops = recurrent_flops<2>,
           .cost = CostClass::streamed,
           .precision = Precision::follows,
           .shrink = shrink<2, 4>,
           .samples = {grad_sample(3, 4, 2, 0), grad_sample(2, 3, 5, 1), grad_sample(1, 8, 3, 0)}}};
}

}  // namespace shardrun
