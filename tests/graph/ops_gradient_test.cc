// Every op's gradient rule against central finite differences in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <set>

#include "graph/autodiff.h"
#include "graph/ops/families.h"
#include "kernels/reference/interpreter.h"
#include "program/ops/families.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

using test::describe;
using test::in_f64;
using test::random_operands;
using test::sample_node;

constexpr double kStep = 1e-5, kRelative = 1e-5, kAbsolute = 1e-7;

/// Floating operands that by design have no gradient: an attention mask, which is the fourth
/// operand.
bool is_undifferentiated(const OpDef& def, size_t operand) {
  return def.name == "attention" && operand == 3;
}

std::string operand_name(size_t i) { return "x" + std::to_string(i); }

/// loss = sum over results r in `from` and elements i of weight[r][i] * result[r][i].
ValueId weighted_sum(Graph& graph, const std::vector<ValueId>& results,
                     const std::vector<size_t>& from, uint64_t seed) {
  std::mt19937_64 random(seed);
  ValueId loss = kNoValue;
  for (size_t r : from) {
    const TensorType type = graph.type(results[r]);
    Tensor weights({type.dtype, type.shape});
    for (int64_t i = 0; i < weights.count(); ++i) {
      weights.as<double>()[i] = std::uniform_real_distribution(0.5, 1.5)(random);
    }
    const ValueId w = graph.add_constant("w" + std::to_string(r), weights);
    std::vector<int64_t> axes;
    for (size_t d = 0; d < type.shape.size(); ++d) axes.push_back(static_cast<int64_t>(d));
    const ValueId sum = graph.add("reduce_sum", {graph.add("mul", {results[r], w})},
                                  {{"axes", axes}, {"keepdims", int64_t{0}}});
    loss = loss == kNoValue ? sum : graph.add("add", {loss, sum});
  }
  return loss;
}

/// Compares the gradients of one sample. Returns how many derivatives it compared.
int check(const OpDef& def, const OpDef::Sample& sample, const std::vector<size_t>& from,
          uint64_t seed) {
  Graph forward;
  std::vector<ValueId> operands, wrt;
  std::vector<size_t> wrt_index;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    operands.push_back(forward.add_input(operand_name(i), sample.in[i], Role::batch));
    if (is_float(sample.in[i].dtype) && !is_undifferentiated(def, i)) {
      wrt.push_back(operands.back());
      wrt_index.push_back(i);
    }
  }
  const std::vector<ValueId> results = forward.add_node(def.name, operands, sample.attrs);
  const ValueId loss = weighted_sum(forward, results, from, seed + 1);
  Graph whole = forward;
  const std::vector<ValueId> grads = differentiate(whole, loss, wrt);
  check_graph(whole);

  const std::vector<Tensor> in = random_operands(def, sample_node(def, sample), sample, seed);
  NamedTensors feeds;
  for (size_t i = 0; i < in.size(); ++i) feeds[operand_name(i)] = in[i];
  std::vector<ValueId> wanted;
  for (ValueId g : grads) {
    if (g != kNoValue) wanted.push_back(g);
  }
  const std::vector<Tensor> values = evaluate_graph(whole, feeds, wanted);
  const std::vector<ValueId> only_loss{loss};
  int compared = 0;
  size_t next = 0;
  for (size_t k = 0; k < wrt.size(); ++k) {
    const Tensor analytic = grads[k] == kNoValue ? Tensor(sample.in[wrt_index[k]]) : values[next++];
    EXPECT_EQ(analytic.type(), sample.in[wrt_index[k]]) << "operand " << wrt_index[k];
    double* x = in[wrt_index[k]].as<double>();
    for (int64_t i = 0; i < analytic.count(); ++i) {
      const double at = x[i];
      x[i] = at + kStep;
      const double above = evaluate_graph(forward, feeds, only_loss)[0].at(0);
      x[i] = at - kStep;
      const double below = evaluate_graph(forward, feeds, only_loss)[0].at(0);
      x[i] = at;
      const double numeric = (above - below) / (2 * kStep);
      EXPECT_NEAR(analytic.at(i), numeric,
                  kAbsolute + kRelative * std::max(1.0, std::fabs(numeric)))
          << "operand " << wrt_index[k] << " element " << i << " seed " << seed;
      ++compared;
    }
  }
  return compared;
}

TEST(OpsGradient, MatchesFiniteDifferences) {
  int ops = 0, derivatives = 0;
  for (const OpDef* def : all_ops()) {
    if (def->gradient == nullptr) continue;
    int of_this_op = 0;
    for (const OpDef::Sample& original : def->samples) {
      const OpDef::Sample sample = in_f64(original);
      SCOPED_TRACE(describe(*def, sample));
      const std::vector<TensorType> out = infer_types(sample_node(*def, sample), sample.in);
      std::vector<size_t> differentiable;
      bool floating_operand = false;
      for (const TensorType& t : sample.in)
        floating_operand = floating_operand || is_float(t.dtype);
      for (size_t r = 0; r < out.size(); ++r) {
        if (is_float(out[r].dtype)) differentiable.push_back(r);
      }
      if (!floating_operand || differentiable.empty()) continue;
      // A rule that covers the first result only must say so when more is asked of it.
      try {
        of_this_op += check(*def, sample, differentiable, 7);
      } catch (const Error& e) {
        ASSERT_EQ(e.kind(), ErrorKind::unsupported) << e.what();
        ASSERT_GT(differentiable.size(), 1u) << e.what();
        of_this_op += check(*def, sample, {0}, 7);
      }
      if (out.size() > 1 && def->name == "split") {  // some results unused
        of_this_op += check(*def, sample, {out.size() - 1}, 11);
      }
      if (def->name == "lstm") {  // all but the gates
        of_this_op += check(*def, sample, {0, 1}, 13) + check(*def, sample, {1}, 17);
      }
      if (HasFailure()) break;
    }
    EXPECT_GT(of_this_op, 0) << def->name << " has a gradient that no sample tries";
    ++ops;
    derivatives += of_this_op;
  }
  std::cout << ops << " gradient rules, " << derivatives << " derivatives compared\n";
  EXPECT_GT(ops, 60);
}

/// An op may lack a gradient only where there is nothing to differentiate, or where it is itself
/// part of a backward pass or of the update, or only steps have it, and no Graph, or where passes
/// make it behind differentiation (split_losses, split_attention in graph/passes/training.h).
TEST(OpsGradient, OnlyUndifferentiableOpsLackOne) {
  std::set<std::string> updates, of_steps;
  for (const OpDef& def : optimizer_ops()) updates.insert(def.name);
  for (const OpDef& def : program_ops()) of_steps.insert(def.name);
  const std::set<std::string> parts = {"attention_join", "attention_sums", "attention_top",
                                       "cross_entropy_join", "cross_entropy_sums"};
  std::cout << "without gradient:";
  for (const OpDef* def : all_ops()) {
    if (def->gradient != nullptr) continue;
    std::cout << " " << def->name;
    const bool backward = def->name.ends_with("_grad") || def->name.ends_with("/gradient") ||
                          updates.count(def->name) > 0 || of_steps.count(def->name) > 0 ||
                          def->name == "cached_attention" ||  // of inference alone
                          parts.count(def->name) > 0;
    bool differentiable = false;
    for (const OpDef::Sample& sample : def->samples) {
      bool in = false, out = false;
      for (const TensorType& t : sample.in) in = in || is_float(t.dtype);
      for (const TensorType& t : infer_types(sample_node(*def, sample), sample.in)) {
        out = out || is_float(t.dtype);
      }
      differentiable = differentiable || (in && out);
    }
    EXPECT_TRUE(backward || !differentiable) << def->name << " has no gradient";
  }
  std::cout << "\n";
}

TEST(OpsGradient, ProductWithZerosInIt) {
  const OpDef& def = op_def("reduce_prod");
  for (const std::vector<double>& row : {std::vector<double>{2, 0, 3}, {0, 0, 3}, {2, 5, 3}}) {
    Graph graph;
    const ValueId x = graph.add_input("x", {DType::f64, {3}}, Role::batch);
    const ValueId y =
        graph.add(def.name, {x}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
    const std::vector<ValueId> wrt{x};
    const std::vector<ValueId> dx = differentiate(graph, y, wrt);
    const Tensor grad =
        evaluate_graph(graph, {{"x", Tensor::from<double>({3}, row, DType::f64)}}, dx)[0];
    for (size_t i = 0; i < 3; ++i) {
      double others = 1;
      for (size_t j = 0; j < 3; ++j) others *= j == i ? 1 : row[j];
      EXPECT_EQ(grad.at(static_cast<int64_t>(i)), others);
    }
  }
}

/// Equal extremes share dy, as with torch.scatter_reduce: what is written to a place three times,
/// and lies there already, has a quarter each.
TEST(OpsGradient, EqualExtremesThatAreScatteredShareTheGradient) {
  for (const char* reduction : {"max", "min"}) {
    Graph graph;
    const ValueId data = graph.add_input("data", {DType::f64, {3}}, Role::batch);
    const ValueId updates = graph.add_input("updates", {DType::f64, {5}}, Role::batch);
    const ValueId indices = graph.add_input("indices", {DType::i64, {5}}, Role::batch);
    const ValueId y = graph.add("scatter_elements", {data, indices, updates},
                                {{"axis", int64_t{0}}, {"reduction", std::string(reduction)}});
    const ValueId weights = graph.add_input("weights", {DType::f64, {3}}, Role::batch);
    const ValueId sum = graph.add("reduce_sum", {graph.add("mul", {y, weights})},
                                  {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
    const std::vector<ValueId> wrt{data, updates};
    const std::vector<ValueId> grads = differentiate(graph, sum, wrt);
    const double sign = reduction == std::string("max") ? 1 : -1;
    const auto numbers = [](std::vector<double> v) {
      return Tensor::from<double>({static_cast<int64_t>(v.size())}, v, DType::f64);
    };
    const std::vector<Tensor> got =
        evaluate_graph(graph,
                       {{"data", numbers({2 * sign, 0, 7})},
                        {"updates", numbers({2 * sign, 2 * sign, 2 * sign, 3 * sign, 3 * sign})},
                        {"indices", Tensor::vector_i64({0, 0, 0, 1, 1})},
                        {"weights", numbers({8, 4, 1})}},
                       grads);
    const std::vector<double> of_data = {2, 0, 1}, of_updates = {2, 2, 2, 2, 2};
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(got[0].at(i), of_data[static_cast<size_t>(i)]) << i;
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(got[1].at(i), of_updates[static_cast<size_t>(i)]) << i;
  }
}

TEST(OpsGradient, EqualMaximaOfASegmentShareTheGradient) {
  Graph graph;
  const ValueId x = graph.add_input("x", {DType::f64, {5}}, Role::batch);
  const ValueId rows = graph.add_input("rows", {DType::i64, {5}}, Role::batch);
  const ValueId y = graph.add("segment_max", {x, rows}, {{"size", int64_t{2}}});
  const ValueId sum =
      graph.add("reduce_sum", {y}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
  const std::vector<ValueId> wrt{x};
  const std::vector<ValueId> grads = differentiate(graph, sum, wrt);
  const Tensor got = evaluate_graph(graph,
                                    {{"x", Tensor::from<double>({5}, {3, 3, 1, 2, 2}, DType::f64)},
                                     {"rows", Tensor::vector_i64({0, 0, 0, 1, 0})}},
                                    grads)[0];
  const std::vector<double> want = {0.5, 0.5, 0, 1, 0};
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(got.at(i), want[static_cast<size_t>(i)]) << i;
}

}  // namespace
}  // namespace shardrun
