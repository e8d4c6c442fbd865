// Matmuls and attention, in the sizes and shapes that have ways of their own.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/processor.h"
#include "tests/kernels/check.h"

namespace shardrun {
namespace {

// Shapes with remainders in every tile, more than one thread, and every layout of the operands.
TEST(CpuKernels, LargeMatmulsAndAttention) {
  std::mt19937_64 rng(kSeed + 1);
  std::set<std::string> exercised;
  struct Product {
    const char* equation;
    Shape a, b;
  };
  for (const Product& p : std::vector<Product>{{"bij,jk->bik", {2, 65, 130}, {130, 67}},
                                               {"bij,kj->bik", {2, 65, 130}, {67, 130}},
                                               {"bij,bik->jk", {2, 65, 70}, {2, 65, 67}},
                                               {"bthd,bshd->bhts", {2, 65, 3, 32}, {2, 66, 3, 32}},
                                               {"bhts,bshd->bthd", {2, 3, 65, 66}, {2, 66, 3, 32}},
                                               {"jbi,kbj->ikb", {65, 3, 66}, {67, 3, 65}},
                                               {"ij,jk->ki", {65, 66}, {66, 33}}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      Case c{make("matmul", {{"equation", std::string(p.equation)}}),
             {{dtype, p.a}, {dtype, p.b}},
             {}};
      c.out = infer_types(c.node, c.in);
      const std::string of = p.equation;
      const bool in_all =
                     of == "bthd,bshd->bhts" || of == "bhts,bshd->bthd" || of == "jbi,kbj->ikb",
                 tiles = dtype == DType::bf16 && !in_all && cpu::has_matrix_units();
      EXPECT_EQ(check(c, rng, exercised), tiles ? 2 : 1) << describe(c);
    }
  }
  for (const char* op : {"attention", "attention_grad"}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t q_offset : {0, 40, -30}) {
        for (double dropout : {0.0, 0.2}) {
          const TensorType q{dtype, {2, 2, 130, 16}}, k{dtype, {2, 2, 150, 16}},
              lse{DType::f32, {2, 2, 130}};
          Case c{make(op, {{"scale", 0.25}, {"causal", int64_t{1}}, {"q_offset", q_offset}}),
                 {q, k, k},
                 {}};
          if (op == std::string("attention_grad")) c.in = {q, q, k, k, q, lse};
          if (dropout > 0) {
            c.node.attrs.set("dropout", dropout);
            c.node.attrs.set("seed", int64_t{1} << 40);
            c.node.attrs.set("key", int64_t{9});
            c.node.attrs.set("global_shape", std::vector<int64_t>{4, 4, 300, 301});
            c.node.attrs.set("start", std::vector<int64_t>{1, 2, 130, 7});
            c.in.push_back({DType::i64, {}});
          }
          c.out = infer_types(c.node, c.in);
          EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
        }
      }
    }
  }
}

// A left operand of few nonzeros: the same as the reference, and the same bits with any number of
// threads. Dense ones and infinities on the right are oneDNN's.
TEST(CpuKernels, ProductsOfFewNonzeros) {
  std::mt19937_64 rng(kSeed + 6);
  const KernelImpl* impl = nullptr;
  for (const KernelImpl& each : cpu_kernels()) {
    if (each.name == "cpu:nonzeros") impl = &each;
  }
  ASSERT_NE(impl, nullptr);
  for (const char* equation : {"ij,jk->ik", "ij,ik->jk"}) {
    const bool of_columns = equation[3] == 'i';
    Case c{make("matmul", {{"equation", std::string(equation)}}),
           {{DType::f32, {301, 333}}, {DType::f32, {of_columns ? 301 : 333, 7}}},
           {}};
    c.out = infer_types(c.node, c.in);
    ASSERT_EQ(impl->refuses({c.node, c.in, c.out}), std::nullopt);
    for (const bool infinite : {false, true}) {
      SCOPED_TRACE(str(equation, infinite ? ", an infinity on the right" : ""));
      std::vector<Tensor> in = random_operands(c, rng);
      for (int64_t i = 0; i < in[0].count(); ++i) {
        if (rng() % 40 != 0) in[0].as<float>()[i] = i % 2 == 0 ? 0.0f : -0.0f;
      }
      if (infinite) in[1].as<float>()[5] = INFINITY;
      const Tensor want = run_reference(c.node, in)[0];
      const Tensor got = run_impl(*impl, c, in)[0];
      expect_close(got, want, 1e-5);
      if (infinite) continue;
      const int threads = omp_get_max_threads();
      omp_set_num_threads(threads == 3 ? 2 : 3);
      const Tensor again = run_impl(*impl, c, in)[0];
      omp_set_num_threads(threads);
      EXPECT_EQ(std::memcmp(got.data(), again.data(), static_cast<size_t>(byte_size(got.type()))),
                0);
    }
  }
  const auto refuse = [&](const char* equation, const Shape& a, const Shape& b, DType dtype) {
    Case c{make("matmul", {{"equation", std::string(equation)}}), {{dtype, a}, {dtype, b}}, {}};
    c.out = infer_types(c.node, c.in);
    return impl->refuses({c.node, c.in, c.out}).has_value();
  };
  EXPECT_TRUE(refuse("ij,jk->ki", {300, 300}, {300, 7}, DType::f32));
  EXPECT_TRUE(refuse("ij,kj->ik", {300, 300}, {7, 300}, DType::f32));
  EXPECT_EQ(refuse("ij,jk->ik", {300, 300}, {300, 7}, DType::bf16), cpu::multiplies_bf16());
}

// A row by a matrix, whichever operand is the row and however the matrix lies: as the reference,
// and the same bits with any number of threads and of any columns alone.
TEST(CpuKernels, ProductsOfARow) {
  std::mt19937_64 rng(kSeed + 7);
  struct Product {
    const char* equation;
    Shape a, b;
  };
  for (const Product& p :
       {Product{"ij,jk->ik", {1, 77}, {77, 301}}, Product{"abj,jk->abk", {1, 1, 1030}, {1030, 96}},
        Product{"ij,kj->ik", {1, 777}, {301, 777}}, Product{"ij,jk->ik", {301, 77}, {77, 1}},
        Product{"ji,jk->ik", {333, 130}, {333, 1}}}) {
    Case c{make("matmul", {{"equation", std::string(p.equation)}}),
           {{DType::f32, p.a}, {DType::f32, p.b}},
           {}};
    c.out = infer_types(c.node, c.in);
    SCOPED_TRACE(describe(c));
    const auto impl = std::find_if(
        cpu_kernels().begin(), cpu_kernels().end(),
        [](const auto& each) { return each.op == "matmul" && each.name == "cpu:onednn"; });
    ASSERT_NE(impl, cpu_kernels().end());
    const std::vector<Tensor> in = random_operands(c, rng);
    const Tensor got = run_impl(*impl, c, in)[0];
    expect_close(got, run_reference(c.node, in)[0], 1e-5);
    const int threads = omp_get_max_threads();
    for (const int others : {1, 3, 5}) {
      omp_set_num_threads(others);
      const Tensor again = run_impl(*impl, c, in)[0];
      EXPECT_EQ(std::memcmp(got.data(), again.data(), static_cast<size_t>(byte_size(got.type()))),
                0)
          << others;
    }
    omp_set_num_threads(threads);
  }
}

// Heads that are fewer than threads: their tiles and blocks of keys are divided instead, and
// where all keys are seen, second operands are packed before.
TEST(CpuKernels, AttentionOfFewHeads) {
  std::mt19937_64 rng(kSeed + 4);
  std::set<std::string> exercised;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t q_offset : {-40, 0, 130}) {
      for (const int64_t width : {2, 16}) {
        const TensorType q{dtype, {1, 2, 300, width}}, k{dtype, {1, 2, 290, width}},
            v{dtype, {1, 2, 290, 24}}, y{dtype, {1, 2, 300, 24}}, lse{DType::f32, {1, 2, 300}};
        const std::pair<const char*, std::vector<TensorType>> ops[] = {
            {"attention", {q, k, v}},
            {"attention_grad", {y, q, k, v, y, lse}},
            {"attention_top", {q, k}},
            {"attention_sums", {q, k, v, lse}}};
        for (const auto& [op, in] : ops) {
          Case c{make(op, {{"scale", 0.3}, {"slope", 0.2}, {"causal", int64_t{q_offset != 130}}}),
                 in,
                 {}};
          if (q_offset != 130) c.node.attrs.set("q_offset", q_offset);
          if (width == 2) {  // another mask for each query
            c.node.attrs.set("has_mask", int64_t{1});
            c.in.push_back({dtype, {1, 1, 300, 290}});
          }
          if (c.node.op != "attention_top") {
            c.node.attrs.set("dropout", 0.2);
            c.node.attrs.set("seed", int64_t{1} << 40);
            c.node.attrs.set("key", int64_t{9});
            c.node.attrs.set("global_shape", std::vector<int64_t>{4, 4, 430, 301});
            c.node.attrs.set("start", std::vector<int64_t>{1, 2, 130, 7});
            c.in.push_back({DType::i64, {}});
          }
          c.out = infer_types(c.node, c.in);
          EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
        }
      }
    }
  }
}

// Behind a mask that hides all but a few keys of each query, and all of some: pair by pair, and a
// mask of half of them still by tiles.
TEST(CpuKernels, AttentionOfFewPairs) {
  std::mt19937_64 rng(kSeed + 3);
  const int64_t T = 131, S = 150;
  struct Form {
    int64_t D, Dv, mask_rows;
    double slope, dropout;
  };
  for (const Form& f : std::vector<Form>{{2, 8, T, 0.2, 0.6},
                                         {2, 8, T, 0.2, 0},
                                         {2, 5, T, 0.2, 0.6},
                                         {2, 5, 1, 1, 0},
                                         {3, 4, T, 1, 0.3},
                                         {3, 4, 1, 0.5, 0}}) {
    for (const bool grad : {false, true}) {
      for (const int64_t every : {2, 23, 100000}) {
        const TensorType q{DType::f32, {2, 3, T, f.D}}, k{DType::f32, {2, 3, S, f.D}},
            v{DType::f32, {2, 3, S, f.Dv}}, y{DType::f32, {2, 3, T, f.Dv}},
            lse{DType::f32, {2, 3, T}};
        Case c{make(grad ? "attention_grad" : "attention",
                    {{"scale", 0.7}, {"has_mask", int64_t{1}}, {"slope", f.slope}}),
               {q, k, v},
               {}};
        if (grad) c.in = {y, q, k, v, y, lse};
        c.in.push_back({DType::boolean, {1, 1, f.mask_rows, S}});
        if (f.dropout > 0) {
          c.node.attrs.set("dropout", f.dropout);
          c.node.attrs.set("seed", int64_t{5});
          c.node.attrs.set("key", int64_t{1} << 33);
          c.node.attrs.set("global_shape", std::vector<int64_t>{4, 4, 300, 301});
          c.node.attrs.set("start", std::vector<int64_t>{1, 1, 130, 7});
          c.in.push_back({DType::i64, {}});
        }
        c.out = infer_types(c.node, c.in);
        std::vector<Tensor> in = random_operands(c, rng);
        auto* mask = in[grad ? 6 : 3].as<bool>();
        for (int64_t i = 0; i < f.mask_rows * S; ++i)
          mask[i] = rng() % static_cast<uint64_t>(every) == 0 && i / S != 3;
        const std::vector<Tensor> want = run_reference(c.node, in);
        SCOPED_TRACE(str(describe(c), ", one key in ", every));
        int tried = 0;
        for (const KernelImpl& impl : cpu_kernels()) {
          if (impl.op != c.node.op || impl.refuses({c.node, c.in, c.out})) continue;
          SCOPED_TRACE(impl.name);
          const std::vector<Tensor> got = run_impl(impl, c, in);
          for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], 1e-5);
          ++tried;
        }
        EXPECT_EQ(tried, 2);
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
