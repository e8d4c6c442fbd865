// Two clocks, one for each stream.
#include "explain/critical_path.h"

#include <algorithm>
#include <vector>

#include "exec/side_stream.h"

namespace shardrun {
namespace {

bool runs_on_side(const Step& step) {
  return step.kind == Step::Kind::collective && !step.collective->traits().local;
}

StepMemory memory_of(const Program& program, const Step& step) {
  const auto range = [](int64_t offset, int64_t bytes) {
    const auto* const begin = reinterpret_cast<const char*>(offset);
    return StepMemory::Range(begin, begin + bytes);
  };
  const auto of = [&](BufferId id) {
    return range(program.buffers[static_cast<size_t>(id)].offset, byte_size(type_of(program, id)));
  };
  StepMemory out;
  for (BufferId id : step.in) out.reads.push_back(of(id));
  for (BufferId id : step.out) out.writes.push_back(of(id));
  if (step.needs.workspace > 0)
    out.writes.push_back(range(step.workspace_offset, step.needs.workspace));
  out.on_side = runs_on_side(step);
  return out;
}

}  // namespace

double critical_path(const Program& program, std::span<const double> seconds,
                     std::vector<double>* starts) {
  double out = 0;
  if (starts != nullptr) starts->assign(program.steps.size(), 0);
  for (const Phase phase : {Phase::micro, Phase::update}) {
    std::vector<size_t> steps;
    std::vector<StepMemory> memory;
    for (size_t s = 0; s < program.steps.size(); ++s) {
      if (program.steps[s].phase != phase) continue;
      steps.push_back(s);
      memory.push_back(memory_of(program, program.steps[s]));
    }
    if (steps.empty()) continue;
    const std::vector<bool> waits = waits_for_side(memory);
    double kernels = 0, collectives = 0;  // when each stream is done
    for (size_t i = 0; i < steps.size(); ++i) {
      double& clock = memory[i].on_side ? collectives : kernels;
      if (memory[i].on_side || waits[i]) clock = std::max(kernels, collectives);
      if (starts != nullptr) (*starts)[steps[i]] = out + clock;
      clock += seconds[steps[i]];
    }
    out +=
        static_cast<double>(program.runs(program.steps[steps[0]])) * std::max(kernels, collectives);
  }
  return out;
}

}  // namespace shardrun
