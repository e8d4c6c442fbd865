// One program with its calls as they are and with each apart, and what both leave.
#include "tests/exec/one_call.h"

#include <gtest/gtest.h>

#include <cstring>

#include "exec/executor.h"
#include "program/compile.h"
#include "tests/exec/planned_by_one.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/kernel_traits.h"
#include "tests/support/memory_check.h"

namespace shardrun::test {
namespace {

constexpr int kSteps = 5;

/// The same number for every rank of a batch's element.
void fill(const Binding& binding, int step, void* shard) {
  const int64_t count = element_count(box_shape(binding.box));
  const int64_t row = binding.box.empty() ? 1 : count / std::max<int64_t>(1, binding.box[0].size);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = (binding.box.empty() ? 0 : binding.box[0].begin) * row + i;
    static_cast<int64_t*>(shard)[i] = (7 * at + 3 * step + (binding.name == "labels")) % 31;
  }
}

struct Outcome {
  std::vector<double> losses;
  std::vector<Tensor> parameters;
  int64_t calls = 0;  // that sum over ranks, in the last step
};

Outcome train(Program program, Communicator& world) {
  Outcome out;
  CommunicatorCalls calls;
  CountingCommunicator counting(world, calls);
  const std::vector<const KernelList*> lists = {&reference_kernels()};
  const int64_t predicted = program.arena_bytes;
  Executor exec(std::move(program), lists, counting, 3);
  EXPECT_EQ(exec.allocated_bytes(), predicted);
  for (int step = 1; step <= kSteps; ++step) {
    exec.set_scalar(kLearningRate, 1e-2);
    exec.set_scalar(kStep, step);
    calls = {};
    exec.begin_step();
    for (int64_t micro = 0; micro < exec.program().micro_batches; ++micro) {
      for (const Binding& b : exec.program().bindings) {
        if (b.role == Role::batch) exec.fill(b, [&](void* shard) { fill(b, step, shard); });
      }
      exec.run_micro();
    }
    exec.run_update();
    out.calls = calls.by_kind["all_reduce"];
    out.losses.push_back(exec.metric("loss"));
  }
  for (const Binding& b : exec.program().bindings) {
    if (b.role == Role::parameter) out.parameters.push_back(exec.read(b));
  }
  return out;
}

void check(Communicator& world, const Mesh& mesh, const std::string& planner, int accumulate) {
  SCOPED_TRACE(str(planner, " on ", mesh.to_string(), ", ", accumulate, " micro-batches"));
  OptimizerOptions optimizer;
  optimizer.accumulate = accumulate;
  GptOptions o;
  o.layers = 2, o.hidden = 24, o.heads = 2, o.vocab = 31, o.context = 6, o.batch = 7;
  const auto [graph, plan] = planned_by_one(o, optimizer, mesh, planner);
  const std::vector<const KernelList*> lists = {&reference_kernels()};
  const Program program =
      compile(graph, plan, host_cluster(), world.rank(), with_kernels({}, lists));
  check_memory(program);
  Program each = program;
  int64_t sums = 0;
  for (Step& step : each.steps) {
    step.call = 0;
    if (step.kind != Step::Kind::collective) continue;
    if (step.collective->kind == Collective::Kind::all_reduce) sums += each.runs(step);
  }
  const Outcome want = train(std::move(each), world), got = train(program, world);
  EXPECT_EQ(want.calls, sums);
  EXPECT_LT(got.calls, want.calls);
  if (planner == "dp" && accumulate == 1) {
    EXPECT_LT(got.calls, 6);
  }
  EXPECT_EQ(got.losses, want.losses);  // bit for bit
  ASSERT_EQ(got.parameters.size(), want.parameters.size());
  for (size_t p = 0; p < want.parameters.size(); ++p) {
    const Tensor &a = got.parameters[p], &b = want.parameters[p];
    ASSERT_EQ(a.type(), b.type());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(byte_size(a.type()))), 0);
  }
}

}  // namespace

void check_one_call(Communicator& world) {
  const Mesh line({{"data", world.size()}});
  check(world, line, "dp", 1);
  check(world, line, "dp", 2);
  if (world.size() == 4) check(world, Mesh::parse("data=2,model=2"), "dp+megatron", 1);
}

}  // namespace shardrun::test
