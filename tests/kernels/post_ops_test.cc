// Products and convolutions with post-ops against the same ops one after another: all ways of
// multiplying, both ways of ending, in both types, at even and odd sizes.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <random>

#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/packed_product.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

const std::vector<const KernelList*>& lists() {
  static const std::vector<const KernelList*> all = {&cpu_kernels()};
  return all;
}

/// An op behind the product: `others` are its other operands' shapes, by what they are over the
/// result: "all", "columns", "one", "rows", "step".
struct Behind {
  std::string op;
  Attrs attrs;
  size_t at = 0;
  std::vector<std::string> others;
};
struct Chain {
  const char* name;
  std::vector<Behind> behind;
};

std::vector<Chain> chains() {
  const Attrs by_tanh = {{"approximate", std::string("tanh")}};
  return {{"bias", {{"add", {}, 0, {"columns"}}}},
          {"bias_gelu", {{"add", {}, 0, {"columns"}}, {"gelu", by_tanh, 0, {}}}},
          {"bias_gelu_erf", {{"add", {}, 1, {"columns"}}, {"gelu", {}, 0, {}}}},
          {"bias_relu", {{"add", {}, 0, {"columns"}}, {"relu", {}, 0, {}}}},
          {"bias_residual", {{"add", {}, 0, {"columns"}}, {"add", {}, 1, {"all"}}}},
          {"scale_residual", {{"mul", {}, 0, {"one"}}, {"add", {}, 0, {"all"}}}},
          {"bias_dropout_residual",
           {{"add", {}, 0, {"columns"}},
            {"dropout", {{"p", 0.3}, {"seed", int64_t{4}}, {"key", int64_t{9}}}, 0, {"step"}},
            {"add", {}, 1, {"all"}}}},
          {"gelu_grad", {{"gelu_grad", by_tanh, 1, {"all"}}}},
          {"rows_minus", {{"mul", {}, 0, {"rows"}}, {"sub", {}, 1, {"all"}}}},
          {"tanh_leaky", {{"tanh", {}, 0, {}}, {"leaky_relu", {{"alpha", 0.1}}, 0, {}}}},
          {"clip", {{"sub", {}, 0, {"columns"}}, {"clip", {{"min", -0.5}, {"max", 0.5}}, 0, {}}}}};
}

/// What the ops follow, with a name for the test.
struct Product {
  std::string name;
  Node node;
  std::vector<Shape> in;
  const char* impl;       // that runs f32
  bool any_chain = true;  // does it take all chains, or only those that oneDNN has?
};

std::vector<Product> products() {
  std::vector<Product> out;
  for (const auto& [b, m, k, n] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 64, 64, 96},
                                   {3, 21, 45, 77},  // as they lie
                                   {2, 260, 70, 96},
                                   {1, 513, 67, 131}}) {  // packed
    Product p{str("matmul_", b * m, "x", k, "x", n), {}, {{b, m, k}, {k, n}}, "cpu:onednn"};
    p.node.op = "matmul";
    p.node.attrs.set("equation", std::string("bmk,kn->bmn"));
    out.push_back(p);
  }
  struct Convolution {
    const char* name;
    Shape x, w;
    int64_t stride, pad, last;
    const char* impl;
    bool any_chain;
  };
  // Images that are no multiple of 4; one product of all positions, or one for each image and
  // group.
  const std::vector<Convolution> convolutions = {
      {"tiles", {4, 12, 13, 64}, {64, 64, 3, 3}, 1, 1, 1, "cpu:winograd", true},
      {"strided", {3, 9, 8, 16}, {24, 16, 3, 3}, 2, 1, 1, "cpu:onednn", false},
      {"packed", {2, 6, 6, 80}, {96, 80, 1, 1}, 1, 0, 1, "cpu:onednn", true},
      {"grouped", {2, 6, 5, 2, 8}, {2, 8, 8, 3, 3}, 1, 1, 1, "cpu:onednn", false},
      {"first", {2, 5, 6, 7}, {4, 5, 2, 3}, 1, 0, 0, "cpu:onednn", false},
      {"products", {2, 2, 5, 6, 7}, {2, 4, 5, 1, 1}, 1, 0, 0, "cpu:onednn", true}};
  for (const Convolution& c : convolutions) {
    if (std::string_view(c.impl) == "cpu:winograd" && !kLanesFitRegisters) continue;
    if (std::string_view(c.name) == "packed" && !cpu::multiplies_blocks()) continue;
    const std::vector<int64_t> pads = {c.pad, c.pad};
    Node forward;
    forward.op = "conv";
    forward.attrs = {{"strides", std::vector<int64_t>{c.stride, c.stride}},
                     {"dilations", std::vector<int64_t>{1, 1}},
                     {"pads_low", pads},
                     {"pads_high", pads},
                     {"channels_last", c.last}};
    const std::vector<TensorType> types = {{DType::f32, c.x}, {DType::f32, c.w}};
    Node back = forward;
    back.op = "conv_data_grad";
    const size_t at = c.last ? 1 : c.x.size() - 2;
    back.attrs.set("size", std::vector<int64_t>{c.x[at], c.x[at + 1]});
    out.push_back({str("conv_", c.name), forward, {c.x, c.w}, c.impl, c.any_chain});
    out.push_back({str("data_grad_", c.name),
                   back,
                   {infer_types(forward, types)[0].shape, c.w},
                   c.impl,
                   c.any_chain});
  }
  return out;
}

/// Are there Winograd's tiles for it on this processor?
bool tiles_take(DType dtype) {
  return kLanesFitRegisters && (dtype == DType::f32 || !cpu::has_matrix_units());
}

/// The shape of an operand that is one number for each column, or channel.
Shape columns_of(const Node& node, const Shape& result) {
  if (node.op == "matmul" || node.attrs.i("channels_last") != 0) return {result.back()};
  return {result[result.size() - 3], 1, 1};
}

Tensor random(const TensorType& type, std::mt19937_64& rng) {
  std::normal_distribution<double> draw(0, 1);
  std::vector<double> values(static_cast<size_t>(element_count(type.shape)));
  for (double& v : values) v = draw(rng);
  Tensor out(type);
  convert(values.data(), DType::f64, out.data(), type.dtype, out.count());
  return out;
}

Tensor run(const Node& node, const std::vector<Tensor>& in) {
  std::vector<TensorType> types;
  std::vector<TensorView> views;
  for (const Tensor& t : in) types.push_back(t.type()), views.push_back(t.view());
  const std::vector<TensorType> out = infer_types(node, types);
  const PreparedKernel kernel = select_kernel(lists(), {node, types, out});
  Tensor result(out[0]);
  std::memset(result.data(), 0xff, static_cast<size_t>(byte_size(out[0])));
  const TensorView view = result.view();
  std::vector<char> workspace(static_cast<size_t>(kernel.workspace_bytes) + 64);
  void* at = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  kernel.run({views, std::span(&view, 1), at});
  const Tensor first = result;
  Tensor again(out[0]);
  const TensorView second = again.view();
  kernel.run({views, std::span(&second, 1), at});
  EXPECT_EQ(std::memcmp(first.data(), again.data(), static_cast<size_t>(byte_size(out[0]))), 0)
      << "a second run gives other bits";
  return first;
}

double distance(const Tensor& got, const Tensor& want) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < got.count(); ++i) {
    error += (got.at(i) - want.at(i)) * (got.at(i) - want.at(i));
    norm += want.at(i) * want.at(i);
  }
  return std::sqrt(error / norm);
}

using Param = std::tuple<size_t, DType, size_t>;
class PostOps : public testing::TestWithParam<Param> {};

TEST_P(PostOps, GiveWhatTheOpsGiveOneAfterAnother) {
  const auto& [which, dtype, of] = GetParam();
  const Chain chain = chains()[which];
  const Product what = products()[of];
  const Node& product = what.node;
  std::mt19937_64 rng(7);
  std::vector<Tensor> in = {random({dtype, what.in[0]}, rng), random({dtype, what.in[1]}, rng)};
  const std::vector<TensorType> types = {in[0].type(), in[1].type()};
  const std::vector<TensorType> out = infer_types(product, types);
  const Shape all = out[0].shape;
  Shape rows = all;
  rows.back() = 1;
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.op == product.op && impl.name == "cpu:onednn" && impl.refuses({product, types, out}))
      GTEST_SKIP() << "a processor without products of this type";
  }
  if (dtype == DType::f32) {
    EXPECT_EQ(select_kernel(lists(), {product, types, out}).impl, what.impl);
  }
  Tensor apart = run(product, in);
  Node joined = product;
  for (const Behind& b : chain.behind) {
    Node next;
    next.op = b.op;
    next.attrs = b.attrs;
    if (b.op == "dropout") {
      next.attrs.set("global_shape", all);
      next.attrs.set("start", std::vector<int64_t>(all.size(), 0));
    }
    std::vector<Tensor> operands;
    for (const std::string& other : b.others) {
      operands.push_back(other == "step"      ? Tensor::scalar_i64(3)
                         : other == "all"     ? random({dtype, all}, rng)
                         : other == "columns" ? random({dtype, columns_of(product, all)}, rng)
                         : other == "rows"    ? random({dtype, rows}, rng)
                                              : random({dtype, {}}, rng));
      in.push_back(operands.back());
    }
    operands.insert(operands.begin() + static_cast<std::ptrdiff_t>(b.at), apart);
    next.inputs.resize(operands.size());
    apart = run(next, operands);
    add_post_op(joined, next, b.at);
  }
  {
    std::vector<TensorType> all_types;
    for (const Tensor& t : in) all_types.push_back(t.type());
    const std::vector<TensorType> made = infer_types(joined, all_types);
    const bool taken = std::any_of(cpu_kernels().begin(), cpu_kernels().end(), [&](const auto& k) {
      return k.op == joined.op && k.name == what.impl && !k.refuses({joined, all_types, made});
    });
    const Shape& w = what.in[1];
    if (joined.op == "matmul_post" && dtype == DType::bf16 && cpu::has_matrix_units() &&
        w.size() == 2 &&
        std::min({all.back(), w[0], w[1], element_count(all) / all.back()}) >= 32) {
      EXPECT_EQ(select_kernel(lists(), {joined, all_types, made}).impl, "cpu:amx");
    }
    const bool not_here = std::string_view(what.impl) == "cpu:winograd" && !tiles_take(dtype);
    EXPECT_TRUE(taken || not_here || !what.any_chain) << "refused";
    if (!taken) return;
  }
  const Tensor got = run(joined, in), want = run_reference(joined, in)[0];
  ASSERT_EQ(got.type(), apart.type());
  EXPECT_LT(distance(got, want), dtype == DType::f32 ? 1e-5 : 4e-3);
  if (dtype == DType::f32) {
    EXPECT_LT(distance(got, apart), 1e-5);
  } else {
    EXPECT_LE(distance(got, want), 1.01 * distance(apart, want)) << "rounds worse than apart";
  }
}

INSTANTIATE_TEST_SUITE_P(All, PostOps,
                         testing::Combine(testing::Range(size_t{0}, chains().size()),
                                          testing::Values(DType::f32, DType::bf16),
                                          testing::Range(size_t{0}, products().size())),
                         [](const auto& info) {
                           return str(chains()[std::get<0>(info.param)].name, "_",
                                      std::get<1>(info.param), "_",
                                      products()[std::get<2>(info.param)].name);
                         });

/// On one thread chunks of tiles end within a row of tiles, and images are no multiple of 4 high.
TEST(PostOps, FollowEachChunkOfTiles) {
  std::mt19937_64 rng(9);
  const Shape image = {3, 22, 30, 64};
  const std::vector<int64_t> one = {1, 1};
  Node conv;
  conv.op = "conv";
  conv.attrs = {{"strides", one},
                {"dilations", one},
                {"pads_low", one},
                {"pads_high", one},
                {"channels_last", int64_t{1}}};
  Node bias, drop, sum;
  bias.op = sum.op = "add";
  drop.op = "dropout";
  drop.attrs = {{"p", 0.3},
                {"seed", int64_t{4}},
                {"key", int64_t{9}},
                {"global_shape", image},
                {"start", std::vector<int64_t>(4, 0)}};
  for (Node* node : {&bias, &drop, &sum}) node->inputs.resize(2);
  Node joined = conv;
  add_post_op(joined, bias, 0);
  add_post_op(joined, drop, 0);
  add_post_op(joined, sum, 1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!tiles_take(dtype)) continue;
    const Tensor x = random({dtype, image}, rng), w = random({dtype, {64, 64, 3, 3}}, rng),
                 b = random({dtype, {64}}, rng), r = random({dtype, image}, rng),
                 step = Tensor::scalar_i64(3);
    const Tensor apart = run(sum, {r, run(drop, {run(bias, {run(conv, {x, w}), b}), step})});
    const int threads = omp_get_max_threads();
    const Tensor got = run(joined, {x, w, b, step, r});
    omp_set_num_threads(1);
    const Tensor alone = run(joined, {x, w, b, step, r});
    omp_set_num_threads(threads);
    EXPECT_EQ(std::memcmp(got.data(), alone.data(), static_cast<size_t>(byte_size(got.type()))), 0);
    EXPECT_LT(distance(got, apart), dtype == DType::f32 ? 1e-6 : 4e-3);
  }
}

/// Sums along k in parts, chunks of columns and of rows: the post-ops come once, at the end.
TEST(PostOps, FollowTheLastPartOfAProduct) {
  if (!cpu::multiplies_blocks()) GTEST_SKIP() << "a processor without products of blocks";
  std::mt19937_64 rng(8);
  for (const auto& [out, tiles] :
       {std::pair{DType::f32, false}, {DType::bf16, false}, {DType::bf16, true}}) {
    if (tiles && !cpu::has_matrix_units()) continue;
    for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{65, 600, 100},
                                  {600, 70, 65},
                                  {80, 64, 1100},
                                  {80, 64, 1700}}) {
      cpu::ProductShape s;
      s.tiles = tiles;
      s.m = m, s.n = n, s.k = k, s.a_row = k, s.a_col = 1, s.b_row = n, s.b_col = 1;
      s.a = s.b = s.in = s.out = out;
      s.chunk_bytes = 64 << 10;
      s.post = {{"add", 0, n, DType::f32}, {"tanh"}, {"mul", 0, 1, out}};
      const bool whole = n <= 100 || tiles;  // columns are not in chunks
      if (whole) s.post.push_back({"add", 0, m * n, out});
      if (tiles) s.post.push_back({"gelu_erf_grad", 0, m * n, out});  // of the last operand
      std::string why;
      const auto product = cpu::PackedProduct::make(s, &why);
      if (!product && out == DType::bf16) GTEST_SKIP() << why;
      ASSERT_TRUE(product) << why;
      const Tensor a = random({out, {m, k}}, rng), b = random({out, {k, n}}, rng),
                   bias = random({DType::f32, {n}}, rng), by = random({out, {}}, rng),
                   more = random({out, {m, n}}, rng);
      const std::vector<const void*> operands = {bias.data(), by.data(), more.data(), more.data()};
      std::vector<char> workspace(static_cast<size_t>(product->workspace_bytes()) + 64);
      Tensor got(TensorType{out, {m, n}});
      product->run(
          a.data(), b.data(), got.data(),
          workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64,
          std::span(operands).first(tiles   ? 4
                                    : whole ? 3
                                            : 2));
      Tensor want(TensorType{DType::f64, {m, n}});
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += a.at(i * k + l) * b.at(l * n + j);
          const double x = more.at(i * n + j);
          double& y = want.as<double>()[i * n + j];
          y = std::tanh(sum + bias.at(j)) * by.at(0) + (whole ? x : 0);
          if (!tiles) continue;
          y *= (1 + std::erf(x / std::sqrt(2.0))) / 2 +
               x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
        }
      }
      EXPECT_LT(distance(got, want), out == DType::f32 ? 1e-5 : 4e-3) << m << "x" << k << "x" << n;
    }
  }
  cpu::ProductShape cut;  // a chunk of columns of a residual is not dense
  cut.m = 80, cut.n = 600, cut.k = 100, cut.a_row = 100, cut.a_col = 1, cut.b_row = 600;
  cut.b_col = 1, cut.chunk_bytes = 64 << 10, cut.post = {{"add", 0, 80 * 600, DType::f32}};
  std::string why;
  EXPECT_FALSE(cpu::PackedProduct::make(cut, &why));
  EXPECT_NE(why.find("not dense"), std::string::npos) << why;
}

/// Steps of two results are joined where a backend gives both at once.
TEST(PostOps, GiveOneResult) {
  const Attrs window = {{"strides", std::vector<int64_t>{1, 1}},
                        {"dilations", std::vector<int64_t>{1, 1}},
                        {"pads_low", std::vector<int64_t>{0, 0}},
                        {"pads_high", std::vector<int64_t>{0, 0}},
                        {"channels_last", int64_t{1}}};
  const TensorType x{DType::f32, {2, 9, 9, 32}}, w{DType::f32, {64, 32, 3, 3}},
      a{DType::f32, {64, 32}}, b{DType::f32, {32, 64}};
  Node relu;
  relu.op = "relu";
  relu.inputs.resize(1);
  for (const bool conv : {false, true}) {
    for (const bool keep : {false, true}) {
      Node node;
      node.op = conv ? "conv" : "matmul";
      node.attrs = conv ? window : Attrs{{"equation", std::string("mk,kn->mn")}};
      add_post_op(node, relu, 0, keep);
      const std::vector<TensorType> in = conv ? std::vector{x, w} : std::vector{a, b};
      const std::vector<TensorType> out = infer_types(node, in);
      ASSERT_EQ(out.size(), keep ? 2u : 1u);
      bool accepted = false;
      for (const KernelImpl& impl : cpu_kernels())
        accepted = accepted || (impl.op == node.op && !impl.refuses({node, in, out}));
      const bool taken = !conv || tiles_take(DType::f32);  // oneDNN has no relu that keeps a NaN
      EXPECT_EQ(accepted, taken && !keep) << node.op;
    }
  }
}

/// Of 2^40 rows oneDNN sees none, and ends the process with a division by zero.
TEST(Gemm, RefusesDimsBeyondItsCounts) {
  cpu::GemmShape shape;
  const int64_t rows = int64_t{1} << 40;
  shape.a = {rows, 4}, shape.a_strides = {4, 1};
  shape.b = {4, 1}, shape.b_strides = {1, 1};
  shape.c = {rows, 1}, shape.c_strides = {1, 1};
  std::string why;
  EXPECT_EQ(cpu::Gemm::make(shape, &why), nullptr);
  EXPECT_NE(why.find("1099511627776"), std::string::npos) << why;
}

}  // namespace
}  // namespace shardrun
