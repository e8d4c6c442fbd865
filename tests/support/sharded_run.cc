// Threads, one Executor each.
#include "tests/support/sharded_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "exec/executor.h"
#include "graph/optimizer.h"
#include "kernels/cpu/cpu.h"
#include "program/compile.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/memory_check.h"

namespace shardrun::test {

Tensor cut(const Tensor& global, const Box& box) {
  Tensor out({global.dtype(), box_shape(box)});
  copy_box(global.data(), full_box(global.shape()), out.data(), box, box, size_of(global.dtype()));
  return out;
}

double relative_difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  double largest = 1e-30, difference = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    if (!std::isfinite(a.at(i)) || !std::isfinite(b.at(i)))
      return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(b.at(i)));
    difference = std::max(difference, std::abs(a.at(i) - b.at(i)));
  }
  return difference / largest;
}

namespace {

/// Are the calls that were made those of `steps` steps of the Program? Not asked where rows change
/// ranks by number: the numbers say how many calls and bytes that takes.
void expect_calls(const Program& program, int64_t rank, int64_t steps,
                  const CommunicatorCalls& made) {
  CommunicatorCalls expected;
  int32_t last_call = 0;
  for (const Step& step : program.steps) {
    const bool joined = step.call != 0 && step.call == last_call;
    last_call = step.call;
    if (step.kind != Step::Kind::collective || step.collective->traits().local) continue;
    const Collective& collective = *step.collective;
    const int64_t runs = steps * (step.phase == Phase::micro ? program.micro_batches : 1);
    if (std::holds_alternative<RowBounds>(collective.payload)) return;
    const bool exchange = collective.traits().is_exchange();
    if (!joined)
      expected.by_kind[exchange ? "all_to_all" : std::string(collective.traits().name)] += runs;
    const DType dtype = program.buffers[static_cast<size_t>(step.in[0])].type.dtype;
    expected.bytes += runs * bytes_sent(*step.collective, dtype, rank);
  }
  EXPECT_EQ(made.by_kind, expected.by_kind) << "rank " << rank;
  EXPECT_EQ(made.bytes, expected.bytes) << "rank " << rank;
}

}  // namespace

ShardedRun run_sharded(const Graph& graph, const Plan& plan, const std::vector<NamedTensors>& feeds,
                       double lr, uint64_t seed, const Cluster& cluster) {
  const auto ranks = static_cast<int>(plan.mesh.size());
  const std::vector<const KernelList*> lists = {&cpu_kernels(), &reference_kernels()};
  const StepNeeds needs(lists);
  std::vector<Program> programs;
  ShardedRun result;
  for (int rank = 0; rank < ranks; ++rank) {
    programs.push_back(
        compile(graph, plan, cluster, rank, {.needs = needs}, {.steps = Steps::all}));
    check_memory(programs.back());
    result.predicted_bytes.push_back(programs.back().arena_bytes);
  }
  result.outputs.resize(feeds.size());
  result.metrics.resize(feeds.size());
  result.allocated_bytes.resize(programs.size());
  auto communicators = make_local_communicators(ranks);
  std::vector<std::exception_ptr> errors(programs.size());
  std::vector<CommunicatorCalls> calls(programs.size());
  std::mutex mutex;
  auto run = [&](size_t rank) {
    try {
      CountingCommunicator counting(*communicators[rank], calls[rank]);
      Executor executor(programs[rank], lists, counting, seed);
      calls[rank] = {};  // not those that set up
      for (size_t step = 0; step < feeds.size(); ++step) {
        executor.set_scalar(kLearningRate, lr);
        executor.set_scalar(kStep, static_cast<int64_t>(step) + 1);
        executor.set_scalar(kRandomStep, static_cast<int64_t>(step));
        executor.begin_step();
        for (int64_t micro = 0; micro < executor.program().micro_batches; ++micro) {
          for (const auto& [name, tensor] : feeds[step]) {
            if (const Binding* binding = executor.find(name))
              executor.write(name, cut(tensor, binding->box));
          }
          executor.run_micro();
        }
        executor.run_update();
        if (step + 1 == feeds.size())
          expect_calls(programs[rank], static_cast<int64_t>(rank), std::ssize(feeds), calls[rank]);
        if (rank != 0) continue;
        for (const Binding& output : executor.program().outputs)
          result.outputs[step][output.name] = executor.read(output);
        for (const Binding& metric : executor.program().metrics) {
          result.metrics[step][metric.name] = executor.metric(metric.name);
        }
      }
      const std::lock_guard lock(mutex);
      result.allocated_bytes[rank] = executor.allocated_bytes();
      for (const Binding& binding : executor.program().bindings) {
        if (binding.role != Role::parameter && binding.role != Role::state) continue;
        Tensor& whole = result.persistent.try_emplace(binding.name, binding.global).first->second;
        const Tensor shard = executor.read(binding);
        copy_box(shard.data(), binding.box, whole.data(), full_box(whole.shape()), binding.box,
                 size_of(whole.dtype()));
      }
    } catch (...) {
      errors[rank] = std::current_exception();
      communicators[rank]->abort();
    }
  };
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < programs.size(); ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return result;
}

}  // namespace shardrun::test
