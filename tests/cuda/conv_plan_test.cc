// What a convolution hands to cuDNN, done by plain loops in cuDNN's terms, against the reference.
#include "kernels/cuda/cudnn/conv_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "tests/cuda/host/boxes_on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

using cuda::BoxLoops;
using cuda::ConvPlan;
using cuda::CudnnConvolution;
using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) {
  Numbers values(static_cast<size_t>(t.count()));
  for (int64_t i = 0; i < t.count(); ++i) values[static_cast<size_t>(i)] = t.at(i);
  return values;
}

/// `size`: of the result, if it has another.
Numbers moved(const Numbers& from, const std::optional<BoxLoops>& loops, int64_t size = 0) {
  if (!loops) return from;
  Numbers to(size > 0 ? static_cast<size_t>(size) : from.size());
  cuda::copy_box_on(cuda::BoxesOnHost(), from.data(), to.data(), *loops, sizeof(double));
  return to;
}

/// Position `i` of a row-major walk over `dims`, as an index and where it lies by `strides`.
Shape index_of(int64_t i, const Shape& dims) {
  Shape index(dims.size());
  for (size_t d = dims.size(); d-- > 0;) index[d] = i % dims[d], i /= dims[d];
  return index;
}
size_t lies(const Shape& index, const Shape& strides) {
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
  return static_cast<size_t>(at);
}

/// Calls f(x, w, y) with the places of every product.
template <class F>
void each_product(const CudnnConvolution& c, F&& f) {
  const int64_t groups = c.x[1] / c.w[1], per_group = c.y[1] / groups;
  for (int64_t i = 0; i < element_count(c.y); ++i) {
    const Shape y = index_of(i, c.y);
    for (int64_t j = 0; j < element_count(c.w) / c.w[0]; ++j) {
      Shape w = index_of(j, Shape(c.w.begin() + 1, c.w.end()));
      w.insert(w.begin(), y[1]);
      Shape x = {y[0], y[1] / per_group * c.w[1] + w[1]};
      bool inside = true;
      for (size_t d = 0; d < c.low.size(); ++d) {
        x.push_back(y[d + 2] * c.strides[d] + w[d + 2] * c.dilations[d] - c.low[d]);
        inside = inside && x.back() >= 0 && x.back() < c.x[d + 2];
      }
      if (inside) f(lies(x, c.x_strides), lies(w, c.w_strides), lies(y, c.y_strides));
    }
  }
}

/// cuDNN's own rule for sizes, and what it refuses; and the low padding on both sides gives the
/// same windows, whatever high is.
void expect_valid(const CudnnConvolution& c) {
  ASSERT_GE(c.low.size(), 2u);
  for (size_t d = 0; d < c.low.size(); ++d) {
    EXPECT_GE(c.low[d], 0);
    EXPECT_GE(c.high[d], 0);
    const int64_t span = (c.w[d + 2] - 1) * c.dilations[d] + 1;
    EXPECT_EQ((c.x[d + 2] + c.low[d] + c.high[d] - span) / c.strides[d] + 1, c.y[d + 2]);
    EXPECT_EQ((c.x[d + 2] + 2 * c.low[d] - span) / c.strides[d] + 1, c.y[d + 2]);
  }
  EXPECT_LE(c.workspace_bytes(), 256 << 20);
}

/// Nullopt where the call is not planned.
std::optional<ConvPlan> check(const Case& c, std::mt19937_64& rng, std::string* why,
                              int64_t most_elements = cuda::kMostCudnnElements) {
  SCOPED_TRACE(describe(c));
  const std::optional<ConvPlan> plan =
      cuda::plan_conv({c.node, c.in, c.out}, false, why, most_elements);
  if (!plan) return plan;
  const std::vector<Tensor> in = random_operands(c, rng);
  const Tensor want = run_reference(c.node, in)[0];
  Tensor got(c.out[0]);
  if (!plan->zero) {
    expect_valid(plan->convolution);
    const bool weights = plan->convolution.pass == CudnnConvolution::Pass::weights,
               forward = plan->convolution.pass == CudnnConvolution::Pass::forward;
    const Numbers first = numbers(in[0]),
                  second = weights ? numbers(in[1]) : moved(numbers(in[1]), plan->move_weights);
    Numbers out(static_cast<size_t>(want.count()));
    const auto behind = [](const Numbers& all, int64_t at) {
      return Numbers(all.begin() + static_cast<std::ptrdiff_t>(at), all.end());
    };
    const int64_t copied = plan->copy_image ? element_count(plan->convolution.x) : 0;
    EXPECT_GE(plan->image_bytes, copied * size_of(c.in[0].dtype));
    for (int64_t part = 0; part < plan->parts; ++part) {
      const auto y_offset = static_cast<size_t>(part * plan->part_y);
      // Of x: a copy, or what is behind the part's beginning.
      const Numbers x = forward || weights
                            ? moved(behind(first, part * plan->part_x), plan->copy_image, copied)
                            : Numbers();
      Numbers dx(forward || weights ? 0 : copied > 0 ? copied : want.count() - part * plan->part_x);
      each_product(plan->convolution, [&](size_t at_x, size_t w, size_t y) {
        y += y_offset;
        if (forward) {
          out[y] += x[at_x] * second[w];
        } else if (weights) {
          out[w] += x[at_x] * second[y];
        } else {
          dx[at_x] += first[y] * second[w];
        }
      });
      if (dx.empty()) continue;
      dx = moved(dx, plan->copy_image, want.count() - part * plan->part_x);
      const auto at = static_cast<size_t>(part * plan->part_x);
      for (size_t i = 0; i < dx.size(); ++i) out[at + i] += dx[i];
    }
    if (weights) out = moved(out, plan->move_weights);
    convert(out.data(), DType::f64, got.data(), c.out[0].dtype, want.count());
  }
  expect_close(got, want, 1e-6);
  return plan;
}

TEST(ConvPlan, ConvolvesAsTheReferenceDoes) {
  std::mt19937_64 rng(9);
  int planned = 0;
  for (const char* op : {"conv", "conv_data_grad", "conv_weight_grad"}) {
    for (const Case& c : cases_of(op_def(op))) {
      if (node_flops(c.node, c.in, c.out) > 3e5) continue;
      std::string why;
      EXPECT_TRUE(check(c, rng, &why)) << why << " " << describe(c);
      ++planned;
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(planned, 50);
}

using Ints = std::vector<int64_t>;

/// A convolution of x [batch, 11, 7, 4] and both its gradients.
std::array<Case, 3> with_gradients(int64_t batch, const Ints& low, const Ints& high) {
  const TensorType x{DType::f32, {batch, 11, 7, 4}}, w{DType::f32, {8, 4, 3, 3}};
  Case conv;
  conv.node.op = "conv", conv.node.name = "node";
  conv.node.attrs = {{"strides", Ints{2, 1}},
                     {"dilations", Ints{1, 1}},
                     {"pads_low", low},
                     {"pads_high", high},
                     {"channels_last", int64_t{1}}};
  conv.in = {x, w};
  conv.out = infer_types(conv.node, conv.in);
  Case data = conv, weights = conv;
  data.node.op = "conv_data_grad";
  data.node.attrs.set("size", Ints{11, 7});
  data.in = {conv.out[0], w}, data.out = {x};
  weights.node.op = "conv_weight_grad";
  weights.node.attrs.set("kernel", Ints{3, 3});
  weights.in = {x, conv.out[0]}, weights.out = {w};
  return {conv, data, weights};
}

/// Windows that lie as with one padding on both sides read the image itself; of others, and where
/// rows are cut off, a copy with zeros around it. A gradient of the image is zero where none reads.
TEST(ConvPlan, CopiesTheImageWhereOnePaddingDoesNotDo) {
  std::mt19937_64 rng(10);
  struct Pads {
    Ints low, high;
    bool copied, zeros, cut;
  };
  // Of 11 rows by strides of 2 and 7 columns by strides of 1, in windows of 3.
  for (const Pads& pads :
       {Pads{{1, 1}, {1, 1}, false, false, false}, Pads{{1, 1}, {0, 1}, true, true, true},
        Pads{{0, 1}, {1, 1}, false, false, false}, Pads{{1, 0}, {1, 1}, true, true, false},
        Pads{{1, 2}, {1, 0}, true, true, false}, Pads{{0, 0}, {2, 2}, true, true, false},
        Pads{{-1, 1}, {-3, 1}, true, false, true}, Pads{{-1, 1}, {2, 1}, true, true, true}}) {
    for (const Case& c : with_gradients(2, pads.low, pads.high)) {
      std::string why;
      const auto plan = check(c, rng, &why);
      ASSERT_TRUE(plan.has_value()) << why;
      SCOPED_TRACE(describe(c));
      const bool data = c.node.op == "conv_data_grad";
      EXPECT_EQ(plan->copy_image.has_value(), pads.copied);
      EXPECT_EQ(plan->clears_copy, pads.zeros && !data);
      EXPECT_EQ(plan->clears_image, pads.cut && data);
    }
  }
}

/// Some images at a time, where all have more elements than cuDNN counts; weights' gradients would
/// be sums of parts.
TEST(ConvPlan, CutsTheBatchOfLargeTensors) {
  std::mt19937_64 rng(11);
  const int64_t image = 11 * 7 * 4;  // of x, more than one of y
  const std::array<Case, 3> cases = with_gradients(6, {1, 1}, {0, 1});
  for (const auto& [most, parts] : std::map<int64_t, int64_t>{
           {6 * image, 1}, {6 * image - 1, 2}, {3 * image - 1, 3}, {2 * image, 3}, {image, 6}}) {
    for (const Case& c : cases) {
      std::string why;
      const auto plan = check(c, rng, &why, most);
      if (parts > 1 && c.node.op == "conv_weight_grad") {
        EXPECT_FALSE(plan);
        EXPECT_EQ(why, str("has tensors of ", 6 * image, " elements, where cuDNN counts ", most,
                           ", and adds no gradients of parts"));
        continue;
      }
      ASSERT_TRUE(plan) << why;
      EXPECT_EQ(plan->parts, parts) << most;
      EXPECT_EQ(plan->convolution.x[0], 6 / parts);
    }
  }
  for (const Case& c : cases) {
    std::string why;
    EXPECT_FALSE(check(c, rng, &why, image - 1)) << "one image is too large";
  }
}

/// Four images of 2^30 elements of bf16.
TEST(ConvPlan, CutsTheBatchAt2To31) {
  Case c;
  c.node.op = "conv", c.node.name = "node";
  c.node.attrs = {{"strides", Ints{1, 1}},
                  {"dilations", Ints{1, 1}},
                  {"pads_low", Ints{0, 0}},
                  {"pads_high", Ints{0, 0}},
                  {"channels_last", int64_t{1}}};
  c.in = {{DType::bf16, {4, 4096, 4096, 64}}, {DType::bf16, {8, 64, 1, 1}}};
  c.out = infer_types(c.node, c.in);
  std::string why;
  const auto plan = cuda::plan_conv({c.node, c.in, c.out}, false, &why);
  ASSERT_TRUE(plan) << why;
  EXPECT_EQ(plan->parts, 4);
  EXPECT_EQ(plan->part_x, int64_t{1} << 30);
  EXPECT_EQ(plan->part_y, int64_t{1} << 27);
}

}  // namespace
}  // namespace shardrun
