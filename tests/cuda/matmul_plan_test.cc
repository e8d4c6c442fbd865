// What a matmul hands to cuBLASLt, done by plain loops in cuBLAS's terms, against the reference.
#include "kernels/cuda/matmul_plan.h"

#include <gtest/gtest.h>

#include "device/cuda/index.h"
#include "graph/ops/einsum.h"
#include "tests/cuda/lt_on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

using cuda::BoxLoops;
using cuda::LtShape;
using cuda::MatmulPlan;

std::vector<double> moved(const std::vector<double>& from, const BoxLoops& loops) {
  std::vector<double> to(from.size());
  for (int64_t i = 0; i < loops.count; ++i) {
    const cuda::BoxPlace at = cuda::place_of(loops, i);
    to[static_cast<size_t>(at.to)] = from[static_cast<size_t>(at.from)];
  }
  return to;
}

std::vector<double> operand(const Tensor& t, bool narrow, const std::optional<BoxLoops>& move) {
  const Tensor read = narrow ? convert(t, DType::bf16) : t;
  std::vector<double> values(static_cast<size_t>(t.count()));
  for (int64_t i = 0; i < t.count(); ++i) values[static_cast<size_t>(i)] = read.at(i);
  return move ? moved(values, *move) : values;
}

std::vector<double> product(const LtShape& s, const std::vector<double>& a,
                            const std::vector<double>& b, int64_t count) {
  std::vector<double> d(static_cast<size_t>(count), NAN);
  const auto of = [](const std::vector<double>& values) {
    return [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  };
  cuda::multiply_on_host(s, of(a), of(b),
                         [&](int64_t i, double sum) { d[static_cast<size_t>(i)] = sum; });
  return d;
}

/// Leading dims that cuBLAS takes, for the matrices as they lie.
void expect_valid(const LtShape& s) {
  EXPECT_GE(s.a.ld, s.transpose_a ? s.depth : s.rows);
  EXPECT_GE(s.b.ld, s.transpose_b ? s.cols : s.depth);
  EXPECT_GE(s.d.ld, s.rows);
  EXPECT_LE(s.workspace_bytes(), 32 << 20);
}

void check(const Case& c, std::mt19937_64& rng, bool expect_planned) {
  SCOPED_TRACE(describe(c));
  std::string why;
  const std::optional<MatmulPlan> plan = cuda::plan_matmul({c.node, c.in, c.out}, false, &why);
  ASSERT_TRUE(plan.has_value() || !expect_planned) << why;
  if (!plan) return;
  const std::vector<Tensor> in = random_operands(c, rng);
  const Tensor want = run_reference(c.node, in)[0];
  Tensor got(c.out[0]);
  if (plan->product) {
    expect_valid(*plan->product);
    const auto first = operand(in[0], plan->narrow_first, plan->move_first),
               second = operand(in[1], plan->narrow_second, plan->move_second);
    auto d = product(*plan->product, plan->first_is_a ? first : second,
                     plan->first_is_a ? second : first, want.count());
    if (plan->move_result) d = moved(d, *plan->move_result);
    convert(d.data(), DType::f64, got.data(), c.out[0].dtype, want.count());
  }
  expect_close(got, want, 1e-6);
}

TEST(MatmulPlan, MultipliesAsTheReferenceDoes) {
  std::mt19937_64 rng(7);
  for (const Case& c : cases_of(op_def("matmul"))) {
    bool other = false;
    for (const TensorType& t : c.in) other = other || t.dtype == DType::f64;
    double products = 2 * node_flops(c.node, c.in, c.out);
    if (!other && products < 4e5) check(c, rng, false);
  }
}

TEST(MatmulPlan, TakesEveryLayoutOfTheOperands) {
  std::mt19937_64 rng(8);
  struct Product {
    const char* equation;
    Shape a, b;
  };
  for (const Product& p : std::vector<Product>{{"bij,jk->bik", {2, 6, 5}, {5, 7}},
                                               {"bij,kj->bik", {2, 6, 5}, {7, 5}},
                                               {"bij,bik->jk", {2, 6, 5}, {2, 6, 7}},
                                               {"bthd,bshd->bhts", {2, 5, 3, 4}, {2, 6, 3, 4}},
                                               {"bhts,bshd->bthd", {2, 3, 5, 6}, {2, 6, 3, 4}},
                                               {"jbi,kbj->ikb", {5, 3, 6}, {7, 3, 5}},
                                               {"ij,jk->ki", {5, 6}, {6, 3}},
                                               {"ij,j->i", {5, 6}, {6}},
                                               {"j,ij->i", {6}, {5, 6}},
                                               {"i,i->", {6}, {6}},
                                               {"i,j->ij", {6}, {5}},
                                               {"bi,bi->b", {3, 6}, {3, 6}},
                                               {"ij,jk->ik", {1, 6}, {6, 1}},
                                               {"xyzb,xyzb->xyz", {2, 3, 4, 5}, {2, 3, 4, 5}},
                                               {"abij,bajk->abik", {9, 8, 2, 3}, {8, 9, 3, 2}}}) {
    for (const auto& [a, b] : {std::pair{DType::f32, DType::f32},
                               {DType::bf16, DType::bf16},
                               {DType::f32, DType::bf16},
                               {DType::bf16, DType::f32}}) {
      Case c;
      c.node.op = "matmul", c.node.name = "node";
      c.node.attrs.set("equation", std::string(p.equation));
      c.in = {{a, p.a}, {b, p.b}};
      c.out = infer_types(c.node, c.in);
      check(c, rng, true);
    }
  }
}

/// Nothing is moved where a product can be had as the operands lie.
TEST(MatmulPlan, MovesNothingInAModelsProducts) {
  for (const char* equation : {"btc,cd->btd", "btd,cd->btc", "btc,btd->cd", "bhtd,bhsd->bhts",
                               "bthd,bshd->bhts", "bhts,bshd->bthd"}) {
    SCOPED_TRACE(equation);
    const Einsum e = Einsum::parse(equation);
    const std::map<char, int64_t> size = {{'b', 2},  {'t', 64}, {'s', 64},
                                          {'h', 12}, {'d', 32}, {'c', 48}};
    const auto type = [&](const std::string& term) {
      TensorType t{DType::bf16, {}};
      for (char c : term) t.shape.push_back(size.at(c));
      return t;
    };
    const Node node{.op = "matmul",
                    .name = "node",
                    .attrs = {{"equation", std::string(equation)}},
                    .inputs = {},
                    .outputs = {}};
    const std::vector<TensorType> in = {type(e.a), type(e.b)}, out = {type(e.out)};
    std::string why;
    const auto plan = cuda::plan_matmul({node, in, out}, false, &why);
    ASSERT_TRUE(plan.has_value()) << why;
    EXPECT_EQ(plan->workspace_bytes(), plan->product->workspace_bytes());
    EXPECT_LE(plan->product->starts.size(), 2u);
  }
}

}  // namespace
}  // namespace shardrun
