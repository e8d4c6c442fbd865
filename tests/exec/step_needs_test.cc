// What kernels need goes by the threads that they are to have, whoever asks.
#include <gtest/gtest.h>
#include <omp.h>

#include "exec/executor.h"
#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

/// One step: a sample of an op.
Program program_of(const OpDef& def, const OpDef::Sample& sample) {
  Program program;
  Step step;
  step.node = test::sample_node(def, sample);
  const auto add = [&](const TensorType& type) {
    Buffer buffer;
    buffer.type = type;
    program.buffers.push_back(buffer);
    return static_cast<BufferId>(program.buffers.size() - 1);
  };
  for (const TensorType& type : sample.in) step.in.push_back(add(type));
  for (const TensorType& type : infer_types(step.node, sample.in)) step.out.push_back(add(type));
  program.steps.push_back(std::move(step));
  return program;
}

TEST(StepNeeds, AreThoseOfSoManyThreads) {
  const std::vector<const KernelList*> lists = {&cpu_kernels(), &reference_kernels()};
  const int before = omp_get_max_threads();
  const StepNeeds asked(lists);
  int grew = 0;
  for (const OpDef* def : all_ops()) {
    for (const OpDef::Sample& sample : def->samples) {
      const Program program = program_of(*def, sample);
      const Step& step = program.steps[0];
      omp_set_num_threads(3);
      const StepBytes three = StepNeeds(lists)(program, step);
      omp_set_num_threads(1);
      const StepBytes one = StepNeeds(lists)(program, step);
      EXPECT_EQ(asked(program, step, 3), three) << test::describe(*def, sample);
      EXPECT_EQ(asked(program, step, 1), one) << test::describe(*def, sample);
      EXPECT_EQ(asked(program, step), one) << test::describe(*def, sample);
      EXPECT_EQ(omp_get_max_threads(), 1);
      grew += three.workspace > one.workspace ? 1 : 0;
    }
  }
  omp_set_num_threads(before);
  EXPECT_GT(grew, 0);
}

}  // namespace
}  // namespace shardrun
