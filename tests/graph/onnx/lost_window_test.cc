// torch.hamming_window() as the optimiser of PyTorch's newer exporter leaves it: computed ahead, by
// the numbers of the operator HammingWindow instead of PyTorch's.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::ModelBuilder;

constexpr double kOperators = 25.0 / 46, kPyTorchs = 0.54;

std::vector<float> hamming(double alpha, int size, int period) {
  std::vector<float> out;
  for (int i = 0; i < size; ++i) {
    const double angle = 2 * std::numbers::pi * i / period;
    out.push_back(static_cast<float>(alpha - (1 - alpha) * std::cos(angle)));
  }
  return out;
}

/// y = x * w, where the call of the product says that its argument was `argument`, and w was
/// computed from `sources`.
ModelBuilder product(const std::vector<int64_t>& dims, const std::vector<float>& w,
                     const std::string& name, const std::string& argument,
                     const std::string& sources = "") {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {1});
  b.floats(name, dims, w);
  test::add_metadata(&b.node("Mul", {"x", name}, {"y"}), "pkg.torch.onnx.fx_node",
                     "%mul : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args "
                     "= (%x, %" +
                         argument + "), kwargs = {})");
  b.output("y");
  if (!sources.empty()) {
    auto* info = b.graph().add_value_info();
    ModelBuilder::set_info(info, name, dims, test::kFloat);
    test::add_metadata(info, "pkg.onnxscript.optimizer.folded_from", sources);
  }
  test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                     "\n# inputs\nb_hamming_window_2: BUFFER target='hamming_window_2' "
                     "persistent=True\nx: USER_INPUT\n\n# outputs\nmul: USER_OUTPUT\n");
  return b;
}

class LostWindow : public test::ImportTest {
 protected:
  void expect(const ModelBuilder& b, const std::vector<float>& want) {
    const Tensor y = evaluate_graph(import(b), {{"x", floats({1}, {1})}})[0];
    ASSERT_EQ(y.count(), static_cast<int64_t>(want.size()));
    for (int64_t i = 0; i < y.count(); ++i)
      EXPECT_NEAR(y.at(i), want[static_cast<size_t>(i)], 3e-7) << i;
  }
};

TEST_F(LostWindow, TakesPyTorchsNumbers) {
  const std::vector<float> window = hamming(kOperators, 9, 9), want = hamming(kPyTorchs, 9, 9);
  expect(product({9}, window, "hamming_window", "hamming_window", "['val_0']"), want);
  EXPECT_TRUE(
      noted("applied as PyTorch was called, though the exporter left it out: alpha=0.54 of "
            "'hamming_window'"));
  expect(product({1, 9, 1}, window, "unsqueeze", "unsqueeze", "['hamming_window_1', 'val_0']"),
         want);
  expect(product({8}, hamming(kOperators, 8, 7), "val_3", "hamming_window"),
         hamming(kPyTorchs, 8, 7));
}

TEST_F(LostWindow, BetweenZerosAndRepeated) {
  const auto padded = [](double alpha) {
    std::vector<float> out = {0};
    for (float w : hamming(alpha, 6, 6)) out.push_back(w);
    out.insert(out.end(), {0, 0});
    out.insert(out.end(), out.begin(), out.begin() + 9);
    return out;
  };
  expect(product({2, 9}, padded(kOperators), "expand", "expand", "['hamming_window', 'pad']"),
         padded(kPyTorchs));
}

TEST_F(LostWindow, WhatWasComputedFromItIsRefused) {
  std::vector<float> halves = hamming(kOperators, 9, 9);
  for (float& w : halves) w /= 2;
  const std::string text = refusal(product({9}, halves, "div", "div", "['hamming_window']"));
  EXPECT_NE(text.find("'div' was computed from 'hamming_window', a Hamming window"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("optimize=False"), std::string::npos) << text;
}

/// A formula of the module's own, a buffer, and what was computed from one.
TEST_F(LostWindow, OthersStayAsTheyAre) {
  const std::vector<float> window = hamming(kOperators, 9, 9);
  expect(product({9}, window, "sub", "sub", "['arange', 'cos', 'mul']"), window);
  expect(product({9}, window, "hamming_window_2", "b_hamming_window_2"), window);
  expect(product({9}, window, "hamming_window_2", "b_hamming_window_2, %hamming_window"), window);
  expect(product({9}, window, "mul_1", "mul_1", "['hamming_window_2']"), window);
  EXPECT_TRUE(report.restored.empty());
}

}  // namespace
}  // namespace shardrun
