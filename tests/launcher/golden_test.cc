// PyTorch parity: four models, each exported by both exporters, against what PyTorch computed for
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "graph/autodiff.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "planner/planner.h"
#include "tests/support/golden_model.h"

namespace shardrun {
namespace {

using test::GoldenModel, test::kGoldenRate, test::kGoldenSteps, test::relative_norm;

constexpr double kTolerance = 1e-4;

struct Case {
  const char* model;
  const char* exporter;
  std::map<std::string, int> ops;  // what must be in the fused forward pass
};

std::string name_of(const Case& c) { return std::string(c.model) + "." + c.exporter; }
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

std::vector<Case> cases() {
  const std::map<std::string, int> none = {
      {"softmax", 0}, {"erf", 0}, {"tanh", 0}, {"pow", 0}, {"split", 0}};
  auto with = [&](std::map<std::string, int> ops) {
    ops.insert(none.begin(), none.end());
    return ops;
  };
  // Two layers each. gpt_manual: one product for query, key and value, of a parameter [3, 16, 16].
  const auto manual =
      with({{"attention", 2}, {"layer_norm", 5}, {"gelu", 2}, {"matmul", 9}, {"slice", 6}});
  const auto sdpa =
      with({{"attention", 2}, {"layer_norm", 5}, {"gelu", 2}, {"matmul", 13}, {"slice", 0}});
  const auto loss = with(
      {{"attention", 2}, {"layer_norm", 5}, {"gelu", 2}, {"matmul", 13}, {"cross_entropy", 1}});
  const auto mlp = with({{"layer_norm", 1}, {"matmul", 2}});
  std::vector<Case> out;
  for (const char* exporter : {"dynamo", "legacy"}) {
    out.push_back({"gpt_manual", exporter, manual});
    out.push_back({"gpt_sdpa", exporter, sdpa});
    out.push_back({"gpt_loss", exporter, loss});
    out.push_back({"mlp", exporter, mlp});
  }
  // Opset 13 and 14 have layer norm in pieces; 23 has attention whole.
  out.push_back({"gpt_manual", "legacy13", manual});
  out.push_back({"gpt_loss", "legacy14", loss});
  out.push_back({"gpt_sdpa", "dynamo23", sdpa});
  return out;
}

/// A projection that fusing split into [3, 16, 16] is PyTorch's [48, 16].
Tensor shaped(const Tensor& tensor, const Shape& shape) {
  Tensor out({tensor.dtype(), shape});
  if (out.count() != tensor.count()) return tensor;
  std::memcpy(out.data(), tensor.data(), static_cast<size_t>(byte_size(out.type())));
  return out;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  const GoldenModel golden_ = test::load_golden(GetParam().model, GetParam().exporter, {});

  /// Of two names of a tied weight PyTorch's exporter keeps the last, named_parameters() the first.
  std::string golden_name(const std::string& kind, const std::string& parameter) const {
    if (golden_.recorded.count(kind + parameter)) return kind + parameter;
    const size_t head = parameter.find("head.weight");
    return head == std::string::npos ? kind + parameter
                                     : kind + parameter.substr(0, head) + "wte.weight";
  }

  /// Every recorded tensor of this kind is compared with what `of` gives for the parameter.
  template <class Of>
  void compare_parameters(const std::string& kind, double tolerance, Of of) {
    std::set<std::string> wanted, seen;
    for (const auto& [name, tensor] : golden_.recorded) {
      if (name.rfind(kind, 0) == 0) wanted.insert(name);
    }
    for (ValueId id : golden_.forward.with_role(Role::parameter)) {
      const std::string& parameter = golden_.forward.value(id).name;
      const std::string name = golden_name(kind, parameter);
      ASSERT_TRUE(wanted.count(name)) << "PyTorch has no " << name;
      EXPECT_TRUE(seen.insert(name).second) << name << " is there twice: a tie was lost";
      const Tensor& want = golden_.recorded.at(name);
      EXPECT_LE(relative_norm(shaped(of(id), want.shape()), want), tolerance) << name;
    }
    EXPECT_EQ(seen, wanted);
  }
};

TEST_P(Golden, IsFused) {
  std::map<std::string, int> found;
  for (const Node& node : golden_.forward.nodes()) ++found[node.op];
  for (const auto& [op, count] : GetParam().ops)
    EXPECT_EQ(found[op], count) << op << "\n" << to_string(golden_.forward);
  const bool manual = std::string(GetParam().model) == "gpt_manual";
  EXPECT_EQ(golden_.fused.projections, manual ? 2 : 0);
  for (const Node& node : golden_.forward.nodes()) {
    if (node.op != "attention") continue;
    EXPECT_EQ(node.attrs.i("causal"), 1);
    EXPECT_EQ(node.attrs.i("has_mask"), 0);
    EXPECT_EQ(node.attrs.i("q_offset"), 0);
    EXPECT_NEAR(node.attrs.f("scale"), 0.5, 1e-6);  // 4 dims a head
  }
}

TEST_P(Golden, ForwardLossAndGradients) {
  Graph graph = golden_.forward;
  std::vector<ValueId> parameters = graph.with_role(Role::parameter);
  std::vector<ValueId> wanted = differentiate(graph, graph.loss, parameters);
  check_graph(graph);
  for (size_t i = 0; i < parameters.size(); ++i)
    ASSERT_NE(wanted[i], kNoValue) << graph.value(parameters[i]).name;
  wanted.push_back(graph.outputs[0]);
  wanted.push_back(graph.loss);
  std::vector<Tensor> results = evaluate_graph(graph, golden_.feeds, wanted);
  EXPECT_LE(relative_norm(results[parameters.size()], golden_.recorded.at("output")), kTolerance);
  EXPECT_NEAR(results[parameters.size() + 1].at(0), golden_.recorded.at("losses").at(0),
              kTolerance * golden_.recorded.at("losses").at(0));
  std::map<ValueId, Tensor> by_parameter;
  for (size_t i = 0; i < parameters.size(); ++i) by_parameter[parameters[i]] = results[i];
  compare_parameters("grad/", kTolerance, [&](ValueId id) { return by_parameter.at(id); });
}

TEST_P(Golden, ThreeSteps) {
  const NamedTensors after =
      test::expect_golden_losses(test::golden_training_graph(golden_.forward), golden_.feeds,
                                 golden_.recorded.at("losses"), kTolerance);
  compare_parameters("after/", kTolerance,
                     [&](ValueId id) { return after.at(golden_.forward.value(id).name); });
}

TEST_P(Golden, ThreeStepsOnAMesh) {
  const Graph graph = test::golden_training_graph(golden_.forward);
  const Mesh mesh = Mesh::parse("data=2,model=2");
  RuleCache rules;
  // Left to itself the planner may well repeat so small a model on all ranks: the last one cuts
  // batches over `data` and every matrix over `model`.
  for (const char* planner : {"auto", "dp", "cut"}) {
    SCOPED_TRACE(planner);
    PlanOptions options;
    const bool cut = std::string(planner) == "cut";
    options.planner = parse_planner(cut ? "ilp" : planner);
    for (const Value& value : graph.values()) {
      Sharding sharding = Sharding::replicated(value.type.shape.size());
      if (value.role == Role::batch) sharding.dims.front() = {0};
      if (value.role == Role::parameter && value.type.shape.size() >= 2) sharding.dims.back() = {1};
      if (cut && !sharding.is_replicated()) options.pinned[value.name] = sharding;
    }
    const Plan plan = plan_shardings(graph, mesh, host_cluster(), options, rules);
    for (const auto& [name, sharding] : options.pinned)
      EXPECT_EQ(plan.values.at(name), sharding) << name;
    const test::ShardedRun run = test::run_sharded(
        graph, plan, std::vector<NamedTensors>(kGoldenSteps, golden_.feeds), kGoldenRate);
    for (size_t step = 0; step < kGoldenSteps; ++step) {
      const double want = golden_.recorded.at("losses").at(static_cast<int64_t>(step));
      EXPECT_NEAR(run.metrics[step].at("loss"), want, kTolerance * want) << "step " << step + 1;
    }
    compare_parameters("after/", kTolerance, [&](ValueId id) {
      return run.persistent.at(golden_.forward.value(id).name);
    });
    EXPECT_EQ(run.allocated_bytes, run.predicted_bytes);
    EXPECT_EQ(run.predicted_bytes.size(), 4u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.model) + "_" + info.param.exporter;
});

}  // namespace
}  // namespace shardrun
