// Element-wise ops: unary, binary with numpy broadcasting, where, clip, cast.
#include "graph/ops/elementwise.h"

#include <numbers>
#include <set>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {

double activation_attr(const Node& node, const std::string& name) {
  double otherwise = 1.0;
  if (node.op == "leaky_relu") otherwise = 0.01;
  if (node.op == "selu")
    otherwise = name == "alpha" ? 1.67326319217681884765625 : 1.05070102214813232421875;
  if (node.op == "hard_sigmoid") otherwise = name == "alpha" ? 0.2 : 0.5;
  return node.attrs.f(name, otherwise);
}

namespace {

// ---- shape rules ----

bool is_numeric(DType d) { return d != DType::boolean && d != DType::f16; }

void require_numeric(const TensorType& type) {
  SR_REQUIRE(is_numeric(type.dtype), invalid_input, "operand is ", type, ", wanted a number type");
}

void require_boolean(const TensorType& type) {
  SR_REQUIRE(type.dtype == DType::boolean, invalid_input, "operand is ", type, ", wanted boolean");
}

Types infer_float_unary(const Node&, InTypes in) {
  require_operands(in, 1);
  require_float(in[0], "operand");
  return {in[0]};
}

Types infer_numeric_unary(const Node&, InTypes in) {
  require_operands(in, 1);
  require_numeric(in[0]);
  return {in[0]};
}

Types infer_identity(const Node&, InTypes in) {
  require_operands(in, 1);
  return {in[0]};
}

Types infer_float_test(const Node&, InTypes in) {
  require_operands(in, 1);
  require_float(in[0], "operand");
  return {{DType::boolean, in[0].shape}};
}

Types infer_not(const Node&, InTypes in) {
  require_operands(in, 1);
  require_boolean(in[0]);
  return {in[0]};
}

Types infer_binary(const Node&, InTypes in) {
  require_operands(in, 2);
  require_same_dtype(in[0], in[1]);
  require_numeric(in[0]);
  return {{in[0].dtype, broadcast_shape(in[0].shape, in[1].shape)}};
}

Types infer_comparison(const Node&, InTypes in) {
  require_operands(in, 2);
  require_same_dtype(in[0], in[1]);
  return {{DType::boolean, broadcast_shape(in[0].shape, in[1].shape)}};
}

Types infer_logical(const Node&, InTypes in) {
  require_operands(in, 2);
  require_boolean(in[0]);
  require_boolean(in[1]);
  return {{DType::boolean, broadcast_shape(in[0].shape, in[1].shape)}};
}

Types infer_where(const Node&, InTypes in) {
  require_operands(in, 3);
  require_boolean(in[0]);
  require_same_dtype(in[1], in[2]);
  return {{in[1].dtype, broadcast_shape(in[0].shape, broadcast_shape(in[1].shape, in[2].shape))}};
}

Types infer_cast(const Node& node, InTypes in) {
  require_operands(in, 1);
  return {{parse_dtype(node.attrs.s("to")), in[0].shape}};
}

Types infer_gelu_grad(const Node&, InTypes in) {
  require_operands(in, 2);
  require_float(in[0], "x");
  SR_REQUIRE(in[0] == in[1], invalid_input, "x is ", in[0], ", dy is ", in[1],
             "; they must be the same");
  return {in[0]};
}

// ---- gradients: a short language in which a rule reads like its formula ----

/// A value inside a gradient rule.
struct Expr {
  GradientContext& c;
  ValueId id;
};

Expr op(const char* name, Expr a) { return {a.c, a.c.graph.add(name, {a.id})}; }
Expr op(const char* name, Expr a, Expr b) { return {a.c, a.c.graph.add(name, {a.id, b.id})}; }
Expr number(Expr like, double value) {
  return {like.c, scalar(like.c.graph, like.c.graph.type(like.id).dtype, value)};
}
Expr operator+(Expr a, Expr b) { return op("add", a, b); }
Expr operator-(Expr a, Expr b) { return op("sub", a, b); }
Expr operator*(Expr a, Expr b) { return op("mul", a, b); }
Expr operator/(Expr a, Expr b) { return op("div", a, b); }
Expr operator-(Expr a) { return op("neg", a); }
Expr operator+(Expr a, double b) { return a + number(a, b); }
Expr operator*(Expr a, double b) { return a * number(a, b); }
Expr operator-(double a, Expr b) { return number(b, a) - b; }
Expr operator>(Expr a, double b) { return op("greater", a, number(a, b)); }
Expr operator<(Expr a, double b) { return op("less", a, number(a, b)); }
Expr where(Expr cond, Expr a, Expr b) {
  return {cond.c, cond.c.graph.add("where", {cond.id, a.id, b.id})};
}
Expr where(Expr cond, Expr a, double b) { return where(cond, a, number(a, b)); }
/// Of dy what goes to `a`, which was chosen where it compares so with `b`: half where both are
/// equal.
Expr chosen(const char* compares, Expr a, Expr b, Expr dy) {
  return where(op(compares, a, b), dy, where(op("equal", a, b), dy * 0.5, 0));
}

/// With detach = 1 nothing flows back.
Grads identity_gradient(GradientContext& c) {
  return {c.node.attrs.i("detach", 0) != 0 ? kNoValue : c.out_grads[0]};
}

/// dx from x, y and dy.
using UnaryRule = Expr (*)(const Node&, Expr x, Expr y, Expr dy);

std::function<Grads(GradientContext&)> unary_gradient(UnaryRule rule) {
  return [rule](GradientContext& c) -> Grads {
    const Expr dx =
        rule(c.node, {c, c.node.inputs[0]}, {c, c.node.outputs[0]}, {c, c.out_grads[0]});
    return {dx.id};
  };
}

/// Constant between jumps: nothing flows back.
Grads zero_gradient(GradientContext& c) { return Grads(c.node.inputs.size(), kNoValue); }

/// da and db (not yet summed over broadcast dims) from a, b, y and dy.
using BinaryRule = Expr (*)(Expr a, Expr b, Expr y, Expr dy);

std::function<Grads(GradientContext&)> binary_gradient(BinaryRule da, BinaryRule db) {
  return [da, db](GradientContext& c) {
    Grads grads(2, kNoValue);
    const Expr a{c, c.node.inputs[0]}, b{c, c.node.inputs[1]};
    const Expr y{c, c.node.outputs[0]}, dy{c, c.out_grads[0]};
    if (c.needs[0]) grads[0] = unbroadcast(c.graph, da(a, b, y, dy).id, Shape(c.in_shape(0)));
    if (c.needs[1]) grads[1] = unbroadcast(c.graph, db(a, b, y, dy).id, Shape(c.in_shape(1)));
    return grads;
  };
}

Grads where_gradient(GradientContext& c) {
  Grads grads(3, kNoValue);
  const Expr cond{c, c.node.inputs[0]}, dy{c, c.out_grads[0]};
  const Expr zero = number(dy, 0);
  if (c.needs[1]) {
    grads[1] = unbroadcast(c.graph, where(cond, dy, zero).id, Shape(c.in_shape(1)));
  }
  if (c.needs[2]) {
    grads[2] = unbroadcast(c.graph, where(cond, zero, dy).id, Shape(c.in_shape(2)));
  }
  return grads;
}

Grads clip_gradient(GradientContext& c) {
  const Expr x{c, c.node.inputs[0]};
  ValueId dx = c.out_grads[0];
  for (const auto& [bound, inside] : {std::pair{"min", "greater"}, {"max", "less"}}) {
    if (!c.node.attrs.has(bound)) continue;
    dx = where(op(inside, x, number(x, c.node.attrs.f(bound))), {c, dx}, 0).id;
  }
  return {dx};
}

Grads cast_gradient(GradientContext& c) {
  const TensorType from = c.in_type(0);
  if (!is_float(from.dtype) || !is_float(c.graph.type(c.node.outputs[0]).dtype)) return {kNoValue};
  return {c.graph.add("cast", {c.out_grads[0]}, {{"to", std::string(to_string(from.dtype))}})};
}

Grads gelu_gradient(GradientContext& c) {
  return {c.graph.add("gelu_grad", {c.node.inputs[0], c.out_grads[0]}, c.node.attrs)};
}

// ---- samples ----

TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }

std::vector<OpDef::Sample> unary_samples(double low, double high, Attrs attrs = {}) {
  return {{{f32({3, 4})}, attrs, low, high},
          {{f32({5})}, attrs, low, high},
          {{f32({2, 3, 5})}, attrs, low, high},
          {{f32({})}, attrs, low, high}};
}

std::vector<OpDef::Sample> binary_samples(DType d, double low, double high, Attrs attrs = {}) {
  std::vector<OpDef::Sample> samples;
  const std::pair<Shape, Shape> shapes[] = {{{3, 4}, {3, 4}}, {{2, 3, 5}, {5}},    {{4, 1}, {3}},
                                            {{5}, {}},        {{1, 3}, {2, 1, 3}}, {{}, {}}};
  for (const auto& [a, b] : shapes) samples.push_back({{{d, a}, {d, b}}, attrs, low, high});
  return samples;
}

void add_integer_samples(OpDef& def, const Attrs& attrs = {}) {
  for (DType d : {DType::i64, DType::i32}) {
    def.samples.push_back({{{d, {3, 4}}, {d, {4}}}, attrs});
  }
}

// ---- the list ----

OpDef unary(const char* name, UnaryRule rule, std::vector<OpDef::Sample> samples,
            decltype(&infer_float_unary) infer = infer_float_unary) {
  OpDef def;
  def.name = name;
  def.infer = infer;
  def.gradient = rule != nullptr ? unary_gradient(rule) : zero_gradient;
  def.cost = CostClass::streamed;
  def.precision = Precision::follows;
  def.in_place = {{0, 0}};
  def.samples = std::move(samples);
  return def;
}

void add_arithmetic(std::vector<OpDef>& ops) {
  ops.push_back(unary("identity", nullptr, unary_samples(-1, 1), infer_identity));
  ops.back().gradient = identity_gradient;
  ops.push_back(unary(
      "neg", [](const Node&, Expr, Expr, Expr dy) { return -dy; }, unary_samples(-1, 1),
      infer_numeric_unary));
  ops.push_back(unary(
      "abs", [](const Node&, Expr x, Expr, Expr dy) { return dy * op("sign", x); },
      unary_samples(0.1, 2), infer_numeric_unary));
  ops.back().samples.push_back({{f32({4, 3})}, {}, -2, -0.1});
  ops.push_back(unary("sign", nullptr, unary_samples(0.1, 2), infer_numeric_unary));
  ops.back().samples.push_back({{f32({4, 3})}, {}, -2, -0.1});
  ops.push_back(unary("floor", nullptr, unary_samples(1.1, 1.9)));
  ops.push_back(unary("ceil", nullptr, unary_samples(-1.9, -1.1)));
  ops.push_back(unary("round", nullptr, unary_samples(0.6, 1.4)));
  ops.push_back(unary(
      "exp", [](const Node&, Expr, Expr y, Expr dy) { return dy * y; }, unary_samples(-2, 2)));
  ops.push_back(unary(
      "log", [](const Node&, Expr x, Expr, Expr dy) { return dy / x; }, unary_samples(0.2, 3)));
  ops.push_back(unary(
      "sqrt",
      [](const Node&, Expr x, Expr y, Expr dy) {
        const Expr dx = dy * 0.5 / y;
        return sums_powers(x.c.graph, x.id) ? where(y > 0, dx, 0) : dx;
      },
      unary_samples(0.2, 3)));
  ops.push_back(unary(
      "reciprocal", [](const Node&, Expr, Expr y, Expr dy) { return -(dy * y * y); },
      unary_samples(0.3, 2)));
}

void add_trigonometric(std::vector<OpDef>& ops) {
  ops.push_back(unary(
      "sin", [](const Node&, Expr x, Expr, Expr dy) { return dy * op("cos", x); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "cos", [](const Node&, Expr x, Expr, Expr dy) { return -(dy * op("sin", x)); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "tan", [](const Node&, Expr, Expr y, Expr dy) { return dy * (y * y + 1); },
      unary_samples(-1, 1)));
  ops.push_back(unary(
      "asin", [](const Node&, Expr x, Expr, Expr dy) { return dy / op("sqrt", 1 - x * x); },
      unary_samples(-0.8, 0.8)));
  ops.push_back(unary(
      "acos", [](const Node&, Expr x, Expr, Expr dy) { return -(dy / op("sqrt", 1 - x * x)); },
      unary_samples(-0.8, 0.8)));
  ops.push_back(unary(
      "atan", [](const Node&, Expr x, Expr, Expr dy) { return dy / (x * x + 1); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "sinh", [](const Node&, Expr x, Expr, Expr dy) { return dy * op("cosh", x); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "cosh", [](const Node&, Expr x, Expr, Expr dy) { return dy * op("sinh", x); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "tanh", [](const Node&, Expr, Expr y, Expr dy) { return dy * (1 - y * y); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "asinh", [](const Node&, Expr x, Expr, Expr dy) { return dy / op("sqrt", x * x + 1); },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "acosh", [](const Node&, Expr x, Expr, Expr dy) { return dy / op("sqrt", x * x + -1); },
      unary_samples(1.3, 3)));
  ops.push_back(unary(
      "atanh", [](const Node&, Expr x, Expr, Expr dy) { return dy / (1 - x * x); },
      unary_samples(-0.8, 0.8)));
}

void add_smooth_activations(std::vector<OpDef>& ops) {
  ops.push_back(unary(
      "erf",
      [](const Node&, Expr x, Expr, Expr dy) {
        return dy * (op("exp", -(x * x)) * (2 * std::numbers::inv_sqrtpi));
      },
      unary_samples(-2, 2)));
  ops.push_back(unary(
      "sigmoid", [](const Node&, Expr, Expr y, Expr dy) { return dy * y * (1 - y); },
      unary_samples(-3, 3)));
  ops.push_back(unary(
      "softplus", [](const Node&, Expr x, Expr, Expr dy) { return dy * op("sigmoid", x); },
      unary_samples(-3, 3)));
  ops.push_back(unary(
      "softsign",
      [](const Node&, Expr x, Expr, Expr dy) {
        const Expr d = op("abs", x) + 1;
        return dy / (d * d);
      },
      unary_samples(0.1, 3)));
  ops.push_back(unary(
      "silu",
      [](const Node&, Expr x, Expr, Expr dy) {
        const Expr s = op("sigmoid", x);
        return dy * (s * (x * (1 - s) + 1));
      },
      unary_samples(-3, 3)));
  ops.push_back(unary(
      "mish",
      [](const Node&, Expr x, Expr, Expr dy) {
        const Expr t = op("tanh", op("softplus", x));
        return dy * (t + x * (1 - t * t) * op("sigmoid", x));
      },
      unary_samples(-3, 3)));
}

/// Activations with corners: samples on each side of them.
void add_activations(std::vector<OpDef>& ops) {
  auto add = [&](const char* name, UnaryRule rule, Attrs attrs,
                 std::vector<std::pair<double, double>> ranges) {
    std::vector<OpDef::Sample> samples = unary_samples(ranges[0].first, ranges[0].second, attrs);
    for (size_t i = 1; i < ranges.size(); ++i) {
      samples.push_back({{f32({4, 3})}, attrs, ranges[i].first, ranges[i].second});
    }
    ops.push_back(unary(name, rule, std::move(samples)));
  };
  add("relu", [](const Node&, Expr, Expr y, Expr dy) { return where(y > 0, dy, 0); }, {},
      {{0.1, 2}, {-2, -0.1}});
  ops.back().infer = infer_numeric_unary;
  ops.back().samples.push_back({{{DType::i64, {3, 5}}}});
  add("leaky_relu",
      [](const Node& n, Expr x, Expr, Expr dy) {
        return where(x > 0, dy, dy * activation_attr(n, "alpha"));
      },
      {{"alpha", 0.2}}, {{0.1, 2}, {-2, -0.1}});
  add("elu",
      [](const Node& n, Expr x, Expr y, Expr dy) {
        return where(x > 0, dy, dy * (y + activation_attr(n, "alpha")));
      },
      {{"alpha", 1.3}}, {{0.1, 2}, {-2, -0.1}});
  add("selu",
      [](const Node& n, Expr x, Expr y, Expr dy) {
        const double gamma = activation_attr(n, "gamma");
        return where(x > 0, dy * gamma, dy * (y + gamma * activation_attr(n, "alpha")));
      },
      {}, {{0.1, 2}, {-2, -0.1}});
  add("celu",
      [](const Node& n, Expr x, Expr y, Expr dy) {
        return where(x > 0, dy, dy * (y * (1 / activation_attr(n, "alpha")) + 1));
      },
      {{"alpha", 0.7}}, {{0.1, 2}, {-2, -0.1}});
  add("hard_sigmoid",
      [](const Node& n, Expr, Expr y, Expr dy) {
        return where(op("logical_and", y > 0, y < 1), dy * activation_attr(n, "alpha"), 0);
      },
      {}, {{-2, 2}, {2.6, 4}, {-4, -2.6}});
  add("hard_swish",
      [](const Node&, Expr x, Expr, Expr dy) {
        const Expr slope = where(x < 3, x * (1.0 / 3) + 0.5, 1);
        return dy * where(x > -3, slope, 0);
      },
      {}, {{-2.9, 2.9}, {3.1, 4}, {-4, -3.1}});
  add("thresholded_relu",
      [](const Node& n, Expr x, Expr, Expr dy) {
        return where(x > activation_attr(n, "alpha"), dy, 0);
      },
      {{"alpha", 0.5}}, {{0.6, 2}, {-1, 0.4}});

  for (const char* approximate : {"none", "tanh"}) {
    const Attrs attrs{{"approximate", std::string(approximate)}};
    const std::vector<OpDef::Sample> samples = unary_samples(-3, 3, attrs);
    if (approximate == std::string("none")) {
      ops.push_back(unary("gelu", nullptr, samples));
      ops.back().gradient = gelu_gradient;
      OpDef grad = unary("gelu_grad", nullptr, {}, infer_gelu_grad);
      grad.gradient = nullptr;
      grad.in_place = {{0, 0}, {0, 1}};
      ops.push_back(std::move(grad));
    } else {
      OpDef& gelu = ops[ops.size() - 2];
      gelu.samples.insert(gelu.samples.end(), samples.begin(), samples.end());
    }
    for (const OpDef::Sample& s : samples) {
      ops.back().samples.push_back({{s.in[0], s.in[0]}, attrs, s.low, s.high});
    }
  }
}

OpDef binary(const char* name, BinaryRule da, BinaryRule db, double low, double high,
             Attrs attrs = {}) {
  OpDef def;
  def.name = name;
  def.infer = infer_binary;
  def.gradient = binary_gradient(da, db);
  def.cost = CostClass::streamed;
  def.precision = Precision::follows;
  def.in_place = {{0, 0}, {0, 1}};
  def.samples = binary_samples(DType::f32, low, high, attrs);
  return def;
}

void add_binary(std::vector<OpDef>& ops) {
  ops.push_back(binary(
      "add", [](Expr, Expr, Expr, Expr dy) { return dy; },
      [](Expr, Expr, Expr, Expr dy) { return dy; }, -1, 1));
  ops.back().adds = true;
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "sub", [](Expr, Expr, Expr, Expr dy) { return dy; },
      [](Expr, Expr, Expr, Expr dy) { return -dy; }, -1, 1));
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "mul", [](Expr, Expr b, Expr, Expr dy) { return dy * b; },
      [](Expr a, Expr, Expr, Expr dy) { return dy * a; }, -1, 1));
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "div", [](Expr, Expr b, Expr, Expr dy) { return dy / b; },
      [](Expr, Expr b, Expr y, Expr dy) { return -(dy * y / b); }, 0.5, 2));
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "pow",
      [](Expr a, Expr b, Expr, Expr dy) {
        // 0 where b is 0, also at a = 0, where a^-1 is infinite.
        const Expr power = where(op("equal", b, number(b, 0)), number(a, 0), op("pow", a, b + -1));
        const Expr dx = dy * b * power;
        if (!sums_powers(a.c.graph, a.id)) return dx;
        return where(op("logical_and", op("equal", a, number(a, 0)), b < 1), number(a, 0), dx);
      },
      [](Expr a, Expr, Expr y, Expr dy) {  // 0^b is constant in b > 0
        return dy * y * where(a > 0, op("log", a), 0);
      },
      0.3, 2));
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "max", [](Expr a, Expr b, Expr, Expr dy) { return chosen("greater", a, b, dy); },
      [](Expr a, Expr b, Expr, Expr dy) { return chosen("greater", b, a, dy); }, -1, 1));
  add_integer_samples(ops.back());
  ops.push_back(binary(
      "min", [](Expr a, Expr b, Expr, Expr dy) { return chosen("less", a, b, dy); },
      [](Expr a, Expr b, Expr, Expr dy) { return chosen("less", b, a, dy); }, -1, 1));
  add_integer_samples(ops.back());
  // y = a - q b with q = floor(a / b) or trunc(a / b), constant between jumps.
  ops.push_back(binary(
      "mod", [](Expr, Expr, Expr, Expr dy) { return dy; },
      [](Expr a, Expr b, Expr y, Expr dy) { return -(dy * op("round", (a - y) / b)); }, 1.05, 1.95,
      {{"fmod", int64_t{1}}}));
  for (int64_t fmod : {0, 1}) add_integer_samples(ops.back(), {{"fmod", fmod}});
  ops.back().samples.push_back({{f32({3, 5}), f32({5})}, {{"fmod", int64_t{0}}}, 1.05, 1.95});

  for (const char* name : {"equal", "less", "less_equal", "greater", "greater_equal"}) {
    OpDef def;
    def.name = name;
    def.infer = infer_comparison;
    def.cost = CostClass::streamed;
    def.precision = Precision::follows;
    def.samples = binary_samples(DType::f32, -1, 1);
    add_integer_samples(def);
    ops.push_back(std::move(def));
  }
  for (const char* name : {"logical_and", "logical_or", "logical_xor"}) {
    OpDef def;
    def.name = name;
    def.infer = infer_logical;
    def.cost = CostClass::streamed;
    def.precision = Precision::follows;
    def.in_place = {{0, 0}, {0, 1}};
    def.samples = binary_samples(DType::boolean, 0, 1);
    ops.push_back(std::move(def));
  }
}

void add_rest(std::vector<OpDef>& ops) {
  OpDef logical_not;
  logical_not.name = "logical_not";
  logical_not.infer = infer_not;
  logical_not.cost = CostClass::streamed;
  logical_not.precision = Precision::follows;
  logical_not.in_place = {{0, 0}};
  logical_not.samples = {{{{DType::boolean, {3, 4}}}}, {{{DType::boolean, {5}}}}};
  ops.push_back(std::move(logical_not));

  for (const char* name : {"isnan", "isinf"}) {
    OpDef def;
    def.name = name;
    def.infer = infer_float_test;
    def.cost = CostClass::streamed;
    def.precision = Precision::follows;
    def.samples = unary_samples(-1, 1);
    ops.push_back(std::move(def));
  }
  for (int64_t sign : {0, 1}) {
    ops.back().samples.push_back(
        {{f32({7})}, {{"detect_negative", sign}, {"detect_positive", 1 - sign}}});
  }

  OpDef where;
  where.name = "where";
  where.infer = infer_where;
  where.gradient = where_gradient;
  where.cost = CostClass::streamed;
  where.precision = Precision::follows;
  where.in_place = {{0, 1}, {0, 2}};
  const DType b = DType::boolean;
  where.samples = {{{{b, {3, 4}}, f32({3, 4}), f32({3, 4})}},
                   {{{b, {5}}, f32({2, 3, 5}), f32({})}},
                   {{{b, {2, 1, 3}}, f32({4, 1}), f32({3})}},
                   {{{b, {3, 1}}, {DType::i64, {4}}, {DType::i64, {3, 4}}}}};
  ops.push_back(std::move(where));

  OpDef clip;
  clip.name = "clip";
  clip.infer = infer_numeric_unary;
  clip.gradient = clip_gradient;
  clip.cost = CostClass::streamed;
  clip.precision = Precision::follows;
  clip.in_place = {{0, 0}};
  clip.samples = {{{f32({3, 4})}, {{"min", -0.5}, {"max", 0.4}}},
                  {{f32({5})}, {{"min", 0.1}}},
                  {{f32({2, 3})}, {{"max", -0.1}}},
                  {{f32({3})}},
                  {{{DType::i64, {6}}}, {{"min", 1.0}, {"max", 3.0}}}};
  ops.push_back(std::move(clip));

  OpDef cast;
  cast.name = "cast";
  cast.infer = infer_cast;
  cast.gradient = cast_gradient;
  cast.cost = CostClass::conversion;
  cast.precision = Precision::conversion;
  cast.elements = Elements::all;
  auto to = [](DType d) { return Attrs{{"to", std::string(to_string(d))}}; };
  cast.samples = {{{f32({3, 4})}, to(DType::f64)},
                  {{f32({5})}, to(DType::bf16)},
                  {{f32({5})}, to(DType::i64), 1.1, 1.9},
                  {{{DType::i64, {2, 3}}}, to(DType::f32)},
                  {{{b, {2, 3}}}, to(DType::f32)},
                  {{{DType::bf16, {7}}}, to(DType::f32)},
                  {{{DType::i32, {7}}}, to(b)}};
  ops.push_back(std::move(cast));
}

}  // namespace

std::vector<OpDef> elementwise_ops() {
  std::vector<OpDef> ops;
  add_arithmetic(ops);
  add_trigonometric(ops);
  add_smooth_activations(ops);
  add_activations(ops);
  add_binary(ops);
  add_rest(ops);
  return ops;
}

bool is_elementwise(std::string_view op) {
  static const std::set<std::string, std::less<>> names = [] {
    std::set<std::string, std::less<>> out;
    for (const OpDef& def : elementwise_ops()) out.insert(def.name);
    return out;
  }();
  return names.contains(op);
}

}  // namespace shardrun
