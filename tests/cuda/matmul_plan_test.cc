// What a matmul hands to cuBLASLt, done by plain loops in cuBLAS's terms, against the reference.
#include "kernels/cuda/cublas/matmul_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/ops/einsum.h"
#include "kernels/cuda/cublas/even_workspace.h"
#include "kernels/cuda/cublas/evened.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/families.h"
#include "program/ops/post.h"
#include "tests/cuda/host/boxes_on_host.h"
#include "tests/cuda/host/lt_on_host.h"
#include "tests/support/chain_on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

using cuda::BoxLoops;
using cuda::LtShape;
using cuda::MatmulPlan;

std::vector<double> moved(const std::vector<double>& from, const BoxLoops& loops) {
  std::vector<double> to(from.size());
  cuda::copy_box_on(cuda::BoxesOnHost(), from.data(), to.data(), loops, sizeof(double));
  return to;
}

std::vector<double> operand(const Tensor& t, bool narrow, const std::optional<BoxLoops>& move) {
  const Tensor read = narrow ? convert(t, DType::bf16) : t;
  std::vector<double> values(static_cast<size_t>(t.count()));
  for (int64_t i = 0; i < t.count(); ++i) values[static_cast<size_t>(i)] = read.at(i);
  return move ? moved(values, *move) : values;
}

double by_tanh(double x) { return std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

/// What cuBLASLt documents of its epilogues, in its order.
double ended(const LtShape& s, double sum, double c, double bias, double x, double* kept) {
  if (s.adds_c) sum += c;
  if (s.adds_bias) sum += bias;
  *kept = sum;
  switch (s.ending) {
    case LtShape::Ending::none: return sum;
    case LtShape::Ending::relu: return std::max(sum, 0.0);
    case LtShape::Ending::gelu: return 0.5 * sum * (1 + by_tanh(sum));
    case LtShape::Ending::gelu_grad: {
      const double t = by_tanh(x);
      return sum * 0.5 *
             (1 + t + x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x));
    }
  }
  return NAN;
}

std::vector<double> product(const MatmulPlan& plan, const std::vector<double>& a,
                            const std::vector<double>& b, const std::vector<Tensor>& in,
                            int64_t count, std::vector<double>& kept) {
  kept.assign(static_cast<size_t>(count), NAN);
  std::vector<double> d(static_cast<size_t>(count), NAN);
  const auto of = [](const std::vector<double>& values) {
    return [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  };
  const auto other = [&](size_t operand, int64_t i) { return operand > 0 ? in[operand].at(i) : 0; };
  cuda::multiply_on_host(*plan.product, of(a), of(b), [&](int64_t i, int64_t row, double sum) {
    d[static_cast<size_t>(i)] = ended(*plan.product, sum, other(plan.c, i), other(plan.bias, row),
                                      other(plan.x, i), &kept[static_cast<size_t>(i)]);
  });
  return d;
}

/// The sums of an operand along the depth.
std::vector<double> sums(const LtShape& s, const std::vector<double>& a,
                         const std::vector<double>& b) {
  const bool of_a = s.sums == LtShape::Sums::of_a;
  std::vector<double> out(static_cast<size_t>(of_a ? s.rows : s.cols));
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    for (int64_t k = 0; k < s.depth; ++k) {
      const auto at = [&](bool depth_dense, int64_t ld) {
        return static_cast<size_t>(depth_dense ? k + i * ld : i + k * ld);
      };
      out[static_cast<size_t>(i)] +=
          of_a ? a[at(s.transpose_a, s.a.ld)] : b[at(!s.transpose_b, s.b.ld)];
    }
  }
  return out;
}

/// Leading dims that cuBLAS takes, for the matrices as they lie.
void expect_valid(const LtShape& s) {
  EXPECT_GE(s.a.ld, s.transpose_a ? s.depth : s.rows);
  EXPECT_GE(s.b.ld, s.transpose_b ? s.cols : s.depth);
  EXPECT_GE(s.d.ld, s.rows);
  EXPECT_LE(s.workspace_bytes(), 32 << 20);
  EXPECT_EQ(s.workspace_bytes(), s.alone().workspace_bytes());
  EXPECT_EQ(s.key() == s.alone().key(), !s.ends());
}

/// The other way: a kernel behind the product, which is rounded and lies where a result will.
void expect_apart(const Case& c, const std::vector<Tensor>& in, const std::vector<Tensor>& want) {
  std::vector<Tensor> got(c.out.begin(), c.out.end());
  got.back() = run_reference(without_post_ops(c.node), std::span(in).first(kOwnOperands))[0];
  std::vector<TensorView> reads = {got.back().view()}, writes;
  for (size_t i = kOwnOperands; i < in.size(); ++i) reads.push_back(in[i].view());
  for (const Tensor& t : got) writes.push_back(t.view());
  const ElementChain chain = cuda::chain_behind({c.node, c.in, c.out});
  test::run_chain(chain, reads, std::span(writes).first(chain.writes.size()));
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], want[i], c.out[0].dtype == DType::bf16 ? 1e-2 : 1e-6);
}

/// Is it planned, and as the reference has it?
bool check(const Case& c, std::mt19937_64& rng) {
  SCOPED_TRACE(describe(c));
  std::string why;
  const std::optional<MatmulPlan> plan = cuda::plan_matmul({c.node, c.in, c.out}, false, &why);
  if (!plan) {
    EXPECT_NE(why, "");
    return false;
  }
  const std::vector<Tensor> in = random_operands(c, rng);
  const std::vector<Tensor> want = run_reference(c.node, in);
  std::vector<Tensor> got(c.out.begin(), c.out.end());
  if (plan->product) {
    expect_valid(*plan->product);
    const auto first = operand(in[0], plan->narrow_first, plan->move_first),
               second = operand(in[1], plan->narrow_second, plan->move_second);
    std::vector<double> kept;
    const auto& a = plan->first_is_a ? first : second;
    const auto& b = plan->first_is_a ? second : first;
    auto d = product(*plan, a, b, in, want[0].count(), kept);
    if (plan->move_result) d = moved(d, *plan->move_result);
    convert(d.data(), DType::f64, got[0].data(), c.out[0].dtype, want[0].count());
    const bool summed = plan->product->sums != LtShape::Sums::none;
    EXPECT_EQ(plan->product->keeps + summed, got.size() - 1);
    const std::vector<double> more = summed ? sums(*plan->product, a, b) : kept;
    if (got.size() > 1)
      convert(more.data(), DType::f64, got[1].data(), c.out[1].dtype, want[1].count());
  }
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], 1e-6);
  if (!post_ops(c.node).empty()) expect_apart(c, in, want);
  return true;
}

TEST(MatmulPlan, MultipliesAsTheReferenceDoes) {
  std::mt19937_64 rng(7);
  int posted = 0;
  for (const char* op : {"matmul", "matmul_post"}) {
    for (const Case& c : cases_of(op_def(op))) {
      bool other = false;
      for (const TensorType& t : c.in) other = other || t.dtype == DType::f64;
      double products = 2 * node_flops(c.node, c.in, c.out);
      if (!other && products < 4e5 && check(c, rng) && has_post_ops(op)) ++posted;
    }
  }
  EXPECT_GE(posted, 20);
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
      EXPECT_TRUE(check(c, rng)) << p.equation;
    }
  }
}

struct Behind {
  const char* op;
  size_t at = 0;
  std::vector<Shape> others = {};
  bool tanh = false, keep = false;
};

/// A product with these behind it, each of the product's type.
Case posted(const std::string& equation, Shape a, Shape b, const std::vector<Behind>& behind,
            DType dtype = DType::bf16) {
  Case c;
  c.node.op = "matmul", c.node.name = "node";
  c.node.attrs.set("equation", equation);
  c.in = {{dtype, std::move(a)}, {dtype, std::move(b)}};
  for (const Behind& each : behind) {
    Node next;
    next.op = each.op;
    if (each.tanh) next.attrs.set("approximate", std::string("tanh"));
    next.inputs.resize(each.others.size() + 1);
    add_post_op(c.node, next, each.at, each.keep);
    for (const Shape& other : each.others) c.in.push_back({dtype, other});
  }
  c.out = infer_types(c.node, c.in);
  return c;
}

TEST(MatmulPlan, EndsAProductWhateverItsLayout) {
  std::mt19937_64 rng(9);
  struct Product {
    const char* equation;
    Shape a, b, out, row;
  };
  for (const Product& p :
       std::vector<Product>{{"bij,jk->bik", {2, 6, 5}, {5, 8}, {2, 6, 8}, {8}},
                            {"bij,kj->bik", {2, 6, 5}, {8, 5}, {2, 6, 8}, {1, 8}},
                            {"ij,bkj->bki", {8, 5}, {3, 2, 5}, {3, 2, 8}, {8}},
                            {"bij,jhd->bihd", {2, 6, 5}, {5, 2, 4}, {2, 6, 2, 4}, {2, 4}},
                            {"bhij,bhjk->bhik", {2, 3, 6, 5}, {2, 3, 5, 8}, {2, 3, 6, 8}, {8}},
                            {"bthd,bshd->bhts", {2, 5, 3, 4}, {2, 8, 3, 4}, {2, 3, 5, 8}, {8}},
                            {"ij,jk->ki", {8, 5}, {5, 6}, {6, 8}, {8}},
                            {"ij,j->i", {16, 5}, {5}, {16}, {16}}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::vector<Behind>& behind : {std::vector<Behind>{{"add", 0, {p.row}}},
                                                {{"add", 1, {p.out}}},
                                                {{"add", 0, {p.out}}, {"add", 1, {p.row}}},
                                                {{"add", 0, {p.row}}, {"relu"}},
                                                {{"gelu", 0, {}, true}},
                                                {{"add", 0, {p.row}}, {"gelu", 0, {}, true}},
                                                {{"add", 0, {p.row}}, {"gelu", 0, {}, true, true}},
                                                {{"gelu", 0, {}, true, true}},
                                                {{"gelu_grad", 1, {p.out}, true}}}) {
        const bool gelu = std::string_view(behind.back().op).starts_with("gelu");
        EXPECT_EQ(check(posted(p.equation, p.a, p.b, behind, dtype), rng),
                  dtype == DType::bf16 || !gelu)
            << p.equation;
      }
    }
  }
}

/// What was measured of one is not taken for another.
TEST(MatmulPlan, TellsEpiloguesApart) {
  const Shape a = {6, 5}, b = {5, 8}, out = {6, 8}, row = {8};
  std::set<std::string> keys;
  const std::vector<std::vector<Behind>> all = {{},
                                                {{"add", 0, {row}}},
                                                {{"add", 1, {out}}},
                                                {{"add", 0, {out}}, {"add", 1, {row}}},
                                                {{"relu"}},
                                                {{"add", 0, {row}}, {"relu"}},
                                                {{"gelu", 0, {}, true}},
                                                {{"gelu", 0, {}, true, true}},
                                                {{"add", 0, {row}}, {"gelu", 0, {}, true, true}},
                                                {{"gelu_grad", 1, {out}, true}}};
  std::string why;
  const auto add = [&](const Case& c) {
    keys.insert(cuda::plan_matmul({c.node, c.in, c.out}, false, &why)->product->key());
  };
  for (const std::vector<Behind>& behind : all) add(posted("ij,jk->ik", a, b, behind));
  for (const size_t operand : {0, 1}) {
    Case c = posted("ji,jk->ik", {5, 6}, b, {});
    add(c);
    add_operand_sum(c.node, operand);
    c.out = infer_types(c.node, c.in);
    add(c);
  }
  EXPECT_EQ(keys.size(), all.size() + 3);
}

/// Why cuBLASLt's epilogues do not do it; "" if they do.
std::string refusal(const Case& c) {
  std::string why;
  return cuda::plan_matmul({c.node, c.in, c.out}, false, &why) ? "" : why;
}

TEST(MatmulPlan, SaysWhatNoEpilogueDoes) {
  const Shape a = {6, 5}, b = {5, 8}, out = {6, 8}, row = {8}, column = {6, 1};
  const auto why = [&](const std::vector<Behind>& behind) {
    return refusal(posted("ij,jk->ik", a, b, behind));
  };
  EXPECT_EQ(why({{"gelu"}}), "gelu is by erf, cuBLASLt's is by tanh");
  EXPECT_EQ(why({{"gelu_grad", 1, {out}}}), "gelu_grad is by erf, cuBLASLt's is by tanh");
  EXPECT_EQ(why({{"gelu_grad", 0, {out}, true}}), "the product is the argument of gelu_grad");
  EXPECT_EQ(why({{"add", 0, {row}}, {"gelu_grad", 1, {out}, true}}),
            "cuBLASLt multiplies no sum with a slope");
  EXPECT_EQ(refusal(posted("ij,jk->ik", a, b, {{"gelu", 0, {}, true}}, DType::f32)),
            "cuBLASLt's GELU is rougher than f32");
  EXPECT_EQ(why({{"tanh"}}), "cuBLASLt ends a product with sums, relu or gelu, not with tanh");
  EXPECT_EQ(why({{"relu"}, {"add", 0, {out}}}), "add comes behind the last");
  const std::string sums = "cuBLASLt adds one row and one operand of the result's shape, not also ";
  EXPECT_EQ(why({{"add", 0, {row}}, {"add", 0, {row}}}), sums + "bf16[8]");
  EXPECT_EQ(why({{"add", 0, {out}}, {"add", 0, {out}}}), sums + "bf16[6, 8]");
  EXPECT_EQ(why({{"add", 0, {column}}}), sums + "bf16[6, 1]");
  EXPECT_EQ(why({{"add", 0, {{}}}}), sums + "bf16[]");
  EXPECT_EQ(refusal(posted("ij,jk->ik", a, {5, 7}, {{"gelu_grad", 1, {{6, 7}}, true}})),
            "rows of gelu_grad's argument lie 7 elements apart, not 8 or a multiple");
  EXPECT_EQ(refusal(posted("ij,jk->ik", a, {5, 7}, {{"gelu", 0, {}, true, true}})),
            "rows of what is kept lie 7 elements apart, not 8 or a multiple");
  EXPECT_EQ(why({{"add", 0, {row}}, {"relu", 0, {}, false, true}}),
            "cuBLASLt keeps only what its GELU, by tanh, takes, not what relu does");
  EXPECT_EQ(refusal(posted("i,j->ij", {6}, {8}, {{"gelu_grad", 1, {out}, true}})),
            "cuBLASLt multiplies no outer product with a slope");
  EXPECT_EQ(refusal(posted("ij,jk->ik", {6, 0}, {0, 8}, {{"relu"}})), "nothing is multiplied");
  EXPECT_EQ(refusal(posted("jbi,kbj->ikb", {5, 3, 6}, {7, 3, 5}, {{"relu"}})),
            "operands of what is behind it lie as the result does, which is transposed");
}

/// A part's products, from the copy of its lines or by way of it; `d` as it was before.
void multiply_part(const cuda::EvenedPlan& plan, const cuda::EvenedPlan::Part& part,
                   std::vector<double> a, std::vector<double> b, std::vector<double>& d) {
  using Of = cuda::EvenedPlan::Of;
  const auto from = [](const std::vector<double>& values, int64_t offset) {
    return [&values, offset](int64_t i) { return values.at(static_cast<size_t>(offset + i)); };
  };
  const int64_t groups = plan.pitch / 8, count = part.lines * groups;
  std::vector<cuda::EvenLines::Eight> copy(static_cast<size_t>(count));
  EXPECT_LE(static_cast<int64_t>(copy.size() * sizeof copy[0]), plan.copy_bytes);
  uint16_t* const copied = copy[0].element;
  if (plan.of != Of::d) {
    std::vector<double>&odd = plan.of == Of::a ? a : b, &other = plan.of == Of::a ? b : a;
    std::vector<uint16_t> lines;
    for (size_t i = static_cast<size_t>(part.first * plan.from_pitch); i < odd.size(); ++i)
      lines.push_back(static_cast<uint16_t>(odd[i]));
    const cuda::EvenLines body{lines.data(), copy.data(), plan.width, plan.from_pitch,
                               cuda::Divisor(groups, count)};
    for (int64_t i = 0; i < count; ++i) body(i);
    odd.assign(copied, copied + 8 * count);
    if (plan.other_elements > 0) {
      EXPECT_EQ(static_cast<int64_t>(other.size()), plan.other_elements);
      other.resize(static_cast<size_t>(plan.other_elements + plan.other_zeros));
    }
  }
  for (const cuda::EvenedPlan::Product& p : part.products) {
    EXPECT_TRUE(p.shape.rows < 8 || p.shape.rows % 8 == 0);
    EXPECT_TRUE(p.shape.cols < 8 || p.shape.cols % 8 == 0 || !p.shape.transpose_b);
    cuda::multiply_on_host(p.shape, from(a, p.a), from(b, p.b),
                           [&](int64_t i, int64_t, double sum) {
                             if (plan.of == Of::d) {
                               copied[p.d + i] = static_cast<uint16_t>(sum);
                               return;
                             }
                             double& to = d.at(static_cast<size_t>(p.d + i));
                             to = p.shape.adds_c ? to + sum : sum;
                           });
  }
  if (plan.of != Of::d) return;
  const int64_t elements = part.lines * plan.width;
  std::vector<cuda::EvenLines::Eight> dense(static_cast<size_t>(elements / 8 + 1));
  const cuda::DenseLines body{copied,     dense[0].element, plan.width,
                              plan.pitch, elements,         cuda::Divisor(plan.width, elements)};
  for (int64_t i = 0; i < (elements + 7) / 8; ++i) body(i);
  for (int64_t i = 0; i < elements; ++i)
    d[static_cast<size_t>(part.first * plan.from_pitch + i)] = dense[0].element[i];
}

/// Integers below 10, so that sums are exact. Whole, and in parts of 256 lines and 44.
TEST(MatmulPlan, EvensLinesThatBeginAnywhere) {
  std::mt19937_64 rng(11);
  std::uniform_int_distribution<int> draw(0, 9);
  const auto values = [&](int64_t count) {
    std::vector<double> out(static_cast<size_t>(count));
    for (double& v : out) v = draw(rng);
    return out;
  };
  const auto of = [](const std::vector<double>& v) {
    return [&v](int64_t i) { return v[static_cast<size_t>(i)]; };
  };
  using Of = cuda::EvenedPlan::Of;
  for (const Of copied : {Of::a, Of::b, Of::d}) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool transpose_a = variant & 1, transpose_b = variant & 2, in_parts = variant & 4;
      LtShape s;
      s.in = DType::bf16, s.out = copied == Of::d ? DType::bf16 : DType::f32;
      s.transpose_a = transpose_a, s.transpose_b = transpose_b;
      s.rows = 13, s.cols = 11, s.depth = 15;
      const bool along_depth = copied == Of::a ? !transpose_a : copied == Of::b && transpose_b;
      (along_depth ? s.depth : copied == Of::a ? s.rows : s.cols) = 300;
      s.a.ld = transpose_a ? s.depth : s.rows, s.b.ld = transpose_b ? s.cols : s.depth;
      s.d.ld = copied == Of::d ? s.rows : s.rows + 3;
      for (const Of operand : {Of::a, Of::b}) {
        int64_t& ld = operand == Of::a ? s.a.ld : s.b.ld;
        ld = operand == copied ? ld + 3 - ld % 2 : (ld + 7) / 8 * 8;
      }
      SCOPED_TRACE(s.key());
      const auto plan = cuda::evened(s, 0, in_parts ? 1 : 1 << 20);
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(plan->of, copied);
      EXPECT_EQ(plan->parts.size(), in_parts ? 2u : 1u);
      const auto a = values(s.a.ld * (transpose_a ? s.rows : s.depth)),
                 b = values(s.b.ld * (transpose_b ? s.depth : s.cols));
      std::vector<double> want(static_cast<size_t>(s.d.ld * s.cols), -1), got = want;
      cuda::multiply_on_host(s, of(a), of(b), [&](int64_t i, int64_t, double sum) {
        want[static_cast<size_t>(i)] = sum;
      });
      for (const auto& part : plan->parts) multiply_part(*plan, part, a, b, got);
      EXPECT_EQ(got, want);
    }
  }
}

/// GPT-2's head has 50257 columns.
TEST(MatmulPlan, EvensWhereItMayPay) {
  LtShape s;
  s.in = DType::bf16, s.out = DType::f32;
  s.rows = 768, s.cols = 50257, s.depth = 32768;
  s.transpose_b = true;
  s.a.ld = 768, s.b.ld = 50257, s.d.ld = 768;
  const auto plan = cuda::evened(s);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->pitch, 50264);
  EXPECT_EQ(plan->parts.size(), 7u);  // of 5120 lines
  EXPECT_LE(plan->workspace_bytes(), int64_t{545} << 20);
  ASSERT_EQ(plan->parts[0].products.size(), 2u);  // of 50256 columns and of one
  EXPECT_FALSE(plan->parts[0].products[0].shape.adds_c);
  EXPECT_TRUE(plan->parts[1].products[0].shape.adds_c);
  // Its logits lie badly themselves.
  LtShape logits;
  logits.in = logits.out = DType::bf16;
  logits.rows = 50257, logits.cols = 32768, logits.depth = 768;
  logits.transpose_a = true;
  logits.a.ld = logits.b.ld = 768, logits.d.ld = 50257;
  EXPECT_EQ(cuda::evened(logits)->parts.size(), 7u);
  EXPECT_EQ(cuda::evened(logits)->parts[0].products[0].shape.rows, 50256);
  // Their gradient times the weights sums over 50257, and 7 zeros.
  LtShape back;
  back.in = back.out = DType::bf16;
  back.rows = 768, back.cols = 32768, back.depth = 50257;
  back.a.ld = back.d.ld = 768, back.b.ld = 50257;
  const auto filled = cuda::evened(back);
  ASSERT_TRUE(filled.has_value());
  EXPECT_EQ(filled->parts[0].products[0].shape.depth, 50264);
  EXPECT_EQ(filled->other_elements, 50257 * 768);
  EXPECT_EQ(filled->other_zeros, 7 * 768);
  LtShape rounded = s, even = s, small = s, wide = s, gaps = logits, two = logits;
  gaps.d.ld = 50259;
  two.b.ld = 769;
  rounded.out = DType::bf16;  // seven times
  even.b.ld = 50264;
  small.depth = 64;
  wide.in = DType::f32;
  for (const LtShape& other : {rounded, even, small, wide, gaps, two})
    EXPECT_FALSE(cuda::evened(other));
  // Its gradient's kernel has memory for the copy.
  Node node;
  node.op = "matmul";
  node.attrs.set("equation", std::string("tk,tn->nk"));
  node.attrs.set("out_dtype", std::string("f32"));
  const std::vector<TensorType> in = {{DType::bf16, {32768, 768}}, {DType::bf16, {32768, 50257}}};
  const std::vector<TensorType> out = infer_types(node, in);
  EXPECT_EQ(cuda::matmul_kernels()[0].prepare({node, in, out}).workspace_bytes,
            plan->workspace_bytes());
}

/// cublasLtMatmul asks for a workspace on 256 bytes; an arena gives it one on 64.
TEST(MatmulPlan, HasAWorkspaceOnTheLibrarysBoundary) {
  std::vector<char> memory(4096);
  const char* begin = nullptr;
  PreparedKernel kernel;
  kernel.workspace_bytes = 1000;
  kernel.run = [&](const KernelArgs& args) { begin = static_cast<const char*>(args.workspace); };
  const PreparedKernel even = cuda::with_even_workspace(kernel);
  for (int64_t at = 0; at < 512; at += 16) {
    even.run({{}, {}, memory.data() + at, nullptr});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 256, 0);
    EXPECT_GE(begin, memory.data() + at);
    EXPECT_LE(begin + kernel.workspace_bytes, memory.data() + at + even.workspace_bytes);
  }
  kernel.workspace_bytes = 0;
  EXPECT_EQ(cuda::with_even_workspace(kernel).workspace_bytes, 0);
  // And the kernels that are chosen from are such ones.
  Node node;
  node.op = "matmul";
  node.attrs.set("equation", std::string("tk,tn->nk"));
  const std::vector<TensorType> in = {{DType::bf16, {64, 32}}, {DType::bf16, {64, 48}}};
  const std::vector<TensorType> out = infer_types(node, in);
  const KernelList* lists[] = {&cuda_kernels()};
  EXPECT_EQ(select_kernel(lists, {node, in, out}).workspace_bytes,
            cuda::matmul_kernels()[0].prepare({node, in, out}).workspace_bytes + 256);
}

/// cuDNN's tensors begin on 16 bytes, those of a group of heads too.
TEST(Attention, LeavesGroupsThatBeginAnywhereToProducts) {
  Node node;
  node.op = "attention_grad";
  node.attrs.set("scale", 0.125);
  const auto refused = [&](int64_t heads, int64_t queries) {
    const TensorType q{DType::bf16, {1, heads, queries, 64}}, lse{DType::f32, {1, heads, queries}};
    const std::vector<TensorType> in = {q, q, q, q, q, lse}, out = {q, q, q};
    return cuda::attention_kernels()[1].refuses({node, in, out});
  };
  EXPECT_EQ(cuda::attention_kernels()[1].name, "cuda:cudnn");
  EXPECT_FALSE(refused(202, 1024));
  EXPECT_FALSE(refused(2, 1025));  // all at once
  const auto reason = refused(202, 1025);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("101 heads"), std::string::npos) << *reason;
}

TEST(MatmulPlan, SumsAnOperandWithAWeightsGradient) {
  std::mt19937_64 rng(10);
  const auto summed = [&](const char* equation, Shape a, Shape b, int64_t operand, DType in,
                          DType out) {
    Case c = posted(equation, std::move(a), std::move(b), {}, in);
    if (in != out) c.node.attrs.set("out_dtype", std::string(to_string(out)));
    add_operand_sum(c.node, static_cast<size_t>(operand));
    c.out = infer_types(c.node, c.in);
    return c;
  };
  for (const auto& [in, out] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}}) {
    for (const int64_t operand : {0, 1}) {
      for (const char* equation : {"btc,btd->cd", "btc,btd->dc"})
        EXPECT_TRUE(check(summed(equation, {2, 6, 5}, {2, 6, 7}, operand, in, out), rng));
      EXPECT_TRUE(check(summed("ri,rhd->ihd", {9, 5}, {9, 2, 3}, operand, in, out), rng));
    }
  }
  const auto why = [&](const char* equation, Shape a, Shape b) {
    return refusal(summed(equation, std::move(a), std::move(b), 1, DType::f32, DType::f32));
  };
  EXPECT_EQ(why("ij,jk->ik", {6, 5}, {5, 7}), "");
  EXPECT_EQ(why("ij,kj->ik", {6, 5}, {7, 5}),
            "cuBLASLt sums an operand along the dim that does not lie dense");
  EXPECT_EQ(why("bri,brk->bik", {2, 9, 5}, {2, 9, 7}),
            "cuBLASLt sums no operand of several products");
  EXPECT_EQ(why("ri,rhd->idh", {9, 5}, {9, 2, 3}),
            "the sum has its dims in another order than the result");
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

/// A batch that is longer than a grid's last dims is several calls, if it parts evenly into few.
TEST(MatmulPlan, LongBatchesAreSeveralCalls) {
  std::mt19937_64 rng(7);
  for (const int64_t batch : {65535, 65536, 70000, 65537, 65535 * 33}) {
    SCOPED_TRACE(batch);
    Case c;
    c.node.op = "matmul";
    c.node.attrs = {{"equation", std::string("bij,bjk->bik")}};
    c.in = {{DType::f32, {batch, 2, 3}}, {DType::f32, {batch, 3, 2}}};
    c.out = infer_types(c.node, c.in);
    std::string why;
    const auto plan = cuda::plan_matmul({c.node, c.in, c.out}, false, &why);
    ASSERT_EQ(plan.has_value(), batch <= 70000 && batch != 65537);  // which is prime
    if (!plan) {
      EXPECT_EQ(why, "needs more than 32 calls for its batch");
      continue;
    }
    EXPECT_EQ(plan->product->starts.size(), batch > 65535 ? 2u : 1u);
    EXPECT_LE(plan->product->batch, LtShape::kMostBatch);
    EXPECT_TRUE(check(c, rng));
  }
}

}  // namespace
}  // namespace shardrun
