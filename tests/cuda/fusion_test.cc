// What becomes one step of a GPT's program where GPUs run it, and that its losses stay.
#include <gtest/gtest.h>

#include "exec/executor.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/fused_call.h"
#include "program/compile.h"
#include "program/ops/post.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"
#include "tests/support/memory_check.h"

namespace shardrun {
namespace {

Graph small_gpt(double dropout, bool bf16) {
  GptOptions options;
  options.layers = 2, options.hidden = 16, options.heads = 2, options.vocab = 24;
  options.context = 8, options.batch = 2, options.dropout = dropout;
  return test::gpt_step(options, {}, bf16);
}

bool gpu_runs_fused(const Node& node, const std::vector<TensorType>& in,
                    const std::vector<TensorType>& out) {
  const KernelList* lists[] = {&cuda_kernels()};
  return runs_fused(lists, {node, in, out});
}

/// As a GPU takes its steps, for kernels of `list`.
Program program_of(const Graph& graph, const KernelList& list = cuda_kernels(),
                   Steps steps = Steps::fused) {
  const std::vector<const KernelList*> lists = {&list};
  const Program program =
      compile(graph, test::replicated_plan(graph, Mesh()), Cluster{}, 0,
              {.takes = gpu_runs_fused, .needs = StepNeeds(lists)}, {.steps = steps});
  check_memory(program);
  return program;
}

/// How many products have these post-ops behind them.
std::map<std::string, int> endings(const Program& program) {
  std::map<std::string, int> out;
  for (const Step& step : program.steps) {
    if (!post_ops(step.node).empty()) ++out[step.node.attrs.s("post")];
  }
  return out;
}

using Endings = std::map<std::string, int>;

/// Each bias's gradient comes with its weight's.
TEST(CudaFusion, SumsGradientsWithTheirProducts) {
  for (const bool bf16 : {false, true}) {
    const Program program = program_of(small_gpt(0, bf16));  // prepared and placed without a GPU
    int sums = 0, apart = 0;
    for (const Step& step : program.steps) {
      if (summed_operand(step.node)) ++sums;
      if (step.node.op == "reduce_sum") ++apart;
    }
    EXPECT_EQ(sums, 8) << bf16;   // of each layer four
    EXPECT_EQ(apart, 3) << bf16;  // the loss, its count, and the positions' gradient
  }
}

TEST(CudaFusion, TakesTheLongestPartThatAnEpilogueDoes) {
  for (const bool bf16 : {false, true}) {
    const Program whole = program_of(small_gpt(0, bf16));
    // Of each layer qkv; both projections with the residual; fc, in bf16 with GELU, whose argument
    // is kept; and fc's gradient through GELU.
    const auto with_fc = [&](Endings all) {
      bf16 ? all.insert({{"add gelu", 2}, {"gelu_grad", 2}}) : void(all["add"] += 2);
      return all;
    };
    EXPECT_EQ(endings(whole), with_fc({{"add", 2}, {"add add", 4}})) << bf16;
    const Program dropped = program_of(small_gpt(0.1, bf16));
    EXPECT_EQ(endings(dropped), with_fc({{"add", 6}})) << bf16;
  }
}

std::vector<double> losses(const Graph& graph, Steps steps) {
  const std::vector<const KernelList*> lists = {&reference_kernels()};
  const auto world = make_local_communicators(1);
  Executor executor(program_of(graph, reference_kernels(), steps), lists, *world[0], 7);
  std::vector<double> out;
  for (int64_t step = 0; step < 3; ++step) {
    executor.set_scalar(kLearningRate, 1e-2);
    executor.set_scalar(kStep, step + 1);
    executor.set_scalar(kRandomStep, step);
    executor.begin_step();
    for (const Binding& binding : executor.program().bindings) {
      if (binding.role != Role::batch) continue;
      Tensor tokens(TensorType{binding.global});
      for (int64_t i = 0; i < tokens.count(); ++i)
        tokens.as<int64_t>()[i] =
            (5 * i + 3 * step + static_cast<int64_t>(binding.name.size())) % 24;
      executor.write(binding.name, tokens);
    }
    executor.run_micro();
    executor.run_update();
    out.push_back(executor.metric("loss"));
  }
  return out;
}

TEST(CudaFusion, LeaveTheLossesAsTheyAre) {
  for (const bool bf16 : {false, true}) {
    const Graph graph = small_gpt(0.1, bf16);
    const std::vector<double> apart = losses(graph, Steps::all), got = losses(graph, Steps::fused);
    ASSERT_EQ(got.size(), apart.size());
    EXPECT_LT(apart.back(), apart.front());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], apart[i], (bf16 ? 1e-3 : 1e-6) * apart[i]) << "step " << i;
  }
}

}  // namespace
}  // namespace shardrun
