// Pools that a GPU's kernels are held to the reference with, besides those of the registry.
#pragma once

#include "graph/ops/window.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {

/// The pool whose gradient this is.
inline Case forward_of(const Case& grad) {
  Case c;
  c.node = grad.node;
  c.node.op = "max_pool";
  std::vector<Window> windows = windows_of(grad.node, grad.node.attrs.ints("kernel"));
  const Shape &x = grad.out[0].shape, &y = grad.in[0].shape;
  const size_t lead = x.size() - windows.size() - (channels_last(grad.node) ? 1 : 0);
  for (size_t d = 0; d < windows.size(); ++d)
    windows[d].high = windows[d].high_for(x[lead + d], y[lead + d]);
  Attrs attrs;
  for (const auto& [name, value] : grad.node.attrs.all()) {
    if (name != "size") attrs.set(name, value);
  }
  attrs.set("pads_high", Shape(windows.size()));
  c.node.attrs = with_pads(attrs, windows);
  c.in = {grad.out[0]}, c.out = grad.in;
  return c;
}

/// Random, but maxima where a pool found them: elsewhere they could lie outside of the image.
inline std::vector<Tensor> operands_of(const Case& c, std::mt19937_64& rng) {
  std::vector<Tensor> in = random_operands(c, rng);
  if (c.node.op == "max_pool_grad") {
    const Case pool = forward_of(c);
    in[1] = run_reference(pool.node, random_operands(pool, rng))[1];
  }
  return in;
}

/// Pools of images with channels that no vector divides, uneven pads and 1 to 3 dims; the first of
/// two pooled dims of size 1.
inline std::vector<Case> more_pools(const std::string& op) {
  using Ints = std::vector<int64_t>;
  struct Pool {
    Shape x;
    Ints kernel, strides, low, high;
  };
  std::vector<Case> all;
  for (const Pool& p :
       std::vector<Pool>{{{4, 17, 14, 64}, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
                         {{2, 7, 6, 13}, {3, 2}, {2, 1}, {1, 0}, {1, 1}},
                         {{2, 9, 8, 5}, {2, 3}, {1, 2}, {0, 2}, {1, 1}},
                         {{3, 11, 12}, {4}, {3}, {1}, {2}},
                         {{2, 5, 6, 7, 10}, {3, 2, 3}, {2, 2, 1}, {1, 0, 1}, {1, 0, 0}},
                         {{1, 18, 17, 6}, {16, 17}, {1, 1}, {0, 0}, {0, 0}}}) {
    Case c;
    c.node.op = op.starts_with("max") ? "max_pool" : "sum_pool";
    const Attrs attrs{{"kernel", p.kernel},
                      {"strides", p.strides},
                      {"dilations", Ints(p.kernel.size(), 1)},
                      {"pads_low", p.low},
                      {"channels_last", int64_t{1}}};
    c.node.attrs = attrs;
    c.node.attrs.set("pads_high", p.high);
    c.in = {{DType::f32, p.x}};
    c.out = infer_types(c.node, c.in);
    if (op.ends_with("_grad")) {
      c.node.attrs = attrs;
      c.node.attrs.set("size", Shape(p.x.begin() + 1, p.x.end() - 1));
      c.in = c.out;
    }
    c.node.op = op;
    c.out = infer_types(c.node, c.in);
    all.push_back(c);
    if (auto bf16 = with_dtype(c, DType::bf16)) all.push_back(*bf16);
  }
  return all;
}

/// Of few values, so that maxima are often equal; or with NaN among more of them.
inline Tensor image_of_few(const TensorType& type, bool has_nan, std::mt19937_64& rng) {
  Tensor image(type);
  std::vector<double> values(static_cast<size_t>(image.count()));
  std::uniform_int_distribution<int> few(-2, has_nan ? 10 : 1);
  for (double& v : values) v = few(rng), v = v > 9 ? NAN : v;
  convert(values.data(), DType::f64, image.data(), type.dtype, image.count());
  return image;
}

/// y and which of a max pool of x [N, …, C]: the reference's, where y is NaN an offset of a NaN.
inline void expect_maxima(const Case& c, const Tensor& x, const std::vector<Tensor>& got) {
  const std::vector<Tensor> want = run_reference(c.node, std::vector<Tensor>{x});
  expect_close(got[0], want[0], 0);
  int64_t nan_windows = 0;
  for (int64_t i = 0; i < want[0].count(); ++i) {
    if (std::isnan(want[0].at(i))) {
      ++nan_windows;
    } else {
      ASSERT_EQ(got[1].int_at(i), want[1].int_at(i)) << "element " << i;
    }
  }
  // Where a gradient of ones goes by these offsets.
  Node grad;
  grad.op = "max_pool_grad";
  for (const auto& [name, value] : c.node.attrs.all()) {
    if (name != "pads_high") grad.attrs.set(name, value);
  }
  const Shape& shape = c.in[0].shape;
  grad.attrs.set("size", Shape(shape.begin() + 1, shape.end() - 1));
  Tensor ones({DType::f32, c.out[0].shape});
  for (int64_t i = 0; i < ones.count(); ++i) ones.as<float>()[i] = 1;
  const Tensor counts = run_reference(grad, std::vector<Tensor>{ones, got[1]})[0];
  double all = 0, to_nan = 0;
  for (int64_t i = 0; i < counts.count(); ++i) {
    all += counts.at(i);
    if (std::isnan(x.at(i))) to_nan += counts.at(i);
  }
  EXPECT_EQ(all, static_cast<double>(want[0].count())) << "an offset outside of the image";
  EXPECT_EQ(to_nan, static_cast<double>(nan_windows)) << "an offset of no NaN";
}

/// Those of the op's own, and more pools where it is one: these it must take.
inline std::vector<Case> image_cases(const KernelImpl& impl) {
  std::vector<Case> cases = cases_of(op_def(impl.op));
  if (impl.op.find("_pool") == std::string::npos) return cases;
  for (Case& c : more_pools(impl.op)) {
    EXPECT_EQ(impl.refuses({c.node, c.in, c.out}), std::nullopt) << describe(c);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace shardrun
