// Memory that collectives still use, by stream.
#include "simulate/step_order.h"

#include <algorithm>
#include <map>

#include "base/streams/stream_waits.h"

namespace shardrun {
namespace {

StepMemory memory_of(const Program& program, const Step& step) {
  const auto of = [&](BufferId id) {
    return range_at(program.buffers[static_cast<size_t>(id)].offset,
                    byte_size(type_of(program, id)));
  };
  StepMemory out;
  for (BufferId id : step.in) out.reads.push_back(of(id));
  for (BufferId id : step.out) out.writes.push_back(of(id));
  if (step.needs.workspace > 0)
    out.writes.push_back(range_at(step.workspace_offset, step.needs.workspace));
  return out;
}

}  // namespace

bool communicates(const Step& step) {
  return step.kind == Step::Kind::collective && !step.collective->traits().local;
}

AxisSet axes_of(const Step& step) {
  AxisSet axes = step.collective->axes;
  std::sort(axes.begin(), axes.end());
  return axes;
}

ProgramOrder order_of(const Program& program, CommStreams streams) {
  ProgramOrder out;
  out.steps.resize(program.steps.size());
  if (streams == CommStreams::none) return out;
  std::map<AxisSet, int> stream_of;
  for (const Phase phase : {Phase::micro, Phase::update}) {
    std::vector<size_t> steps;
    std::vector<StepMemory> memory;
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const Step& step = program.steps[s];
      if (step.phase != phase) continue;
      steps.push_back(s);
      memory.push_back(memory_of(program, step));
      if (!communicates(step)) continue;
      const AxisSet key = streams == CommStreams::one ? AxisSet() : axes_of(step);
      memory.back().stream = stream_of.emplace(key, out.streams).first->second;
      out.streams = std::max(out.streams, memory.back().stream + 1);
    }
    const std::vector<std::vector<int>> waits = stream_waits(memory);
    for (size_t i = 0; i < steps.size(); ++i) {
      StepOrder& order = out.steps[steps[i]];
      order.stream = memory[i].stream;
      for (int other : waits[i])
        order.after.push_back(static_cast<int>(steps[static_cast<size_t>(other)]));
    }
  }
  return out;
}

}  // namespace shardrun
