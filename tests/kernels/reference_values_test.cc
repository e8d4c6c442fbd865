// Reference kernels against values worked out by hand, where a formula alone leaves room for doubt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernel.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;

Tensor floats(Shape shape, const Doubles& values) {
  return Tensor::from<double>(std::move(shape), values, DType::f64);
}
Tensor ints(Shape shape, const Ints& values) {
  return Tensor::from<int64_t>(std::move(shape), values, DType::i64);
}

Doubles run(const std::string& op, const std::vector<Tensor>& in, Attrs attrs = {}) {
  Node node;
  node.op = op;
  node.attrs = std::move(attrs);
  const Tensor out = run_reference(node, in)[0];
  Doubles values;
  for (int64_t i = 0; i < out.count(); ++i) values.push_back(out.at(i));
  return values;
}

const int64_t kYes = 1, kNo = 0;

TEST(ReferenceElementwise, IntegersDivideTowardsZeroAndModFollowsTheDivisorUnlessFmod) {
  const Tensor a = ints({4}, {7, -7, 7, -7}), b = ints({4}, {3, 3, -3, -3});
  EXPECT_EQ(run("div", {a, b}), (Doubles{2, -2, -2, 2}));
  EXPECT_EQ(run("mod", {a, b}, {{"fmod", kNo}}), (Doubles{1, 2, -2, -1}));
  EXPECT_EQ(run("mod", {a, b}, {{"fmod", kYes}}), (Doubles{1, -1, 1, -1}));
  EXPECT_EQ(run("div", {a, ints({}, {0})}), (Doubles{0, 0, 0, 0}));
  EXPECT_EQ(run("pow", {ints({2}, {3, -2}), ints({2}, {4, 3})}), (Doubles{81, -8}));
}

TEST(ReferenceElementwise, BigIntegersKeepTheirLastBits) {
  const int64_t big = (int64_t{1} << 60) + 1;
  Node node;
  node.op = "add";
  const std::vector<Tensor> in{ints({1}, {big}), ints({1}, {2})};
  EXPECT_EQ(run_reference(node, in)[0].int_at(0), big + 2);
}

TEST(ReferenceElementwise, RoundGoesToEvenAndNansPropagate) {
  EXPECT_EQ(run("round", {floats({4}, {0.5, 1.5, 2.5, -0.5})}), (Doubles{0, 2, 2, 0}));
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Doubles most = run("max", {floats({2}, {nan, 1}), floats({2}, {1, nan})});
  EXPECT_TRUE(std::isnan(most[0]) && std::isnan(most[1]));
  EXPECT_EQ(run("isinf", {floats({3}, {inf, -inf, nan})}, {{"detect_negative", kNo}}),
            (Doubles{1, 0, 0}));
  EXPECT_TRUE(std::isnan(run("clip", {floats({1}, {nan})}, {{"min", 0.0}, {"max", 1.0}})[0]));
  EXPECT_EQ(run("softplus", {floats({2}, {-1000, 1000})}), (Doubles{0, 1000}));
}

TEST(ReferenceElementwise, BroadcastsOnBothSides) {
  EXPECT_EQ(run("sub", {floats({2, 1}, {10, 20}), floats({3}, {1, 2, 3})}),
            (Doubles{9, 8, 7, 19, 18, 17}));
  const Tensor cond = Tensor::from<uint8_t>({2, 1}, {1, 0}, DType::boolean);
  EXPECT_EQ(run("where", {cond, floats({2}, {1, 2}), floats({}, {9})}), (Doubles{1, 2, 9, 9}));
}

TEST(ReferenceReduce, EmptyReductionsGiveTheIdentity) {
  const Attrs over{{"axes", Ints{1}}, {"keepdims", kNo}};
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(run("reduce_sum", {floats({2, 0}, {})}, over), (Doubles{0, 0}));
  EXPECT_EQ(run("reduce_prod", {floats({2, 0}, {})}, over), (Doubles{1, 1}));
  EXPECT_EQ(run("reduce_max", {floats({2, 0}, {})}, over), (Doubles{-inf, -inf}));
  EXPECT_EQ(run("reduce_min", {floats({2, 0}, {})}, over), (Doubles{inf, inf}));
}

TEST(ReferenceReduce, CumsumAndArgmax) {
  const Tensor x = floats({4}, {1, 2, 3, 4});
  auto cumsum = [&](int64_t exclusive, int64_t reverse) {
    return run("cumsum", {x},
               {{"axis", int64_t{0}}, {"exclusive", exclusive}, {"reverse", reverse}});
  };
  EXPECT_EQ(cumsum(0, 0), (Doubles{1, 3, 6, 10}));
  EXPECT_EQ(cumsum(1, 0), (Doubles{0, 1, 3, 6}));
  EXPECT_EQ(cumsum(0, 1), (Doubles{10, 9, 7, 4}));
  EXPECT_EQ(cumsum(1, 1), (Doubles{9, 7, 4, 0}));
  auto argmax = [&](int64_t last) {
    return run("argmax", {floats({5}, {1, 4, 2, 4, 0})},
               {{"axis", int64_t{0}}, {"keepdims", kYes}, {"select_last_index", last}});
  };
  EXPECT_EQ(argmax(0), (Doubles{1}));
  EXPECT_EQ(argmax(1), (Doubles{3}));
}

TEST(ReferenceMovement, PadModes) {
  const Tensor x = floats({3}, {1, 2, 3});
  auto pad = [&](const std::string& mode) {
    return run("pad", {x},
               {{"before", Ints{2}}, {"after", Ints{2}}, {"mode", mode}, {"value", 9.0}});
  };
  EXPECT_EQ(pad("constant"), (Doubles{9, 9, 1, 2, 3, 9, 9}));
  EXPECT_EQ(pad("reflect"), (Doubles{3, 2, 1, 2, 3, 2, 1}));
  EXPECT_EQ(pad("edge"), (Doubles{1, 1, 1, 2, 3, 3, 3}));
}

TEST(ReferenceMovement, SliceTransposeTileTrilu) {
  const Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(
      run("slice", {x}, {{"starts", Ints{1, 2}}, {"ends", Ints{-1, -1}}, {"steps", Ints{-1, -2}}}),
      (Doubles{6, 4, 3, 1}));
  EXPECT_EQ(run("transpose", {x}, {{"perm", Ints{1, 0}}}), (Doubles{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(run("tile", {floats({2}, {1, 2})}, {{"repeats", Ints{2}}}), (Doubles{1, 2, 1, 2}));
  EXPECT_EQ(run("trilu", {x}, {{"upper", kYes}, {"k", int64_t{1}}}), (Doubles{0, 2, 3, 0, 0, 6}));
  EXPECT_EQ(run("trilu", {x}, {{"upper", kNo}, {"k", int64_t{0}}}), (Doubles{1, 0, 0, 4, 5, 0}));
  EXPECT_EQ(run("concat", {x, floats({2, 1}, {7, 8})}, {{"axis", int64_t{1}}}),
            (Doubles{1, 2, 3, 7, 4, 5, 6, 8}));
}

TEST(ReferenceIndexing, OutsideReadsZerosAndWritesNowhere) {
  const Tensor rows = floats({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(
      run("gather", {rows, ints({3}, {4, 3, 5})}, {{"axis", int64_t{0}}, {"offset", int64_t{3}}}),
      (Doubles{3, 4, 1, 2, 0, 0}));
  EXPECT_EQ(run("gather_grad", {floats({3}, {1, 2, 4}), ints({3}, {4, 4, 1})},
                {{"axis", int64_t{0}}, {"size", int64_t{2}}, {"offset", int64_t{3}}}),
            (Doubles{0, 3}));
}

/// Rows 3 and 4 of a table of four: segment 3 has two, 4 one, 5 none; number 9 is outside.
TEST(ReferenceSegment, SoftmaxOfEachAndZerosOutside) {
  const Tensor x = floats({4}, {1, 7, 1, 5}), numbers = ints({4}, {3, 4, 3, 9});
  const Attrs attrs = {{"size", int64_t{3}}, {"offset", int64_t{3}}};
  EXPECT_EQ(run("segment_softmax", {x, numbers}, attrs), (Doubles{0.5, 1, 0.5, 0}));
  EXPECT_EQ(run("segment_max", {x, numbers}, attrs), (Doubles{1, 7, -INFINITY}));
  const Tensor top = floats({3}, {1, 7, 0}), total = floats({3}, {4, 2, 1});
  const Attrs offset = {{"offset", int64_t{3}}};
  EXPECT_EQ(run("segment_exp_sum", {x, top, numbers}, offset), (Doubles{2, 1, 0}));
  EXPECT_EQ(run("segment_softmax", {x, top, total, ints({4}, {0, 1, 0, 9})}, {}),
            (Doubles{0.25, 0.5, 0.25, 0}));
  const Tensor dy = floats({4}, {2, 3, 4, 5}), y = floats({4}, {0.5, 1, 0.5, 8});
  EXPECT_EQ(run("segment_softmax_reduce_grad", {dy, y, numbers}, attrs), (Doubles{3, 3, 0}));
  EXPECT_EQ(run("segment_softmax_grad", {dy, y, numbers}, attrs), (Doubles{-0.5, 0, 0.5, 0}));
}

TEST(ReferenceIndexing, GroupsRowsByTheirPlace) {
  EXPECT_EQ(
      run("group_rows", {ints({4}, {5, 3, 9, 5})}, {{"size", int64_t{3}}, {"offset", int64_t{3}}}),
      (Doubles{0, 1, 1, 3, 4, /* order */ 1, 0, 3, 2}));
}

// The examples of ONNX's own documentation of these operators.
TEST(ReferenceIndexing, OnnxExamples) {
  EXPECT_EQ(run("gather_elements", {floats({2, 2}, {1, 2, 3, 4}), ints({2, 2}, {0, 0, 1, 0})},
                {{"axis", int64_t{1}}}),
            (Doubles{1, 1, 4, 3}));
  EXPECT_EQ(run("gather_nd", {floats({2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}), ints({2, 1}, {1, 0})},
                {{"batch_dims", int64_t{1}}}),
            (Doubles{2, 3, 4, 5}));
  EXPECT_EQ(run("scatter_elements",
                {floats({1, 5}, {1, 2, 3, 4, 5}), ints({1, 2}, {1, 1}), floats({1, 2}, {1.5, 2})},
                {{"axis", int64_t{1}}, {"reduction", std::string("add")}}),
            (Doubles{1, 5.5, 3, 4, 5}));
  EXPECT_EQ(run("scatter_nd",
                {floats({8}, {1, 2, 3, 4, 5, 6, 7, 8}), ints({4, 1}, {4, 3, 1, 7}),
                 floats({4}, {9, 10, 11, 12})},
                {{"reduction", std::string("none")}}),
            (Doubles{1, 11, 3, 10, 9, 6, 7, 12}));
}

/// Lines of several images are made at once, as many as stay in cache: of 10 images of 32 x 32 with
/// kernels of 3 x 3 seven, and then the other three. Each image alone gives the same.
TEST(ReferenceConvolution, ImagesDoNotDependOnEachOther) {
  const int64_t images = 10, side = 32, channels = 2;
  const auto fill = [](Shape shape) {
    Tensor t({DType::f64, std::move(shape)});
    for (int64_t i = 0; i < t.count(); ++i)
      t.as<double>()[i] = std::sin(static_cast<double>(i * i % 1009));
    return t;
  };
  for (const int64_t stride : {1, 2}) {
    const int64_t out = stride == 1 ? side : side / 2;
    const Tensor x = fill({images, channels, side, side}), dy = fill({images, 3, out, out}),
                 w = fill({3, channels, 3, 3});
    const Attrs shared{
        {"strides", Ints{stride, stride}}, {"dilations", Ints{1, 1}}, {"pads_low", Ints{1, 1}}};
    Attrs forward = shared, data = shared, weight = shared;
    forward.set("pads_high", Ints{1, 1});
    data.set("size", Ints{side, side});
    weight.set("kernel", Ints{3, 3});
    const auto image = [&](const Tensor& t, int64_t m) {
      Shape one = t.shape();
      one[0] = 1;
      Tensor part({DType::f64, one});
      std::copy_n(t.as<double>() + m * part.count(), part.count(), part.as<double>());
      return part;
    };
    const Doubles y = run("conv", {x, w}, forward), dx = run("conv_data_grad", {dy, w}, data),
                  dw = run("conv_weight_grad", {x, dy}, weight);
    Doubles y_each, dx_each, dw_sum(dw.size());
    for (int64_t m = 0; m < images; ++m) {
      const Doubles a = run("conv", {image(x, m), w}, forward),
                    b = run("conv_data_grad", {image(dy, m), w}, data),
                    c = run("conv_weight_grad", {image(x, m), image(dy, m)}, weight);
      y_each.insert(y_each.end(), a.begin(), a.end());
      dx_each.insert(dx_each.end(), b.begin(), b.end());
      for (size_t i = 0; i < c.size(); ++i) dw_sum[i] += c[i];
    }
    ASSERT_EQ(y.size(), y_each.size());
    ASSERT_EQ(dx.size(), dx_each.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], y_each[i], 1e-12) << i;
    for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], dx_each[i], 1e-12) << i;
    for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(dw[i], dw_sum[i], 1e-10) << i;
  }
}

}  // namespace
}  // namespace shardrun
