// Every CPU kernel against the reference, on the samples that the op's definition lists, on larger
// ones of the same kind, and on empty ones.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <set>
#include <thread>

#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gathered_gradient.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/simd.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20240611;

// Runs every accepting implementation of the case's op. Returns how many accepted.
int check(const Case& c, std::mt19937_64& rng, std::set<std::string>& exercised) {
  SCOPED_TRACE(describe(c));
  int accepted = 0;
  const std::vector<Tensor> in = random_operands(c, rng);
  std::vector<Tensor> want;
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.op != c.node.op || (impl.refuses && impl.refuses({c.node, c.in, c.out}))) continue;
    SCOPED_TRACE(impl.name);
    if (want.empty()) want = run_reference(c.node, in);
    const std::vector<Tensor> got = run_impl(impl, c, in);
    bool bf16 = false;
    for (const auto& types : {c.in, c.out}) {
      for (const TensorType& t : types) bf16 = bf16 || t.dtype == DType::bf16;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE("result " + std::to_string(i));
      expect_close(got[i], want[i], bf16 ? 2e-2 : 1e-4);
    }
    // Run to run the same bits, and with another number of threads too (but oneDNN, which does
    // dense operands for by_nonzeros, promises only the former; attention's products are made for
    // one thread).
    const int threads = omp_get_max_threads();
    const bool onednn = impl.name == "cpu:onednn" || impl.name == "cpu:nonzeros";
    if (!onednn) omp_set_num_threads(threads == 3 ? 2 : 3);
    const std::vector<Tensor> again = run_impl(impl, c, in);
    omp_set_num_threads(threads);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto bytes = static_cast<size_t>(byte_size(got[i].type()));
      EXPECT_TRUE(bytes == 0 || std::memcmp(got[i].data(), again[i].data(), bytes) == 0)
          << "differs from run to run";
    }
    exercised.insert(impl.op + " " + impl.name);
    ++accepted;
  }
  return accepted;
}

// A team of one within a team would be made anew each time.
TEST(ParallelRanges, WithinOthersHaveNoTeam) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  std::atomic<int> deepest = 0, elements = 0;
  cpu::parallel_ranges(2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      cpu::parallel_ranges(100, 1, [&](int64_t first, int64_t last) {
        deepest = std::max(deepest.load(), omp_get_level());
        elements += static_cast<int>(last - first);
      });
    }
  });
  omp_set_num_threads(threads);
  EXPECT_EQ(deepest, 1);
  EXPECT_EQ(elements, 200);
}

TEST(CpuKernels, TakeGroupsOfRows) { expect_same_of_groups(cpu_kernels(), kSeed); }

TEST(CpuKernels, AgreeWithTheReference) {
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  std::set<std::string> exercised;
  int cases = 0, accepted = 0;
  for (const OpDef* op : all_ops()) {
    for (const Case& c : cases_of(*op)) {
      ++cases;
      accepted += check(c, rng, exercised);
      if (HasFatalFailure()) return;
    }
  }
  std::cout << cases << " calls, " << accepted << " accepted by " << exercised.size()
            << " implementations\n";
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.name == "cpu:winograd") continue;  // wants more channels: TiledConvolutions, PostOps
    EXPECT_TRUE(exercised.count(impl.op + " " + impl.name))
        << impl.op << " " << impl.name << " was never run";
    EXPECT_NE(find_op(impl.op), nullptr) << impl.op;
  }
}

Node make(const char* op, Attrs attrs) {
  return {.op = op, .name = "node", .attrs = std::move(attrs), .inputs = {}, .outputs = {}};
}

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
      EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
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

// Tiles of 4 x 4 that stick out of the image on any side, padding of any width and sign, more tiles
// than are transformed at a time, odd numbers of panels.
/// Few positions beside channels: strides, dilation, padding and cropping, one to three dims.
TEST(CpuKernels, GatheredGradients) {
  std::mt19937_64 rng(kSeed + 8);
  std::set<std::string> exercised;
  struct Image {
    Shape x, y;
    std::vector<int64_t> kernel, strides, dilations, low;
  };
  for (const Image& i :
       {Image{{4, 9, 11, 72}, {4, 5, 6, 80}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
        Image{{3, 12, 9, 64}, {3, 6, 5, 96}, {1, 1}, {2, 2}, {1, 1}, {0, 0}},
        Image{{5, 10, 9, 66}, {5, 4, 8, 64}, {3, 2}, {2, 1}, {2, 1}, {-1, 0}},
        Image{{3, 70, 67}, {3, 24, 65}, {5}, {3}, {1}, {2}},
        Image{{2, 5, 6, 7, 64}, {2, 3, 3, 4, 64}, {2, 3, 1}, {2, 2, 2}, {1, 1, 1}, {1, 1, 0}}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const bool widened : {false, true}) {
        if (widened && dtype == DType::f32) continue;
        Case c{make("conv_weight_grad", {{"strides", i.strides},
                                         {"dilations", i.dilations},
                                         {"pads_low", i.low},
                                         {"kernel", i.kernel},
                                         {"channels_last", int64_t{1}}}),
               {{dtype, i.x}, {dtype, i.y}},
               {}};
        if (widened) c.node.attrs.set("out_dtype", std::string("f32"));
        c.out = infer_types(c.node, c.in);
        std::string why;
        if (dtype == DType::f32 && cpu::multiplies_blocks()) {
          EXPECT_TRUE(
              cpu::GatheredGradient::make(cpu::convolution_shape({c.node, c.in, c.out}), &why))
              << why;
        }
        EXPECT_GE(check(c, rng, exercised), dtype == DType::f32 ? 1 : 0) << describe(c);
      }
    }
  }
}

// Gradients of the weights of channels that are convolved alone: channels in sixteens, with some
// left over, fewer than sixteen, and so many that they are taken in turns; images wider and
// narrower than a vector; strides, dilation, cropping, lines that no window meets, one dim; both
// layouts.
TEST(CpuKernels, DepthwiseGradients) {
  std::mt19937_64 rng(kSeed + 14);
  std::set<std::string> exercised;
  struct Image {
    int64_t batch, channels;
    Shape x;
    std::vector<int64_t> kernel, strides, dilations, low, high;
  };
  for (const Image& i : {Image{3, 32, {21, 19}, {5, 5}, {1, 1}, {1, 1}, {2, 2}, {2, 2}},
                         Image{2, 72, {13, 40}, {5, 5}, {2, 2}, {1, 1}, {2, 2}, {2, 2}},
                         Image{2, 40, {9, 11}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}},
                         Image{9, 5, {30, 18}, {4, 5}, {3, 1}, {1, 2}, {-1, 4}, {2, -2}},
                         Image{2, 1000, {7, 7}, {5, 5}, {1, 1}, {1, 1}, {2, 2}, {2, 2}},
                         Image{4, 20, {100}, {31}, {1}, {1}, {15}, {15}},
                         Image{2, 17, {3, 6}, {5, 2}, {6, 3}, {1, 1}, {9, 0}, {9, 0}}}) {
    for (const int64_t last : {0, 1}) {
      Shape x = {i.batch, i.channels, 1}, y;
      x.insert(last != 0 ? x.begin() + 1 : x.end(), i.x.begin(), i.x.end());
      Shape w = {i.channels, 1, 1};
      w.insert(w.end(), i.kernel.begin(), i.kernel.end());
      const Attrs shared = {{"strides", i.strides},
                            {"dilations", i.dilations},
                            {"pads_low", i.low},
                            {"channels_last", last}};
      Node forward = make("conv", shared);
      forward.attrs.set("pads_high", i.high);
      for (const auto& [dtype, out] :
           {std::pair{DType::f32, "f32"}, {DType::bf16, "f32"}, {DType::bf16, "bf16"}}) {
        const TensorType in{dtype, x};
        const std::vector<TensorType> operands = {in, {dtype, w}};
        Case c{make("conv_weight_grad", shared), {in, infer_types(forward, operands)[0]}, {}};
        c.node.attrs.set("kernel", i.kernel);
        c.node.attrs.set("out_dtype", std::string(out));
        c.out = infer_types(c.node, c.in);
        EXPECT_EQ(check(c, rng, exercised), 2) << describe(c);
      }
    }
  }
}

// Columns in several blocks, rows at one distance or several, in fours and left over, or none.
TEST(CpuKernels, ReducedColumns) {
  std::mt19937_64 rng(kSeed + 9);
  std::set<std::string> exercised;
  struct Reduced {
    Shape shape;
    std::vector<int64_t> axes;
  };
  for (const Reduced& r :
       {Reduced{{37, 300}, {0}}, Reduced{{3, 7, 260}, {0, 1}}, Reduced{{5, 2, 9, 130}, {0, 2}},
        Reduced{{1, 6, 200}, {0}}, Reduced{{2, 0, 150}, {1}}}) {
    for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Case c{make(op, {{"axes", r.axes}, {"keepdims", int64_t{0}}}), {{dtype, r.shape}}, {}};
        c.out = infer_types(c.node, c.in);
        EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
      }
    }
  }
}

TEST(CpuKernels, TiledConvolutions) {
  std::mt19937_64 rng(kSeed + 7);
  std::set<std::string> exercised;
  struct Image {
    int64_t batch, height, width, in, out;
    std::vector<int64_t> low, high;
  };
  for (const Image& i : std::vector<Image>{{3, 8, 12, 32, 32, {1, 1}, {1, 1}},
                                           {2, 7, 11, 48, 80, {1, 1}, {1, 1}},
                                           {1, 9, 8, 64, 32, {0, 2}, {2, 0}},
                                           {5, 13, 15, 64, 80, {-1, 0}, {-2, 1}},
                                           {17, 19, 18, 64, 80, {1, 1}, {1, 1}}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Attrs shared = {{"strides", std::vector<int64_t>{1, 1}},
                            {"dilations", std::vector<int64_t>{1, 1}},
                            {"pads_low", i.low},
                            {"channels_last", int64_t{1}}};
      const TensorType x{dtype, {i.batch, i.height, i.width, i.in}}, w{dtype, {i.out, i.in, 3, 3}};
      Case forward{make("conv", shared), {x, w}, {}};
      forward.node.attrs.set("pads_high", i.high);
      forward.out = infer_types(forward.node, forward.in);
      Case data{make("conv_data_grad", shared), {forward.out[0], w}, {x}};
      data.node.attrs.set("size", std::vector<int64_t>{i.height, i.width});
      Case weights{make("conv_weight_grad", shared), {x, forward.out[0]}, {}};
      weights.node.attrs.set("kernel", std::vector<int64_t>{3, 3});
      if (i.batch == 2) weights.node.attrs.set("out_dtype", std::string("f32"));
      weights.out = infer_types(weights.node, weights.in);
      const bool tiles =
          kLanesFitRegisters && (dtype == DType::f32 || (i.batch >= 4 && !cpu::has_matrix_units()));
      for (const Case& c : {forward, data, weights})
        EXPECT_GE(check(c, rng, exercised), tiles ? 2 : 1) << describe(c);
    }
  }
  EXPECT_EQ(exercised.size(), kLanesFitRegisters ? 6u : 3u);
}

// Windows of any size, step and distance over images of odd sizes with few or odd channels, alone,
// in groups, and each channel by itself. The first are those that oneDNN 2.6 computes wrongly.
TEST(CpuKernels, AnyConvolution) {
  std::mt19937_64 rng(kSeed + 10);
  std::set<std::string> exercised;
  struct Windows {
    int64_t batch, groups, in, out;
    Shape size;
    std::vector<int64_t> kernel, strides, dilations, low, high;
    bool channels_last = true;
  };
  std::vector<Windows> all = {
      {5, 1, 31, 24, {37, 29}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}},
      {2, 3, 34, 32, {24, 28}, {4, 3}, {1, 1}, {3, 2}, {2, 3}, {2, 3}},
      {3, 1, 38, 40, {2}, {5}, {3}, {1}, {3}, {0}},
      {4, 1, 16, 32, {8, 1}, {2, 4}, {1, 2}, {1, 1}, {1, 2}, {1, 2}},
      {3, 24, 1, 1, {4, 5, 5}, {4, 3, 1}, {3, 2, 1}, {1, 1, 1}, {1, 0, 0}, {2, 0, 0}},
      {2, 1, 25, 32, {3, 1, 4}, {4, 5, 1}, {3, 1, 3}, {1, 1, 1}, {2, 2, 0}, {2, 2, 0}},
      {3, 1, 60, 64, {9, 1, 10}, {4, 5, 1}, {1, 1, 1}, {1, 1, 1}, {2, 2, 0}, {1, 2, 0}},
      {1, 1, 25, 15, {60}, {1}, {1}, {1}, {0}, {0}},
      {5, 1, 10, 29, {30, 36}, {1, 1}, {1, 2}, {1, 1}, {0, 0}, {0, 0}},
      {3, 1, 9, 48, {12, 22}, {1, 1}, {3, 2}, {1, 1}, {0, 0}, {0, 0}},
      {5, 1, 1, 5, {6, 6, 3}, {5, 3, 1}, {3, 1, 2}, {1, 1, 1}, {4, 1, 0}, {3, 0, 0}},
      {2, 1, 16, 16, {4, 3, 2}, {4, 1, 1}, {2, 1, 1}, {1, 1, 1}, {3, 0, 0}, {3, 0, 0}}};
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int i = 0; i < 60; ++i) {
    const int64_t kind = draw(0, 3);
    Windows c{draw(1, 4),
              kind < 2 ? 1 : draw(2, 17),
              kind == 3 ? 1 : draw(1, 40),
              kind == 3 ? 1 : draw(1, 40),
              {},
              {},
              {},
              {},
              {},
              {},
              draw(0, 3) > 0};
    for (int d = 0, dims = i % 8 == 0 ? 1 : i % 8 == 1 ? 3 : 2; d < dims; ++d) {
      const int64_t kernel = draw(1, 5), dilation = draw(0, 1) == 0 ? 1 : draw(2, 3),
                    reach = (kernel - 1) * dilation + 1, low = draw(0, reach - 1),
                    high = draw(0, reach - 1),
                    most = dims == 1   ? 60
                           : dims == 2 ? 20
                                       : 9;
      c.kernel.push_back(kernel), c.dilations.push_back(dilation);
      c.strides.push_back(draw(0, 1) == 0 ? 1 : draw(2, 3));
      c.low.push_back(low), c.high.push_back(high);
      c.size.push_back(draw(std::max<int64_t>(1, reach - low - high), std::max(reach, most)));
    }
    all.push_back(c);
  }
  for (const Windows& c : all) {
    Shape x = c.size, w = {c.out, c.in};
    const auto channels_at = c.channels_last ? x.size() : 0;
    x.insert(x.begin() + static_cast<ptrdiff_t>(channels_at), c.in);
    if (c.groups > 1) {
      x.insert(x.begin() + static_cast<ptrdiff_t>(channels_at), c.groups);
      w.insert(w.begin(), c.groups);
    }
    x.insert(x.begin(), c.batch);
    w.insert(w.end(), c.kernel.begin(), c.kernel.end());
    const Attrs shared = {{"strides", c.strides},
                          {"dilations", c.dilations},
                          {"pads_low", c.low},
                          {"channels_last", int64_t{c.channels_last}}};
    for (DType dtype : {DType::f32, DType::bf16}) {
      Case forward{make("conv", shared), {{dtype, x}, {dtype, w}}, {}};
      forward.node.attrs.set("pads_high", c.high);
      forward.out = infer_types(forward.node, forward.in);
      Case data{make("conv_data_grad", shared), {forward.out[0], forward.in[1]}, {forward.in[0]}};
      data.node.attrs.set("size", c.size);
      Case weights{make("conv_weight_grad", shared), {forward.in[0], forward.out[0]}, {}};
      weights.node.attrs.set("kernel", c.kernel);
      weights.node.attrs.set("out_dtype", std::string("f32"));
      weights.out = infer_types(weights.node, weights.in);
      for (const Case& each : {forward, data, weights})
        EXPECT_GE(check(each, rng, exercised), 1) << describe(each);
    }
  }
}

// Kernels of 1 that leave out positions, of few and odd channels.
TEST(CpuKernels, StridedPointwiseConvolutions) {
  std::mt19937_64 rng(kSeed + 9);
  std::set<std::string> exercised;
  for (const int64_t channels_last : {0, 1}) {
    for (const int64_t in : {2, 3, 8, 11, 16, 20, 40}) {
      for (const int64_t out : {4, 8, 21, 48}) {
        const auto image = [&](int64_t channels, int64_t size) {
          return TensorType{DType::f32, channels_last != 0 ? Shape{3, size, size, channels}
                                                           : Shape{3, channels, size, size}};
        };
        const TensorType x = image(in, 6), y = image(out, 3), w{DType::f32, {out, in, 1, 1}};
        const Attrs shared = {{"strides", std::vector<int64_t>{2, 2}},
                              {"dilations", std::vector<int64_t>{1, 1}},
                              {"pads_low", std::vector<int64_t>{0, 0}},
                              {"channels_last", channels_last}};
        Case forward{make("conv", shared), {x, w}, {y}},
            data{make("conv_data_grad", shared), {y, w}, {x}},
            weights{make("conv_weight_grad", shared), {x, y}, {w}};
        forward.node.attrs.set("pads_high", std::vector<int64_t>{0, 0});
        data.node.attrs.set("size", std::vector<int64_t>{6, 6});
        weights.node.attrs.set("kernel", std::vector<int64_t>{1, 1});
        for (const Case& c : {forward, data, weights})
          EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
      }
    }
  }
}

// Kernels of 1 with channels last, where these are many beside positions, and where they are not.
TEST(CpuKernels, PointwiseConvolutions) {
  std::mt19937_64 rng(kSeed + 8);
  std::set<std::string> exercised;
  for (const int64_t batch : {2, 6, 12}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Attrs shared = {{"strides", std::vector<int64_t>{1, 1}},
                            {"dilations", std::vector<int64_t>{1, 1}},
                            {"pads_low", std::vector<int64_t>{0, 0}},
                            {"channels_last", int64_t{1}}};
      const TensorType x{dtype, {batch, 5, 7, 96}}, y{dtype, {batch, 5, 7, 80}},
          w{dtype, {80, 96, 1, 1}};
      Case forward{make("conv", shared), {x, w}, {y}},
          data{make("conv_data_grad", shared), {y, w}, {x}},
          weights{make("conv_weight_grad", shared), {x, y}, {w}};
      forward.node.attrs.set("pads_high", std::vector<int64_t>{0, 0});
      data.node.attrs.set("size", std::vector<int64_t>{5, 7});
      weights.node.attrs.set("kernel", std::vector<int64_t>{1, 1});
      if (batch == 6) {
        weights.node.attrs.set("out_dtype", std::string("f32"));
        weights.out[0].dtype = DType::f32;
      }
      for (const Case& c : {forward, data, weights})
        EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
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

// Exponentials of a row are kept where it is short enough.
TEST(CpuKernels, SoftmaxOfLongRows) {
  std::mt19937_64 rng(kSeed + 12);
  std::set<std::string> exercised;
  for (const int64_t columns : {8192, 8193, 20000}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const char* op : {"softmax", "log_softmax"}) {
        const TensorType type{dtype, {3, columns}};
        EXPECT_EQ(check({make(op, {{"axis", int64_t{1}}}), {type}, {type}}, rng, exercised), 1)
            << op << " of " << type;
      }
    }
  }
}

// Lines side by side in several blocks, and long ones.
TEST(CpuKernels, RunningSums) {
  std::mt19937_64 rng(kSeed + 11);
  std::set<std::string> exercised;
  for (const auto& [shape, axis] : {std::pair{Shape{3, 50, 130}, 1},
                                    {Shape{7, 5000}, 1},
                                    {Shape{90, 64}, 0},
                                    {Shape{2, 3, 65}, 0}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int64_t form = 0; form < 4; ++form) {
        Case c{make("cumsum",
                    {{"axis", int64_t{axis}}, {"exclusive", form & 1}, {"reverse", form / 2}}),
               {{dtype, shape}},
               {{dtype, shape}}};
        EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
      }
    }
  }
}

// Lines side by side in several blocks, and long ones, of numbers of which many are equal.
TEST(CpuKernels, PlacesOfExtremes) {
  std::mt19937_64 rng(kSeed + 13);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [shape, axis] : {std::pair{Shape{3, 50, 130}, 1},
                                    {Shape{7, 5000}, 1},
                                    {Shape{90, 64}, 0},
                                    {Shape{600, 3}, 1},
                                    {Shape{2, 0, 3}, 1},
                                    {Shape{2, 1, 65}, 1}}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const char* op : {"argmax", "argmin"}) {
        for (int64_t last : {0, 1}) {
          Case c{make(op, {{"axis", int64_t{axis}},
                           {"keepdims", int64_t{0}},
                           {"select_last_index", last}}),
                 {{dtype, shape}},
                 {}};
          c.out = infer_types(c.node, c.in);
          std::vector<float> values(static_cast<size_t>(element_count(shape)));
          for (float& x : values) {
            const uint64_t draw = rng() % 4000;
            x = draw == 0 ? NAN : draw == 1 ? -inf : static_cast<float>(draw % 300);
          }
          const std::vector<Tensor> in = {convert(Tensor::from(shape, values, DType::f32), dtype)};
          for (const KernelImpl& impl : cpu_kernels()) {
            if (impl.op != op) continue;
            expect_close(run_impl(impl, c, in)[0], run_reference(c.node, in)[0], 0);
          }
        }
      }
    }
  }
}

// Of numbers of which many are equal, NaN, infinite or a zero of either sign, the best few, many
// and all: short and long lines, side by side in sixteens or fewer.
TEST(CpuKernels, BestOfLines) {
  std::mt19937_64 rng(kSeed + 15);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [shape, axis] : {std::pair{Shape{37, 8}, 1},
                                    {Shape{21, 100}, 1},
                                    {Shape{7, 5003}, 1},
                                    {Shape{3, 150, 40}, 1},
                                    {Shape{5, 90, 3}, 1},
                                    {Shape{600, 2}, 0},
                                    {Shape{4, 1, 5}, 1},
                                    {Shape{2, 3, 0}, 1}}) {
    const int64_t size = shape[static_cast<size_t>(axis)];
    for (DType dtype : {DType::f32, DType::bf16}) {
      std::vector<float> values(static_cast<size_t>(element_count(shape)));
      for (float& x : values) {
        const uint64_t draw = rng() % 400;
        x = draw == 0   ? NAN
            : draw == 1 ? inf
            : draw == 2 ? -inf
            : draw == 3 ? -0.0f
                        : static_cast<float>(draw % 100) - 50;
      }
      const std::vector<Tensor> in = {convert(Tensor::from(shape, values, DType::f32), dtype)};
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{8},
                              int64_t{9}, int64_t{64}, int64_t{65}, int64_t{1000}, size}) {
        if (k > size) continue;
        for (const int64_t largest : {0, 1}) {
          Case c{make("top_k", {{"axis", int64_t{axis}}, {"k", k}, {"largest", largest}}),
                 {{dtype, shape}},
                 {}};
          SCOPED_TRACE(describe(c));
          c.out = infer_types(c.node, c.in);
          const std::vector<Tensor> want = run_reference(c.node, in);
          int tried = 0;
          for (const KernelImpl& impl : cpu_kernels()) {
            if (impl.op != c.node.op || impl.refuses({c.node, c.in, c.out})) continue;
            const std::vector<Tensor> got = run_impl(impl, c, in);
            for (size_t i = 0; i < 2; ++i) expect_close(got[i], want[i], 0);
            ++tried;
          }
          EXPECT_EQ(tried, 1);
        }
      }
    }
  }
}

// Lines of a few elements, several in a block: one operand with an element for each line, one for
// all, a line for all, or a line for some of them.
TEST(CpuKernels, ShortLines) {
  std::mt19937_64 rng(kSeed + 5);
  std::set<std::string> exercised;
  for (const int64_t length : {2, 4, 7, 8, 16, 63}) {
    for (const Shape& lines : {Shape{1201}, Shape{3, 401}, Shape{2, 3, 170}}) {
      Shape whole = lines, each = lines, some = lines;
      some.back() = 1;
      whole.push_back(length), each.push_back(1), some.push_back(length);
      for (const Shape& other : {each, Shape{1}, Shape{length}, some}) {
        for (DType dtype : {DType::f32, DType::bf16}) {
          for (const bool swapped : {false, true}) {
            Case c{make("sub", {}),
                   {{dtype, swapped ? other : whole}, {dtype, swapped ? whole : other}},
                   {}};
            c.out = infer_types(c.node, c.in);
            EXPECT_EQ(check(c, rng, exercised), 1) << describe(c);
          }
        }
      }
    }
  }
}

// Rows of a few columns are computed 16 at a time: as many as there are at the end, of all widths
// around those of vectors and of the limits, some of them alone, and over what they are made of.
TEST(CpuKernels, ShortRows) {
  std::mt19937_64 rng(kSeed + 16);
  std::set<std::string> exercised;
  for (const int64_t columns : {1, 2, 7, 15, 16, 17, 31, 32, 48, 63, 64, 65, 80, 81}) {
    for (const int64_t rows : {1, 21, 531}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        const TensorType x{dtype, {rows, columns}}, each{DType::f32, {rows}},
            along{DType::f32, {columns}}, labels{DType::i64, {rows}};
        const Attrs axis = {{"axis", int64_t{1}}}, eps = {{"axis", int64_t{1}}, {"eps", 1e-5}},
                    ignore = {{"ignore_index", int64_t{1}}};
        std::vector<Case> cases = {
            {make("softmax", axis), {x}, {}},
            {make("log_softmax", axis), {x}, {}},
            {make("softmax_grad", axis), {x, x}, {}},
            {make("log_softmax_grad", axis), {x, x}, {}},
            {make("layer_norm", eps), {x, along, along}, {}},
            {make("rms_norm", eps), {x, along}, {}},
            {make("layer_norm_grad", axis), {x, x, along, each, each}, {}},
            {make("layer_norm_grad", axis), {x, x, along, each, each, x}, {}},
            {make("rms_norm_grad", axis), {x, x, along, each}, {}},
            {make("cross_entropy", ignore), {x, labels}, {}},
            {make("cross_entropy_grad", ignore), {each, x, labels, each}, {}},
            {make("cross_entropy_and_grad", ignore), {each, x, labels}, {}}};
        for (Case& c : cases) {
          SCOPED_TRACE(describe(c));
          c.out = infer_types(c.node, c.in);
          EXPECT_EQ(check(c, rng, exercised), 1);
          const std::vector<const KernelList*> lists = {&cpu_kernels()};
          const PreparedKernel kernel = select_kernel(lists, {c.node, c.in, c.out});
          if (!kernel.run_rows) continue;
          const std::vector<Tensor> in = random_operands(c, rng);
          std::vector<TensorView> from, to, over;
          for (const Tensor& t : in) from.push_back(t.view());
          std::vector<Tensor> whole;
          for (const TensorType& t : c.out) whole.emplace_back(t);
          for (const Tensor& t : whole) to.push_back(t.view());
          kernel.run({from, to});
          over = to;
          over[0].data = from[0].data;
          kernel.run_rows({from, over}, 0, rows / 3);
          kernel.run_rows({from, over}, rows / 3, rows);
          EXPECT_EQ(std::memcmp(from[0].data, to[0].data, static_cast<size_t>(byte_size(x))), 0);
        }
      }
    }
  }
}

// What is not finite stays in its row.
TEST(CpuKernels, ShortRowsKeepNaNAndInfinity) {
  const float inf = INFINITY;
  std::vector<float> values(40 * 9);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i % 17);
  values[9 * 3 + 4] = NAN, values[9 * 20 + 1] = -inf, values[9 * 39 + 8] = NAN;
  const Tensor x = Tensor::from({40, 9}, values, DType::f32);
  for (const char* op : {"softmax", "log_softmax"}) {
    SCOPED_TRACE(op);
    const Case c{make(op, {{"axis", int64_t{1}}}), {x.type()}, {x.type()}};
    const Tensor want = run_reference(c.node, {{x}})[0];
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op == op) expect_close(run_impl(impl, c, {x})[0], want, 1e-5);
    }
  }
}

// Heads that are fewer than threads: their tiles and blocks of keys are shared out instead, and
// where all keys are seen, second operands are packed before.
TEST(CpuKernels, AttentionOfFewHeads) {
  std::mt19937_64 rng(kSeed + 4);
  std::set<std::string> exercised;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t q_offset : {-40, 0, 130}) {
      for (const int64_t width : {2, 16}) {
        const TensorType q{dtype, {1, 2, 300, width}}, k{dtype, {1, 2, 290, width}},
            v{dtype, {1, 2, 290, 24}}, y{dtype, {1, 2, 300, 24}}, lse{DType::f32, {1, 2, 300}};
        for (const bool grad : {false, true}) {
          Case c{make(grad ? "attention_grad" : "attention",
                      {{"scale", 0.3}, {"slope", 0.2}, {"causal", int64_t{q_offset != 130}}}),
                 {q, k, v},
                 {}};
          if (grad) c.in = {y, q, k, v, y, lse};
          if (q_offset != 130) c.node.attrs.set("q_offset", q_offset);
          if (width == 2) {  // another mask for each query
            c.node.attrs.set("has_mask", int64_t{1});
            c.in.push_back({dtype, {1, 1, 300, 290}});
          }
          c.node.attrs.set("dropout", 0.2);
          c.node.attrs.set("seed", int64_t{1} << 40);
          c.node.attrs.set("key", int64_t{9});
          c.node.attrs.set("global_shape", std::vector<int64_t>{4, 4, 430, 301});
          c.node.attrs.set("start", std::vector<int64_t>{1, 2, 130, 7});
          c.in.push_back({DType::i64, {}});
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

// Ranks may be threads of one process, each with its own OpenMP threads.
TEST(CpuKernels, RunInSeveralRanksAtOnce) {
  const TensorType x{DType::f32, {2, 2, 70, 16}}, lse{DType::f32, {2, 2, 70}};
  Case attention{make("attention", {{"scale", 0.25}, {"causal", int64_t{1}}}), {x, x, x}, {x, lse}};
  Case product{make("matmul", {{"equation", std::string("bhtd,bhsd->bhts")}}), {x, x}, {}};
  product.out = infer_types(product.node, product.in);
  for (const Case& c : {attention, product}) {
    std::mt19937_64 rng(kSeed + 2);
    const std::vector<Tensor> in = random_operands(c, rng);
    const auto impl =
        std::find_if(cpu_kernels().begin(), cpu_kernels().end(), [&](const KernelImpl& k) {
          return k.op == c.node.op && !k.refuses({c.node, c.in, c.out});
        });
    const Tensor want = run_reference(c.node, in)[0];
    std::vector<Tensor> got(4);
    std::vector<std::thread> ranks;
    for (Tensor& mine : got) {
      ranks.emplace_back([&, out = &mine] {
        omp_set_num_threads(2);
        for (int repeat = 0; repeat < 5; ++repeat) *out = run_impl(*impl, c, in)[0];
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Tensor& mine : got) expect_close(mine, want, 1e-4);
  }
}

TEST(CpuKernels, KeepNaNAndInfinity) {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> values = {nan,   inf,   -inf,    0.0f,  -0.0f,  1e-40f,
                                     88.0f, 89.0f, -104.0f, 3e38f, -3e38f, 1.0f};
  const Tensor x = Tensor::from({12}, values, DType::f32);
  for (const char* op :
       {"exp",        "log",  "tanh",     "erf",   "sigmoid", "relu",  "sqrt", "abs",  "neg",
        "reciprocal", "gelu", "softplus", "sin",   "cos",     "tan",   "asin", "acos", "atan",
        "sinh",       "cosh", "asinh",    "acosh", "atanh",   "isnan", "isinf"}) {
    SCOPED_TRACE(op);
    Case c{make(op, {}), {x.type()}, {}};
    c.out = infer_types(c.node, c.in);
    const std::vector<Tensor> want = run_reference(c.node, {{x}});
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op != op) continue;
      const Tensor got = run_impl(impl, c, {x})[0];
      for (int64_t i = 0; i < x.count(); ++i) {
        const double g = got.at(i), w = want[0].at(i);
        if (op == std::string("gelu") && std::isinf(x.at(i))) continue;  // -inf * 0
        EXPECT_TRUE(std::isnan(w) ? std::isnan(g)
                                  : g == w || std::fabs(g - w) <= 1e-5 * std::fabs(w) + 1e-37)
            << op << "(" << x.at(i) << ") is " << g << ", want " << w;
      }
    }
  }
}

// The vectorised functions of our own against libm, over the range that matters for each.
TEST(CpuKernels, FunctionsAreAccurateTo1e6) {
  struct Function {
    const char* op;
    double low, high;
  };
  for (const Function& f : {Function{"exp", -80, 80},
                            {"log", 1e-30, 1e30},
                            {"log", 0.5, 2},
                            {"tanh", -10, 10},
                            {"erf", -5, 5},
                            {"sigmoid", -30, 30},
                            {"softplus", -20, 20},
                            {"elu", -3, 3},
                            {"silu", -20, 20},
                            {"gelu", -1, 10}}) {
    SCOPED_TRACE(f.op);
    const int64_t n = 40000;
    Tensor x({DType::f32, {n}});
    for (int64_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(i) / static_cast<double>(n - 1);
      x.as<float>()[i] =
          static_cast<float>(f.low > 0 && f.high > 1e3 ? f.low * std::pow(f.high / f.low, u)
                                                       : f.low + (f.high - f.low) * u);
    }
    Case c{make(f.op, {}), {x.type()}, {x.type()}};
    const Tensor want = run_reference(c.node, {{x}})[0];
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op != f.op) continue;
      const Tensor got = run_impl(impl, c, {x})[0];
      double worst = 0, at = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double error = std::fabs(got.at(i) - want.at(i)) / (std::fabs(want.at(i)) + 1e-6);
        if (error > worst) worst = error, at = x.at(i);
      }
      // (Below -1, gelu's 1 + erf cancels and only its absolute error stays small.)
      EXPECT_LE(worst, 1e-6) << "at " << at;
    }
  }
}

// Golden values from torch.optim.AdamW and Adam: lr 0.1, betas (0.9, 0.95), eps 1e-8, weight_decay
// 0.1, from p = 1 with gradients 0.5, -0.25, 0.125 in turn.
TEST(Optimizers, FollowTheFormulas) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    for (bool decoupled : {true, false}) {
      Node node = make("adamw", {{"beta1", 0.9},
                                 {"beta2", 0.95},
                                 {"eps", 1e-8},
                                 {"weight_decay", 0.1},
                                 {"decoupled", int64_t{decoupled}}});
      const TensorType t{DType::f32, {1}}, s{DType::f32, {}};
      std::vector<TensorType> in = {t, t, t, t, s, {DType::i64, {}}, s}, out = {t, t, t};
      const KernelList* lists[] = {list};
      const PreparedKernel kernel = select_kernel(lists, {node, in, out});
      float p = 1, m = 0, v = 0, lr = 0.1f, clip = 1;
      const float want_decoupled[] = {0.89f, 0.85426313f, 0.81105238f},
                  want_coupled[] = {0.9f, 0.85393620f, 0.79905444f};
      for (int64_t step = 1; step <= 3; ++step) {
        float g = step == 1 ? 0.5f : step == 2 ? -0.25f : 0.125f;
        const std::vector<TensorView> views = {{&p, t},  {&g, t},        {&m, t},   {&v, t},
                                               {&lr, s}, {&step, in[5]}, {&clip, s}};
        const std::vector<TensorView> results = {{&p, t}, {&m, t}, {&v, t}};
        kernel.run({views, results, nullptr});
        EXPECT_NEAR(p, (decoupled ? want_decoupled : want_coupled)[step - 1], 2e-6)
            << "step " << step;
      }
    }
  }
}

/// A rank's part of a maximum is -inf where another rank has it; 0 * -inf would be NaN.
TEST(Optimizers, WithoutDecayInfiniteParametersStay) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    Node node = make("sgd", {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}});
    const TensorType t{DType::f32, {2}}, s{DType::f32, {}};
    std::vector<TensorType> in = {t, t, t, s, {DType::i64, {}}, s}, out = {t, t};
    const KernelList* lists[] = {list};
    const PreparedKernel kernel = select_kernel(lists, {node, in, out});
    const float inf = std::numeric_limits<float>::infinity();
    float p[] = {-inf, inf}, g[] = {0.5f, -2}, buffer[] = {0, 1}, lr = 0.1f, clip = 1;
    int64_t step = 1;
    const std::vector<TensorView> views = {{p, t},   {g, t},         {buffer, t},
                                           {&lr, s}, {&step, in[4]}, {&clip, s}};
    const std::vector<TensorView> results = {{p, t}, {buffer, t}};
    kernel.run({views, results, nullptr});
    EXPECT_EQ(p[0], -inf);
    EXPECT_EQ(p[1], inf);
    EXPECT_FLOAT_EQ(buffer[0], 0.5f);
    EXPECT_FLOAT_EQ(buffer[1], -1.1f);
  }
}

// Golden values from torch.optim.SGD: lr 0.1, momentum 0.9, weight_decay 0.1, the same gradients.
TEST(Optimizers, SgdFollowsPyTorch) {
  for (const KernelList* list : {&cpu_kernels(), &reference_kernels()}) {
    for (bool nesterov : {true, false}) {
      Node node =
          make("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", int64_t{nesterov}}});
      const TensorType t{DType::f32, {1}}, s{DType::f32, {}};
      std::vector<TensorType> in = {t, t, t, s, {DType::i64, {}}, s}, out = {t, t};
      const KernelList* lists[] = {list};
      const PreparedKernel kernel = select_kernel(lists, {node, in, out});
      float p = 1, buffer = 0, lr = 0.1f, clip = 1;
      const float want_nesterov[] = {0.88600f, 0.86806595f, 0.79715610f},
                  want_plain[] = {0.94f, 0.9016f, 0.84552401f};
      for (int64_t step = 1; step <= 3; ++step) {
        float g = step == 1 ? 0.5f : step == 2 ? -0.25f : 0.125f;
        const std::vector<TensorView> views = {{&p, t},  {&g, t},        {&buffer, t},
                                               {&lr, s}, {&step, in[4]}, {&clip, s}};
        const std::vector<TensorView> results = {{&p, t}, {&buffer, t}};
        kernel.run({views, results, nullptr});
        EXPECT_NEAR(p, (nesterov ? want_nesterov : want_plain)[step - 1], 2e-6) << "step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
