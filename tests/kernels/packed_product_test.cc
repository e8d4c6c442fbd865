// Packed layouts element by element, and products in chunks against plain sums.
#include "kernels/cpu/products/packed_product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/pack.h"

namespace shardrun::cpu {
namespace {

/// Random numbers of `dtype`, and what they are as doubles.
struct Numbers {
  Tensor tensor;
  std::vector<double> values;

  Numbers(DType dtype, int64_t count, std::mt19937_64& rng)
      : tensor(TensorType{dtype, {count}}), values(static_cast<size_t>(count)) {
    std::uniform_real_distribution<double> draw(-1, 1);
    for (double& v : values) v = draw(rng);
    convert(values.data(), DType::f64, tensor.data(), dtype, count);
    convert(tensor.data(), dtype, values.data(), DType::f64, count);
  }
};

double as(DType dtype, double value) {
  uint32_t memory = 0;
  convert(&value, DType::f64, &memory, dtype, 1);
  convert(&memory, dtype, &value, DType::f64, 1);
  return value;
}

struct Aligned {
  explicit Aligned(int64_t bytes)
      : data(std::aligned_alloc(64, static_cast<size_t>((bytes + 64 + 63) / 64 * 64))) {
    std::memset(data, 0xff, static_cast<size_t>(bytes + 64));
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  void* data;
};

double element(const void* data, DType dtype, int64_t at) {
  double value = 0;
  convert(static_cast<const char*>(data) + at * size_of(dtype), dtype, &value, DType::f64, 1);
  return value;
}

constexpr std::pair<DType, DType> kConversions[] = {
    {DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}};

TEST(Pack, BlocksHoldEveryElementAndZerosBehind) {
  std::mt19937_64 rng(1);
  for (const auto& [from, to] : kConversions) {
    for (const auto& [k, n] : {std::pair{1, 1}, {16, 16}, {33, 65}, {64, 700}, {90, 47}}) {
      for (const int64_t width : {16, 48, 64}) {
        for (const bool columns : {false, true}) {
          const Numbers b(from, k * n, rng);
          const int64_t row = columns ? 1 : n, col = columns ? k : 1;
          const int64_t pair = to == DType::bf16 ? 2 : 1;
          const BlockLayout layout{width, 16 * pair};
          const int64_t bytes = layout.bytes(k, n, to);
          const Aligned out(bytes);
          pack_blocks({b.tensor.data(), from, k, n, row, col}, to, layout, out.data);
          const int64_t deep = (k + layout.depth - 1) / layout.depth;
          for (int64_t at = 0; at < bytes / size_of(to); ++at) {
            const int64_t p = at % pair, c = at / pair % width, r = at / pair / width % 16,
                          block = at / pair / width / 16;
            const int64_t i = block % deep * layout.depth + r * pair + p,
                          j = block / deep * width + c;
            const double want =
                i < k && j < n ? as(to, b.values[static_cast<size_t>(i * row + j * col)]) : 0.0;
            ASSERT_EQ(element(out.data, to, at), want)
                << from << " to " << to << " " << k << "x" << n << " width " << width << " at " << i
                << ", " << j;
          }
          ASSERT_EQ(static_cast<const unsigned char*>(out.data)[bytes], 0xff) << "wrote behind";
        }
      }
    }
  }
}

TEST(Pack, RowsHoldEveryElement) {
  std::mt19937_64 rng(2);
  for (const auto& [from, to] : kConversions) {
    for (const auto& [m, k] : {std::pair{1, 1}, {17, 33}, {64, 96}, {100, 31}}) {
      for (const bool columns : {false, true}) {
        const Numbers a(from, m * k, rng);
        const int64_t row = columns ? 1 : k, col = columns ? m : 1;
        const Aligned out(m * k * size_of(to));
        pack_rows({a.tensor.data(), from, m, k, row, col}, to, out.data);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < k; ++j) {
            ASSERT_EQ(element(out.data, to, i * k + j),
                      as(to, a.values[static_cast<size_t>(i * row + j * col)]))
                << from << " to " << to << " " << m << "x" << k << " at " << i << ", " << j;
          }
        }
        ASSERT_EQ(static_cast<const unsigned char*>(out.data)[m * k * size_of(to)], 0xff);
      }
    }
  }
}

/// All orders of operands, conversions and results; chunks along n, along k and along m.
TEST(PackedProduct, EqualsPlainSumsInAnyChunks) {
  if (!cpu::multiplies_blocks()) GTEST_SKIP() << "a processor without products of blocks";
  std::mt19937_64 rng(3);
  struct Types {
    DType a, b, in, out;
    bool tiles = false;
  };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  for (const Types& t : {Types{f32, f32, f32, f32},
                         {bf16, bf16, bf16, bf16},
                         {bf16, bf16, bf16, f32},
                         {bf16, f32, bf16, bf16},
                         {f32, bf16, bf16, f32},
                         {bf16, bf16, bf16, bf16, true},
                         {bf16, bf16, bf16, f32, true},
                         {bf16, f32, bf16, bf16, true},
                         {f32, bf16, bf16, f32, true}}) {
    if (t.tiles && !cpu::has_matrix_units()) continue;
    for (const auto& [m, n, k] : {std::tuple{65, 70, 81},
                                  {64, 600, 100},
                                  {80, 64, 1100},
                                  {300, 200, 1600},
                                  {1400, 70, 1700}}) {
      for (int order = 0; order < (m < 300 ? 4 : m < 1000 ? 2 : 1); ++order) {
        ProductShape s;
        s.m = m, s.n = n, s.k = k;
        s.a_row = order & 1 ? 1 : k, s.a_col = order & 1 ? m : 1;
        s.b_row = order & 2 ? 1 : n, s.b_col = order & 2 ? k : 1;
        s.a = t.a, s.b = t.b, s.in = t.in, s.out = t.out, s.tiles = t.tiles;
        s.chunk_bytes = 64 << 10;
        std::string why;
        const auto product = PackedProduct::make(s, &why);
        if (!product && t.in == bf16) GTEST_SKIP() << why;  // a processor without bf16 products
        ASSERT_TRUE(product) << why;
        const Numbers a(t.a, m * k, rng), b(t.b, k * n, rng);
        Tensor c(TensorType{t.out, {m, n}});
        std::memset(c.data(), 0xff, static_cast<size_t>(c.count() * size_of(t.out)));
        const Aligned workspace(product->workspace_bytes());
        product->run(a.tensor.data(), b.tensor.data(), c.data(), workspace.data);
        std::vector<double> left, right;  // [m, k], [n, k], as the product takes them
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t l = 0; l < k; ++l)
            left.push_back(as(t.in, a.values[static_cast<size_t>(i * s.a_row + l * s.a_col)]));
        }
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t l = 0; l < k; ++l)
            right.push_back(as(t.in, b.values[static_cast<size_t>(l * s.b_row + j * s.b_col)]));
        }
        double error = 0, norm = 0;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const double want = std::inner_product(left.begin() + i * k, left.begin() + (i + 1) * k,
                                                   right.begin() + j * k, 0.0);
            const double got = c.at(i * n + j);
            ASSERT_FALSE(std::isnan(got)) << i << ", " << j;
            error += (got - want) * (got - want);
            norm += want * want;
          }
        }
        EXPECT_LT(std::sqrt(error / norm), t.out == bf16 ? 3e-3 : 1e-5)
            << t.a << " " << t.b << " -> " << t.out << (t.tiles ? " by tiles " : " ") << m << "x"
            << k << "x" << n << " order " << order;
        ASSERT_EQ(static_cast<const unsigned char*>(workspace.data)[product->workspace_bytes()],
                  0xff)
            << "wrote past its workspace";
      }
    }
  }
}

/// A right operand that lies in blocks gives the bits of one that is packed here.
TEST(PackedProduct, ByTilesOfBlocksIsTheSame) {
  if (!cpu::has_matrix_units()) GTEST_SKIP() << "a processor without tiles";
  std::mt19937_64 rng(6);
  for (const auto& [m, n, k] : {std::tuple{40, 330, 1700}, {300, 50, 90}}) {
    ProductShape s;
    s.m = m, s.n = n, s.k = k, s.a_row = k, s.a_col = 1, s.b_row = n, s.b_col = 1;
    s.a = s.b = s.in = s.out = DType::bf16, s.tiles = true;
    const Numbers a(s.in, m * k, rng), b(s.in, k * n, rng);
    std::vector<Tensor> got;
    for (const bool packed : {false, true}) {
      s.packed = packed;
      std::string why;
      const auto product = PackedProduct::make(s, &why);
      ASSERT_TRUE(product) << why;
      const BlockLayout layout = product->blocks();
      const Aligned workspace(product->workspace_bytes()), blocks(layout.bytes(k, n, s.in));
      pack_blocks({b.tensor.data(), s.in, k, n, n, 1}, s.in, layout, blocks.data);
      got.emplace_back(TensorType{s.out, {m, n}});
      product->run(a.tensor.data(), packed ? blocks.data : b.tensor.data(), got.back().data(),
                   workspace.data);
    }
    EXPECT_EQ(
        std::memcmp(got[0].data(), got[1].data(), static_cast<size_t>(byte_size(got[0].type()))),
        0);
  }
}

/// Columns and rows are divided among threads, terms never.
TEST(PackedProduct, OfTilesAreTheSameByAnyNumberOfThreads) {
  if (!cpu::has_matrix_units()) GTEST_SKIP() << "a processor without tiles";
  std::mt19937_64 rng(5);
  const int threads = omp_get_max_threads();
  for (const DType out : {DType::f32, DType::bf16}) {
    for (const auto& [m, n, k] : {std::tuple{40, 330, 1700}, {530, 50, 90}, {200, 200, 64}}) {
      ProductShape s;
      s.m = m, s.n = n, s.k = k, s.a_row = k, s.a_col = 1, s.b_row = n, s.b_col = 1;
      s.a = s.b = s.in = DType::bf16, s.out = out, s.tiles = true;
      const Numbers a(s.in, m * k, rng), b(s.in, k * n, rng), bias(DType::f32, n, rng);
      for (const bool posted : {false, true}) {
        if (posted) s.post = {{"add", 0, n, DType::f32}, {"gelu"}};
        const void* const operand = bias.tensor.data();
        std::vector<Tensor> got;
        for (const int count : {1, 3}) {
          omp_set_num_threads(count);
          std::string why;
          const auto product = PackedProduct::make(s, &why);
          ASSERT_TRUE(product) << why;
          const Aligned workspace(product->workspace_bytes());
          got.emplace_back(TensorType{out, {m, n}});
          product->run(a.tensor.data(), b.tensor.data(), got.back().data(), workspace.data,
                       std::span(&operand, posted ? 1 : 0));
          EXPECT_EQ(static_cast<const unsigned char*>(workspace.data)[product->workspace_bytes()],
                    0xff);
        }
        EXPECT_EQ(std::memcmp(got[0].data(), got[1].data(),
                              static_cast<size_t>(byte_size(got[0].type()))),
                  0)
            << m << "x" << n << "x" << k;
      }
    }
  }
  omp_set_num_threads(threads);
}

/// By way of the op: the equations of a layer's three products, in one type and in two.
TEST(PackedProduct, RunsLargeMatmuls) {
  std::mt19937_64 rng(4);
  const DType f32 = DType::f32, bf16 = DType::bf16;
  struct Call {
    const char* equation;
    Shape a, b;
  };
  for (const auto& [equation, a_shape, b_shape] : {Call{"bij,jk->bik", {2, 300, 70}, {70, 90}},
                                                   {"bij,kj->bik", {2, 300, 70}, {90, 70}},
                                                   {"bij,bik->jk", {2, 40, 520}, {2, 40, 70}},
                                                   {"bij,bik->kj", {2, 40, 70}, {2, 40, 520}}}) {
    for (const auto& [a_type, b_type] :
         {std::pair{f32, f32}, {bf16, bf16}, {bf16, f32}, {f32, bf16}}) {
      Node node;
      node.op = "matmul";
      node.attrs.set("equation", std::string(equation));
      const Numbers a(a_type, element_count(a_shape), rng), b(b_type, element_count(b_shape), rng);
      std::vector<Tensor> in = {Tensor(TensorType{a_type, a_shape}),
                                Tensor(TensorType{b_type, b_shape})};
      std::memcpy(in[0].data(), a.tensor.data(), static_cast<size_t>(byte_size(in[0].type())));
      std::memcpy(in[1].data(), b.tensor.data(), static_cast<size_t>(byte_size(in[1].type())));
      const std::vector<TensorType> types = {in[0].type(), in[1].type()};
      const std::vector<TensorType> out = infer_types(node, types);
      const KernelList& kernels = cpu_kernels();
      const auto impl = std::find_if(kernels.begin(), kernels.end(),
                                     [](const KernelImpl& k) { return k.op == "matmul"; });
      ASSERT_NE(impl, kernels.end());
      if (impl->refuses({node, types, out})) continue;  // a processor without bf16 products
      const PreparedKernel kernel = impl->prepare({node, types, out});
      Tensor got(out[0]);
      const Aligned workspace(kernel.workspace_bytes);
      const std::vector<TensorView> views = {in[0].view(), in[1].view()}, result = {got.view()};
      kernel.run({views, result, workspace.data});
      const Tensor want = run_reference(node, in)[0];
      double error = 0, norm = 0;
      for (int64_t i = 0; i < want.count(); ++i) {
        error += (got.at(i) - want.at(i)) * (got.at(i) - want.at(i));
        norm += want.at(i) * want.at(i);
      }
      EXPECT_LT(std::sqrt(error / norm), out[0].dtype == bf16 ? 3e-3 : 1e-5)
          << equation << " of " << a_type << " and " << b_type;
    }
  }
}

TEST(PackedProduct, LeavesSmallProductsToOthers) {
  ProductShape s;
  s.m = 8, s.n = s.k = 256;
  s.a_row = s.b_row = 256, s.a_col = s.b_col = 1;
  std::string why;
  EXPECT_FALSE(PackedProduct::make(s, &why));
  EXPECT_NE(why.find("64 rows"), std::string::npos) << why;
  if (!cpu::has_matrix_units()) return;
  s.tiles = true;
  s.a = s.b = s.in = DType::bf16;
  EXPECT_FALSE(PackedProduct::make(s, &why));
  EXPECT_NE(why.find("32 rows"), std::string::npos) << why;
  s.m = 64;
  s.post = {{"add", 0, 32 * 256, DType::f32}};  // half of the rows', over and over
  EXPECT_FALSE(PackedProduct::make(s, &why));
  EXPECT_NE(why.find("neither the result's size nor a row's"), std::string::npos) << why;
}

}  // namespace
}  // namespace shardrun::cpu
