// Products and convolutions that read weights in the kernel's layout, against the same that read
// them as they lie, and updates that write that layout.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/tensor.h"
#include "graph/op_def.h"
#include "graph/ops/optimizer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/processor.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

const std::vector<const KernelList*>& lists() {
  static const std::vector<const KernelList*> all = {&cpu_kernels()};
  return all;
}

Tensor random(const TensorType& type, std::mt19937_64& rng) {
  std::normal_distribution<double> normal;
  Tensor wide(TensorType{DType::f64, type.shape}), out(type);
  for (int64_t i = 0; i < wide.count(); ++i) wide.as<double>()[i] = 0.1 * normal(rng);
  convert(wide.data(), DType::f64, out.data(), type.dtype, wide.count());
  return out;
}

std::vector<double> numbers(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.count()));
  convert(t.data(), t.type().dtype, out.data(), DType::f64, t.count());
  return out;
}

Tensor run(const Node& node, const std::vector<Tensor>& in, std::string* impl = nullptr) {
  std::vector<TensorType> types;
  std::vector<TensorView> views;
  for (const Tensor& t : in) types.push_back(t.type()), views.push_back(t.view());
  const std::vector<TensorType> made = infer_types(node, types);
  const PreparedKernel kernel = select_kernel(lists(), {node, types, made});
  if (impl != nullptr) *impl = kernel.impl;
  Tensor out(made[0]), work(TensorType{DType::u8, {kernel.workspace_bytes + 64}});
  const TensorView result = out.view();
  const auto at = (reinterpret_cast<uintptr_t>(work.data()) + 63) / 64 * 64;
  kernel.run({views, std::span(&result, 1), reinterpret_cast<void*>(at), nullptr});
  return out;
}

struct Case {
  const char* name;
  Node node;
  Shape x, w;
  const char* layout;
};

Node product(const std::string& equation) {
  Node node;
  node.op = "matmul";
  node.attrs.set("equation", equation);
  return node;
}

/// A kernel of 1 with its channels last.
Node convolution(const std::string& op) {
  Node node;
  node.op = op;
  node.attrs = {{"strides", Ints{1, 1}},
                {"dilations", Ints{1, 1}},
                {"pads_low", Ints{0, 0}},
                {"channels_last", int64_t{1}}};
  node.attrs.set(op == "conv" ? "pads_high" : "size", op == "conv" ? Ints{0, 0} : Ints{5, 7});
  return node;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"as_they_lie", product("bsk,kn->bsn"), {4, 20, 96}, {96, 192}, "BA16a64b2a"},
      {"turned", product("mn,kn->mk"), {80, 192}, {96, 192}, "AB16b64a2b"},
      {"uneven", product("mk,kn->mn"), {70, 90}, {90, 143}, "BA16a64b2a"},
      {"uneven_turned", product("mn,kn->mk"), {70, 90}, {143, 90}, "AB16b64a2b"},
      {"conv", convolution("conv"), {2, 5, 7, 128}, {192, 128, 1, 1}, "ABcd16b64a2b"},
      {"data_grad",
       convolution("conv_data_grad"),
       {2, 5, 7, 192},
       {192, 128, 1, 1},
       "BAcd16a64b2a"},
  };
  return all;
}

class PackedWeights : public testing::TestWithParam<size_t> {};

/// One product may add in another order than the other: to the rounding of the result.
TEST_P(PackedWeights, GiveTheSameResult) {
  if (!cpu::multiplies_bf16())
    GTEST_SKIP() << "bf16 is computed in f32: its weights stay as they are";
  const Case& c = cases()[GetParam()];
  std::mt19937_64 rng(GetParam());
  const Tensor x = random({DType::bf16, c.x}, rng), w = random({DType::bf16, c.w}, rng);
  for (const bool posted : {false, true}) {
    Node node = c.node;
    std::vector<Tensor> in = {x, w};
    node.inputs.resize(2);
    if (posted) {
      Node bias;
      bias.op = "add";
      bias.inputs.resize(2);
      add_post_op(node, bias, 0);
      in.push_back(random(
          {DType::bf16, {infer_types(c.node, std::vector{x.type(), w.type()})[0].shape.back()}},
          rng));
    }
    std::vector<TensorType> types;
    for (const Tensor& t : in) types.push_back(t.type());
    const std::vector<TensorType> out = infer_types(node, types);
    const auto layout = packed_weights({node, types, out});
    if (cpu::has_matrix_units()) {  // which want other layouts, of which not all are ours
      if (!layout) GTEST_SKIP() << "no layout of weights for matrix units";
    } else {
      ASSERT_TRUE(layout) << c.name << (posted ? " with a bias" : "");
      EXPECT_EQ(layout->to_string(), c.layout);
    }
    Node pack;
    pack.op = "pack_weights";
    pack.attrs.set("layout", layout->to_string());
    const Tensor blocks = run(pack, {w});

    std::string impl;
    const std::vector<double> want = numbers(run(node, in));
    node.attrs.set("rearranged", int64_t{1});
    in.push_back(blocks);
    in[1] = Tensor(w.type());  // it is not read
    const std::vector<double> got = numbers(run(node, in, &impl));
    const bool tiles = node.op.starts_with("matmul") && cpu::has_matrix_units();
    EXPECT_EQ(impl, tiles ? "cpu:amx" : "cpu:onednn");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) / 128 + 1e-4) << c.name << " at " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedWeights, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) { return cases()[info.param].name; });

}  // namespace
}  // namespace shardrun
