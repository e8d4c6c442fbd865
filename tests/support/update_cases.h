// What an update does with numbers that are not finite: the same in every kernel.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/kernel_cases.h"

namespace shardrun {

/// `list` runs an update of 64 elements; the first few have gradients that are not finite, or large
/// ones.
inline void expect_nothing_not_finite_gets_in(const KernelList& list, const std::string& op) {
  SCOPED_TRACE(op);
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = NAN;
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr int64_t kCount = 64;
  const bool adam = op == "adamw";
  Node node{.op = op, .name = "node", .attrs = {}, .inputs = {}, .outputs = {}};
  node.attrs = adam ? Attrs{{"beta1", 0.9},
                            {"beta2", 0.999},
                            {"eps", 1e-8},
                            {"weight_decay", 0.1},
                            {"decoupled", int64_t{1}}}
                    : Attrs{{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", int64_t{0}}};
  const TensorType t{DType::f32, {kCount}}, s{DType::f32, {}}, n{DType::i64, {}};
  const size_t state = adam ? 3 : 2;  // parameter and moments
  const auto update = [&](float lr, float clip, const std::vector<float>& first) {
    std::vector<Tensor> in;
    for (size_t i = 0; i < state + 1; ++i) {
      std::vector<float> values(kCount, i == 0 ? 0.5f : i == 1 ? 1.0f : 0.25f);
      if (i == 1) std::copy(first.begin(), first.end(), values.begin());
      in.push_back(Tensor::from<float>({kCount}, values, DType::f32));
    }
    in.push_back(Tensor::from<float>({}, {lr}, DType::f32));
    in.push_back(Tensor::scalar_i64(3));
    in.push_back(Tensor::from<float>({}, {clip}, DType::f32));
    Case c;
    c.node = node;
    for (const Tensor& tensor : in) c.in.push_back(tensor.type());
    c.out.assign(state, t);
    for (const KernelImpl& impl : list) {
      if (impl.op == op) return run_impl(impl, c, in);
    }
    ADD_FAILURE() << "no kernel";
    return std::vector<Tensor>();
  };
  const auto kept = [&](const std::vector<Tensor>& out, int64_t i) {
    return out[0].at(i) == 0.5 && out[1].at(i) == 0.25 && out[state - 1].at(i) == 0.25;
  };
  const std::vector<Tensor> usual = update(0.1f, 1, {});
  ASSERT_FALSE(kept(usual, 0));

  const std::vector<Tensor> some = update(0.1f, 1, {kNan, kInf, -kInf, 1, 1e30f, -1e30f});
  for (int64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(kept(some, i), i < 3) << "element " << i;
    for (const Tensor& result : some) {
      EXPECT_TRUE(std::isfinite(result.at(i))) << "element " << i;
      if (i > 5 || i == 3) {
        EXPECT_EQ(result.at(i), usual[static_cast<size_t>(&result - some.data())].at(i));
      }
    }
  }
  for (const auto& [lr, clip] : std::vector<std::pair<float, float>>{
           {0.1f, kNan}, {0.1f, kInf}, {kNan, 1.0f}, {kInf, 1.0f}}) {
    const std::vector<Tensor> none = update(lr, clip, {kNan, 1e30f});
    for (int64_t i = 0; i < kCount; ++i)
      EXPECT_TRUE(kept(none, i)) << "lr " << lr << ", clip " << clip << ", element " << i;
  }
  // What overflows is seen in the next step's loss.
  const std::vector<Tensor> far = update(3e38f, 1, {10, -10});
  for (int64_t i = 0; i < kCount; ++i) EXPECT_TRUE(std::isfinite(far[0].at(i))) << i;
  if (!adam) {
    EXPECT_EQ(far[0].at(0), -kMost);
    EXPECT_EQ(far[0].at(1), kMost);
  }
}

}  // namespace shardrun
