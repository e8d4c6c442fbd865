// matmul: a two-operand einsum. The letters say shape, FLOPs and gradient.
#include <algorithm>

#include "graph/ops/einsum.h"
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {

Einsum Einsum::parse(const std::string& equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  SR_REQUIRE(comma != std::string::npos && arrow != std::string::npos && comma < arrow,
             invalid_input, "equation '", equation, "' is not of the form 'ij,jk->ik'");
  Einsum e{equation.substr(0, comma), equation.substr(comma + 1, arrow - comma - 1),
           equation.substr(arrow + 2)};
  const std::string* terms[] = {&e.a, &e.b, &e.out};
  std::map<char, int> uses;
  for (const std::string* term : terms) {
    for (size_t i = 0; i < term->size(); ++i) {
      const char c = (*term)[i];
      SR_REQUIRE((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), invalid_input, "equation '",
                 equation, "' has '", c, "', which is not a letter");
      SR_REQUIRE(term->find(c, i + 1) == std::string::npos, invalid_input, "equation '", equation,
                 "' has letter '", c, "' twice in '", *term, "'");
      ++uses[c];
    }
  }
  for (const auto& [letter, count] : uses) {
    SR_REQUIRE(count >= 2, invalid_input, "equation '", equation, "' has letter '", letter,
               "' in one term only; sum it away or broadcast it outside of the matmul");
  }
  return e;
}

std::map<char, int64_t> Einsum::sizes(const Shape& a_shape, const Shape& b_shape) const {
  std::map<char, int64_t> size;
  auto add = [&](const std::string& letters, const Shape& shape, const char* who) {
    SR_REQUIRE(letters.size() == shape.size(), invalid_input, "equation '", to_string(),
               "' gives operand ", who, " ", letters.size(), " dims, got ",
               shardrun::to_string(shape));
    for (size_t i = 0; i < letters.size(); ++i) {
      auto [it, fresh] = size.emplace(letters[i], shape[i]);
      SR_REQUIRE(fresh || it->second == shape[i], invalid_input, "sizes of '", letters[i], "' in '",
                 to_string(), "' differ: A", shardrun::to_string(a_shape), " has ", it->second,
                 ", B", shardrun::to_string(b_shape), " has ", shape[i]);
    }
  };
  add(a, a_shape, "A");
  add(b, b_shape, "B");
  return size;
}

namespace {

bool is_mixed(std::span<const TensorType> in) {
  return (in[0].dtype == DType::f32 && in[1].dtype == DType::bf16) ||
         (in[0].dtype == DType::bf16 && in[1].dtype == DType::f32);
}

// An f32 operand with a bf16 one is rounded to bf16.
DType product_dtype(std::span<const TensorType> in) {
  return is_mixed(in) ? DType::bf16 : in[0].dtype;
}

std::vector<TensorType> matmul_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2, invalid_input, "matmul takes 2 operands, got ", in.size());
  SR_REQUIRE(is_float(in[0].dtype) && (in[0].dtype == in[1].dtype || is_mixed(in)), invalid_input,
             "matmul wants two operands of one floating type, or f32 and bf16, got ", in[0],
             " and ", in[1]);
  const Einsum e = Einsum::parse(node.attrs.s("equation"));
  const auto size = e.sizes(in[0].shape, in[1].shape);
  const DType dtype = product_dtype(in);
  TensorType out{dtype, {}};
  for (char c : e.out) out.shape.push_back(size.at(c));
  if (node.attrs.has("out_dtype")) {
    out.dtype = parse_dtype(node.attrs.s("out_dtype"));
    SR_REQUIRE(out.dtype == dtype || (out.dtype == DType::f32 && dtype == DType::bf16),
               invalid_input, "matmul of ", dtype, " cannot have out_dtype ", out.dtype,
               "; only bf16 operands may have an f32 result");
  }
  return {out};
}

// d(a): the letters of dout and b that are not in a are summed. "bij,jk->bik" gives da =
// "bik,jk->bij" and db = "bij,bik->jk". dout is cast to the operands' type when out_dtype widened
// it, and an f32 operand's gradient is f32.
std::vector<ValueId> matmul_gradient(GradientContext& c) {
  const Einsum e = Einsum::parse(c.node.attrs.s("equation"));
  const ValueId a = c.node.inputs[0], b = c.node.inputs[1];
  const DType dtype = product_dtype(std::vector{c.in_type(0), c.in_type(1)});
  const ValueId dout = cast_to(c.graph, c.out_grads[0], dtype);
  std::vector<ValueId> grads = {kNoValue, kNoValue};
  auto product = [&](size_t of, ValueId left, ValueId right, const std::string& equation) {
    Attrs attrs = {{"equation", equation}};
    if (c.in_type(of).dtype != dtype)
      attrs.set("out_dtype", std::string(to_string(c.in_type(of).dtype)));
    if (c.needs[of]) grads[of] = c.graph.add("matmul", {left, right}, attrs);
  };
  product(0, dout, b, e.out + "," + e.b + "->" + e.a);
  product(1, a, dout, e.a + "," + e.out + "->" + e.b);
  return grads;
}

double matmul_flops(const Node& node, std::span<const TensorType> in, std::span<const TensorType>) {
  double flops = 2;
  for (const auto& [letter, size] :
       Einsum::parse(node.attrs.s("equation")).sizes(in[0].shape, in[1].shape)) {
    flops *= static_cast<double>(size);
  }
  return flops;
}

OpDef::Sample sample(const char* equation, Shape a, Shape b) {
  return {{{DType::f32, std::move(a)}, {DType::f32, std::move(b)}},
          {{"equation", std::string(equation)}}};
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  OpDef op;
  op.name = "matmul";
  op.infer = matmul_infer;
  op.gradient = matmul_gradient;
  op.flops = matmul_flops;
  op.cost = CostClass::product;
  op.precision = Precision::bf16;
  op.model_body = true;
  op.widens = true;
  op.samples = {
      sample("ij,jk->ik", {4, 6}, {6, 2}),
      sample("bij,jk->bik", {2, 3, 5}, {5, 4}),
      sample("bij,kj->bik", {2, 3, 5}, {7, 5}),
      sample("bhij,bhjk->bhik", {2, 3, 4, 5}, {2, 3, 5, 3}),
      sample("bhid,bhjd->bhij", {2, 2, 4, 3}, {2, 2, 5, 3}),
      sample("bij,bik->jk", {2, 3, 5}, {2, 3, 4}),
      sample("bihd,bjhd->bhij", {2, 4, 3, 5}, {2, 3, 3, 5}),
      sample("bhij,bjhd->bihd", {2, 3, 4, 5}, {2, 5, 3, 2}),
      sample("ij,jk->ki", {4, 6}, {6, 3}),
      sample("i,j->ij", {4}, {5}),
      sample("ij,j->i", {4, 5}, {5}),
      sample("i,i->", {6}, {6}),
      sample("bi,bi->bi", {3, 4}, {3, 4}),
      sample(",ij->ij", {}, {3, 4}),
      sample("jbi,kbj->ikb", {3, 2, 4}, {5, 2, 3}),
  };
  OpDef::Sample widened = sample("ij,jk->ik", {4, 6}, {6, 3});
  for (TensorType& t : widened.in) t.dtype = DType::bf16;
  widened.attrs.set("out_dtype", std::string("f32"));
  op.samples.push_back(widened);
  for (const size_t f32 : {0, 1}) {
    OpDef::Sample mixed = sample("bij,kj->bik", {2, 3, 5}, {7, 5});
    mixed.in[1 - f32].dtype = DType::bf16;
    op.samples.push_back(mixed);
  }
  return {op};
}

}  // namespace shardrun
