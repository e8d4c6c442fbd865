// Convolutions and their gradients, in the shapes that have ways of their own.
#include <algorithm>

#include "kernels/cpu/images/gathered_gradient.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "tests/kernels/check.h"

namespace shardrun {
namespace {

// Few positions compared with channels: strides, dilation, padding and cropping, one to three dims.
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

// Tiles of 4 x 4 that stick out of the image on any side, padding of any width and sign, more tiles
// than are transformed at a time, odd numbers of panels.
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
  exercised.erase("conv_weight_grad cpu:amx");
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
      {3, 1, 36, 25, {11, 13}, {1, 5}, {2, 2}, {2, 1}, {0, 3}, {0, 2}, false},
      {3, 1, 31, 10, {4, 8, 2}, {5, 3, 1}, {2, 3, 3}, {1, 1, 1}, {1, 2, 0}, {0, 2, 0}, false},
      {4, 1, 40, 31, {5, 5, 6}, {1, 2, 1}, {2, 1, 3}, {3, 1, 1}, {0, 1, 0}, {0, 0, 0}},
      {4, 1, 37, 4, {9, 17}, {2, 3}, {3, 1}, {1, 1}, {0, 1}, {1, 0}},
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

// Kernels of 1 with channels last, where these are many compared with positions, and where they are
// not.
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
      const bool tiles = dtype == DType::bf16 && cpu::has_matrix_units();
      for (const Case& c : {forward, data, weights})
        EXPECT_EQ(check(c, rng, exercised), tiles && c.node.op == weights.node.op ? 2 : 1)
            << describe(c);
    }
  }
}

// Any window, in one to three dims, over parts of squares and several parts of all positions.
TEST(CpuKernels, GradientsOfWeightsByTiles) {
  if (!cpu::has_matrix_units()) GTEST_SKIP() << "a processor without tiles";
  std::mt19937_64 rng(kSeed + 10);
  std::set<std::string> exercised;
  struct Image {
    int64_t batch, in, out;
    Shape x;
    std::vector<int64_t> kernel, strides, dilations, low, high;
  };
  for (const Image& i :
       {Image{3, 32, 64, {21, 19}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
        Image{2, 70, 33, {13, 40}, {3, 2}, {2, 1}, {1, 3}, {1, 2}, {0, 2}},
        Image{9, 40, 45, {30, 18}, {4, 4}, {3, 1}, {1, 2}, {-1, 4}, {2, -2}},
        Image{4, 100, 36, {100}, {5}, {1}, {2}, {4}, {4}},
        Image{2, 33, 34, {5, 6, 7}, {2, 1, 3}, {1, 2, 1}, {1, 1, 1}, {1, 0, 1}, {0, 0, 1}},
        Image{1, 96, 32, {4, 8}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
        Image{4, 160, 64, {16, 16}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
        Image{8, 96, 40, {32, 32}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
        Image{2, 320, 1400, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}}}) {
    Shape x = {i.batch}, w = {i.out, i.in};
    x.insert(x.end(), i.x.begin(), i.x.end());
    x.push_back(i.in);
    w.insert(w.end(), i.kernel.begin(), i.kernel.end());
    const Attrs shared = {{"strides", i.strides},
                          {"dilations", i.dilations},
                          {"pads_low", i.low},
                          {"channels_last", int64_t{1}}};
    Node forward = make("conv", shared);
    forward.attrs.set("pads_high", i.high);
    for (const char* out : {"f32", "bf16"}) {
      const TensorType in{DType::bf16, x};
      const std::vector<TensorType> operands = {in, {DType::bf16, w}};
      Case c{make("conv_weight_grad", shared), {in, infer_types(forward, operands)[0]}, {}};
      c.node.attrs.set("kernel", i.kernel);
      c.node.attrs.set("out_dtype", std::string(out));
      c.out = infer_types(c.node, c.in);
      exercised.clear();
      EXPECT_GE(check(c, rng, exercised), 1) << describe(c);
      EXPECT_TRUE(exercised.count("conv_weight_grad cpu:amx")) << describe(c);
    }
  }
}

}  // namespace
}  // namespace shardrun
