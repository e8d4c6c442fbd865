// Kernels that do what several steps did: the same numbers, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"

namespace shardrun {
namespace {

class Joined : public testing::TestWithParam<DType> {
 protected:
  Tensor normal(const Shape& shape, DType dtype) {
    Tensor out({dtype, shape});
    for (int64_t i = 0; i < out.count(); ++i) {
      const double value = normal_(random_);
      convert(&value, DType::f64, out.as<char>() + i * size_of(dtype), dtype, 1);
    }
    return out;
  }
  Tensor normal(const Shape& shape) { return normal(shape, GetParam()); }

  static std::vector<Tensor> run(const std::string& op, const std::vector<Tensor>& in,
                                 Attrs attrs = {}) {
    Node node;
    node.op = op;
    node.attrs = std::move(attrs);
    std::vector<TensorType> in_types;
    std::vector<TensorView> in_views, out_views;
    for (const Tensor& t : in) {
      in_types.push_back(t.type());
      in_views.push_back({const_cast<void*>(t.data()), t.type()});
    }
    const std::vector<TensorType> out_types = infer_types(node, in_types);
    std::vector<Tensor> out;
    for (const TensorType& type : out_types) {
      out.emplace_back(type);
      out_views.push_back({out.back().data(), type});
    }
    const KernelList* lists[] = {&cpu_kernels()};
    const PreparedKernel kernel = select_kernel(lists, {node, in_types, out_types});
    std::vector<char> workspace(static_cast<size_t>(kernel.workspace_bytes) + 64);
    kernel.run({in_views, out_views, workspace.data()});
    return out;
  }

  static void expect_same(const Tensor& got, const Tensor& want, const char* what) {
    ASSERT_EQ(got.type(), want.type()) << what;
    EXPECT_EQ(std::memcmp(got.data(), want.data(), static_cast<size_t>(byte_size(want.type()))), 0)
        << what;
  }

  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

TEST_P(Joined, UpdatesMakeTheCopy) {
  const Shape shape = {370, 101};
  const Attrs cast = {{"to", std::string("bf16")}};
  const Tensor p = normal(shape, DType::f32), grad = normal(shape), m = normal(shape, DType::f32);
  Tensor v = normal(shape, DType::f32);
  for (int64_t i = 0; i < v.count(); ++i) v.as<float>()[i] *= v.as<float>()[i];
  const Tensor lr = Tensor::from<float>({}, {0.01f}, DType::f32), step = Tensor::scalar_i64(3),
               clip = Tensor::from<float>({}, {0.7f}, DType::f32);
  const auto compare = [&](const std::string& op, const std::vector<Tensor>& in, Attrs attrs) {
    const std::vector<Tensor> want = run(op, in, attrs);
    attrs.set("copy", std::string("bf16"));
    const std::vector<Tensor> got = run(op, in, attrs);
    ASSERT_EQ(got.size(), want.size() + 1);
    for (size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], op.c_str());
    expect_same(got.back(), run("cast", {want[0]}, cast)[0], op.c_str());
  };
  compare("adamw", {p, grad, m, v, lr, step, clip},
          {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}});
  compare("sgd", {p, grad, m, lr, step, clip}, {{"momentum", 0.9}, {"weight_decay", 0.1}});
}

TEST_P(Joined, LossesAndTheirGradientAtOnce) {
  const int64_t tokens = 5, classes = 1300;
  const Tensor logits = normal({tokens, classes}), d = normal({tokens}, DType::f32);
  Tensor labels({DType::i64, {tokens}});
  for (int64_t t = 0; t < tokens; ++t) labels.as<int64_t>()[t] = t == 2 ? -100 : t * 311;
  const std::vector<Tensor> losses = run("cross_entropy", {logits, labels}),
                            got = run("cross_entropy_and_grad", {d, logits, labels});
  expect_same(got[0], losses[0], "losses");
  expect_same(got[1], run("cross_entropy_grad", {d, logits, labels, losses[1]})[0], "gradient");
}

TEST_P(Joined, NormsAddWhatPassesThemBy) {
  const Shape shape = {70, 900}, rows = {70};
  const Attrs attrs = {{"axis", int64_t{1}}};
  const std::vector<Tensor> layer = {normal(shape), normal(shape), normal({900}, DType::f32),
                                     normal(rows, DType::f32), normal(rows, DType::f32)};
  const std::vector<Tensor> rms = {layer[0], layer[1], layer[2], layer[4]};
  const Tensor residual = normal(shape);
  const auto compare = [&](const std::string& op, std::vector<Tensor> in) {
    const std::vector<Tensor> want = run(op, in, attrs);
    in.push_back(residual);
    const std::vector<Tensor> got = run(op, in, attrs);
    expect_same(got[0], run("add", {want[0], residual})[0], op.c_str());
    for (size_t i = 1; i < want.size(); ++i) expect_same(got[i], want[i], op.c_str());
  };
  compare("layer_norm_grad", layer);
  compare("rms_norm_grad", rms);
}

INSTANTIATE_TEST_SUITE_P(Floats, Joined, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace shardrun
