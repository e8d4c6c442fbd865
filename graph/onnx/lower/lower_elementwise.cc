// Lowering of element-wise operators: arithmetic, comparisons, logic, activations, casts.
#include <limits>

#include "graph/onnx/exporter/gradient_reach.h"
#include "graph/onnx/file/model_file.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// ONNX name -> internal name, for operators that differ in nothing else.
const std::map<std::string, std::string>& plain_names() {
  static const std::map<std::string, std::string> names = {{"Abs", "abs"},
                                                           {"Neg", "neg"},
                                                           {"Sign", "sign"},
                                                           {"Floor", "floor"},
                                                           {"Ceil", "ceil"},
                                                           {"Round", "round"},
                                                           {"Exp", "exp"},
                                                           {"Log", "log"},
                                                           {"Sqrt", "sqrt"},
                                                           {"Reciprocal", "reciprocal"},
                                                           {"Sin", "sin"},
                                                           {"Cos", "cos"},
                                                           {"Tan", "tan"},
                                                           {"Asin", "asin"},
                                                           {"Acos", "acos"},
                                                           {"Atan", "atan"},
                                                           {"Sinh", "sinh"},
                                                           {"Cosh", "cosh"},
                                                           {"Tanh", "tanh"},
                                                           {"Asinh", "asinh"},
                                                           {"Acosh", "acosh"},
                                                           {"Atanh", "atanh"},
                                                           {"Erf", "erf"},
                                                           {"Sigmoid", "sigmoid"},
                                                           {"Softplus", "softplus"},
                                                           {"Softsign", "softsign"},
                                                           {"Relu", "relu"},
                                                           {"Mish", "mish"},
                                                           {"HardSwish", "hard_swish"},
                                                           {"Not", "logical_not"},
                                                           {"IsNaN", "isnan"},
                                                           {"Add", "add"},
                                                           {"Sub", "sub"},
                                                           {"Mul", "mul"},
                                                           {"Div", "div"},
                                                           {"Equal", "equal"},
                                                           {"Less", "less"},
                                                           {"LessOrEqual", "less_equal"},
                                                           {"Greater", "greater"},
                                                           {"GreaterOrEqual", "greater_equal"},
                                                           {"And", "logical_and"},
                                                           {"Or", "logical_or"},
                                                           {"Xor", "logical_xor"},
                                                           {"Max", "max"},
                                                           {"Min", "min"},
                                                           {"Sum", "add"},
                                                           {"Mean", "add"}};
  return names;
}

void plain_unary(NodeContext& c) { c.out(c.b.add(plain_names().at(c.op()), {c.in(0)})); }

void plain_binary(NodeContext& c) { c.out(c.b.add(plain_names().at(c.op()), {c.in(0), c.in(1)})); }

/// Equal of booleans is "not xor"; the comparison kernels take numbers.
void equal(NodeContext& c) {
  if (c.b.dtype(c.in(0)) != DType::boolean) return plain_binary(c);
  c.out(c.b.add("logical_not", {c.b.add("logical_xor", {c.in(0), c.in(1)})}));
}

/// clamp() by a number, as the newer exporter writes it: Max with a scalar, then Min. At the bound
/// its gradient is 0, where that of two equal operands goes to each by half.
bool is_clamp(const NodeContext& c) {
  const bool max = c.op() == "Max";
  const FxCall* call = c.call_of("aten.clamp");
  if (call == nullptr || c.input_count() != 2 || !is_float(c.b.dtype(c.in(0)))) return false;
  const FxArgument* bound = call->find(max ? 1 : 2, max ? "min" : "max");
  const Tensor* number = c.b.known(c.in(1));
  return bound != nullptr && bound->value().starts_with("scalar_tensor") && number != nullptr &&
         number->count() == 1;
}

void variadic(NodeContext& c) {
  V total = c.in(0);
  if (is_clamp(c)) {
    const char* bound = c.op() == "Max" ? "min" : "max";
    return c.out(c.b.add("clip", {total}, {{bound, c.b.known(c.in(1))->at(0)}}));
  }
  for (size_t i = 1; i < c.input_count(); ++i)
    total = c.b.add(plain_names().at(c.op()), {total, c.in(i)});
  if (c.op() == "Mean") total = c.b.with("mul", total, 1.0 / static_cast<double>(c.input_count()));
  c.out(total);
}

void alpha_unary(NodeContext& c, const char* op, double alpha) {
  c.out(c.b.add(op, {c.in(0)}, {{"alpha", c.attr_f("alpha", alpha)}}));
}
void leaky_relu(NodeContext& c) { alpha_unary(c, "leaky_relu", 0.01); }
void elu(NodeContext& c) { alpha_unary(c, "elu", 1.0); }
void celu(NodeContext& c) { alpha_unary(c, "celu", 1.0); }
void thresholded_relu(NodeContext& c) { alpha_unary(c, "thresholded_relu", 1.0); }

void selu(NodeContext& c) {
  c.out(c.b.add("selu", {c.in(0)},
                {{"alpha", c.attr_f("alpha", 1.67326319217681884765625)},
                 {"gamma", c.attr_f("gamma", 1.05070102214813232421875)}}));
}

void hard_sigmoid(NodeContext& c) {
  c.out(c.b.add("hard_sigmoid", {c.in(0)},
                {{"alpha", c.attr_f("alpha", 0.2)}, {"beta", c.attr_f("beta", 0.5)}}));
}

/// TensorFlow's operators, which tf2onnx passes on as they are where ONNX has none: 1 - erf(x),
/// exp(x) - 1.
void erfc(NodeContext& c) {
  c.out(c.b.add("sub", {c.b.scalar(1, c.b.dtype(c.in(0))), c.b.add("erf", {c.in(0)})}));
}
void expm1(NodeContext& c) { c.out(c.b.with("sub", c.b.add("exp", {c.in(0)}), 1)); }

void gelu(NodeContext& c) {
  const std::string approximate = c.attr_s("approximate", "none");
  if (approximate != "none" && approximate != "tanh")
    c.refuse_attr("approximate", "supported are 'none' and 'tanh'");
  c.out(c.b.add("gelu", {c.in(0)}, {{"approximate", approximate}}));
}

/// x * sigmoid(alpha * x).
/// x sigmoid(alpha x) of the first operand.
V swished(NodeContext& c) {
  const double alpha = c.attr_f("alpha", 1.0);
  if (alpha == 1.0) return c.b.add("silu", {c.in(0)});
  return c.b.add("mul", {c.in(0), c.b.add("sigmoid", {c.b.with("mul", c.in(0), alpha)})});
}

void swish(NodeContext& c) { c.out(swished(c)); }

/// swish(a) b
void swiglu(NodeContext& c) {
  const TensorType type = c.b.type(c.in(0));
  SR_REQUIRE(c.b.type(c.in(1)) == type, invalid_input, "A is ", type, ", B ", c.b.type(c.in(1)),
             "; they are not broadcast");
  c.out(c.b.add("mul", {swished(c), c.in(1)}));
}

void prelu(NodeContext& c) {
  const V zero = c.b.scalar(0, c.b.dtype(c.in(0)));
  c.out(c.b.add("where", {c.b.add("less_equal", {c.in(0), zero}),
                          c.b.add("mul", {c.in(0), c.in(1)}), c.in(0)}));
}

/// x < -lambd: x + bias; x > lambd: x - bias; else 0.
void shrink(NodeContext& c) {
  const double lambd = c.attr_f("lambd", 0.5), bias = c.attr_f("bias", 0.0);
  const V x = c.in(0), zero = c.b.scalar(0, c.b.dtype(x));
  const V high = c.b.add("where", {c.b.with("greater", x, lambd), c.b.with("sub", x, bias), zero});
  c.out(c.b.add("where", {c.b.with("less", x, -lambd), c.b.with("add", x, bias), high}));
}

void is_inf(NodeContext& c) {
  c.out(c.b.add("isinf", {c.in(0)},
                {{"detect_negative", c.attr_i("detect_negative", 1)},
                 {"detect_positive", c.attr_i("detect_positive", 1)}}));
}

/// The exponent may have another type than the base; the result has the base's.
void pow(NodeContext& c) {
  const V base = c.in(0), exponent = c.in(1);
  const DType to = c.b.dtype(base);
  if (is_float(to) || !is_float(c.b.dtype(exponent)))
    return c.out(c.b.add("pow", {base, c.b.cast(exponent, to)}));
  c.out(c.b.cast(c.b.add("pow", {c.b.cast(base, DType::f32), exponent}), to));
}

void mod(NodeContext& c) {
  const int64_t fmod = c.attr_i("fmod", 0);
  SR_REQUIRE(fmod != 0 || c.opset >= 28 || !is_float(c.b.dtype(c.in(0))), invalid_input,
             "floating operands want fmod=1, until opset 28");
  c.out(c.b.add("mod", {c.in(0), c.in(1)}, {{"fmod", fmod}}));
}

/// Where attention's mask is false the newer exporter writes the lowest number, of f16 -65504, and
/// takes NaN out behind the softmax. Only minus infinity makes a query that sees nothing such a
/// NaN.
void where(NodeContext& c) {
  constexpr double kLowest = -65504;
  V b = c.in(2);
  const Tensor* masked = c.b.known(b);
  if (c.call_of("aten.scaled_dot_product_attention") != nullptr && masked != nullptr &&
      masked->count() == 1 && masked->at(0) <= kLowest)
    b = c.b.scalar(-std::numeric_limits<double>::infinity(), c.b.dtype(b));
  c.out(c.b.add("where", {c.in(0), c.in(1), b}));
}

void clip(NodeContext& c) {
  V x = c.in(0);
  Attrs bounds;
  const char* const names[] = {"min", "max"};
  for (size_t i = 1; i <= 2; ++i) {
    if (!c.has(i)) continue;
    const Tensor* bound = c.b.known(c.in(i));
    if (bound == nullptr) {
      SR_REQUIRE(element_count(c.b.shape(c.in(i))) == 1, invalid_input, names[i - 1], " is ",
                 c.b.type(c.in(i)), ", wanted a scalar");
    } else {
      SR_REQUIRE(bound->count() == 1, invalid_input, names[i - 1], " is ", c.b.type(c.in(i)),
                 ", wanted a scalar");
    }
    if (bound != nullptr && is_float(c.b.dtype(x))) bounds.set(names[i - 1], bound->at(0));
  }
  const bool all_known = bounds.all().size() == static_cast<size_t>(c.has(1) + c.has(2));
  if (all_known) return c.out(bounds.all().empty() ? x : c.b.add("clip", {x}, bounds));
  if (c.has(1)) x = c.b.add("max", {x, c.b.reshape(c.in(1), {})});
  if (c.has(2)) x = c.b.add("min", {x, c.b.reshape(c.in(2), {})});
  c.out(x);
}

void cast(NodeContext& c) {
  c.ignore("saturate");
  c.ignore("round_mode");
  SR_REQUIRE(c.has_attr("to"), invalid_input, "attribute 'to' is missing");
  c.out(c.b.cast(c.in(0), graph_dtype(static_cast<int>(c.attr_i("to", 1)))));
}

void cast_like(NodeContext& c) {
  c.ignore("saturate");
  c.ignore("round_mode");
  c.out(c.b.cast(c.in(0), c.b.dtype(c.in(1))));
}

void identity(NodeContext& c) {
  const V x = c.in(0);
  const bool stops = is_detach(c.proto) && is_float(c.b.dtype(x)) && c.b.known(x) == nullptr;
  c.out(stops ? c.b.add("identity", {x}, {{"detach", int64_t{1}}}) : x);
}

constexpr Lowering kElementwiseLowerings[] = {{"Abs", 6, plain_unary},
                                              {"Neg", 6, plain_unary},
                                              {"Sign", 9, plain_unary},
                                              {"Floor", 6, plain_unary},
                                              {"Ceil", 6, plain_unary},
                                              {"Round", 11, plain_unary},
                                              {"Exp", 6, plain_unary},
                                              {"Log", 6, plain_unary},
                                              {"Sqrt", 6, plain_unary},
                                              {"Reciprocal", 6, plain_unary},
                                              {"Sin", 7, plain_unary},
                                              {"Cos", 7, plain_unary},
                                              {"Tan", 7, plain_unary},
                                              {"Asin", 7, plain_unary},
                                              {"Acos", 7, plain_unary},
                                              {"Atan", 7, plain_unary},
                                              {"Sinh", 9, plain_unary},
                                              {"Cosh", 9, plain_unary},
                                              {"Tanh", 6, plain_unary},
                                              {"Asinh", 9, plain_unary},
                                              {"Acosh", 9, plain_unary},
                                              {"Atanh", 9, plain_unary},
                                              {"Erf", 9, plain_unary},
                                              {"Sigmoid", 6, plain_unary},
                                              {"Softplus", 1, plain_unary},
                                              {"Softsign", 1, plain_unary},
                                              {"Relu", 6, plain_unary},
                                              {"Mish", 18, plain_unary},
                                              {"HardSwish", 14, plain_unary},
                                              {"Not", 1, plain_unary},
                                              {"IsNaN", 9, plain_unary},
                                              {"IsInf", 10, is_inf},
                                              {"Add", 7, plain_binary},
                                              {"Sub", 7, plain_binary},
                                              {"Mul", 7, plain_binary},
                                              {"Div", 7, plain_binary},
                                              {"Equal", 7, equal},
                                              {"Less", 7, plain_binary},
                                              {"LessOrEqual", 12, plain_binary},
                                              {"Greater", 7, plain_binary},
                                              {"GreaterOrEqual", 12, plain_binary},
                                              {"And", 7, plain_binary},
                                              {"Or", 7, plain_binary},
                                              {"Xor", 7, plain_binary},
                                              {"Max", 8, variadic},
                                              {"Min", 8, variadic},
                                              {"Sum", 8, variadic},
                                              {"Mean", 8, variadic},
                                              {"LeakyRelu", 6, leaky_relu},
                                              {"Elu", 6, elu},
                                              {"Celu", 12, celu},
                                              {"ThresholdedRelu", 10, thresholded_relu},
                                              {"Selu", 6, selu},
                                              {"HardSigmoid", 6, hard_sigmoid},
                                              {"Erfc", 1, erfc},
                                              {"Expm1", 1, expm1},
                                              {"Gelu", 20, gelu},
                                              {"Swish", 24, swish},
                                              {"SwiGLU", 28, swiglu},
                                              {"PRelu", 9, prelu},
                                              {"Shrink", 9, shrink},
                                              {"Pow", 7, pow},
                                              {"Mod", 10, mod},
                                              {"Where", 9, where},
                                              {"Clip", 11, clip},
                                              {"Cast", 9, cast},
                                              {"CastLike", 15, cast_like},
                                              {"Identity", 1, identity}};

}  // namespace

std::span<const Lowering> elementwise_lowerings() { return kElementwiseLowerings; }

}  // namespace shardrun::importer
