// Memory that collectives still use, by stream.
#include "simulate/step_order.h"

#include <algorithm>
#include <map>

#include "exec/side_stream.h"

namespace shardrun {
namespace {

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
  out.on_side = communicates(step);
  return out;
}

/// Of one phase's steps: which of those on other streams each waits for.
class Orderer {
 public:
  Orderer(const Program& program, CommStreams streams, ProgramOrder& out)
      : program_(program), streams_(streams), out_(out) {}

  void add_phase(Phase phase, std::map<AxisSet, int>& stream_of) {
    std::vector<int> steps;
    std::vector<StepMemory> memory;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (step.phase != phase) continue;
      steps.push_back(static_cast<int>(s));
      memory.push_back(memory_of(program_, step));
      if (memory.back().on_side) {
        const AxisSet key = streams_ == CommStreams::one ? AxisSet() : axes_of(step);
        at(steps.back()).stream = stream_of.emplace(key, out_.streams).first->second;
        out_.streams = std::max(out_.streams, at(steps.back()).stream + 1);
      }
    }
    if (streams_ == CommStreams::one) {
      wait_for_all(steps, memory);
    } else {
      wait_for_conflicts(steps, memory);
    }
  }

 private:
  StepOrder& at(int step) { return out_.steps[static_cast<size_t>(step)]; }

  void wait_for_all(const std::vector<int>& steps, const std::vector<StepMemory>& memory) {
    const std::vector<bool> waits = waits_for_side(memory);
    int kernel = -1, collective = -1;
    for (size_t i = 0; i < steps.size(); ++i) {
      const int other = memory[i].on_side ? kernel : waits[i] ? collective : -1;
      if (other >= 0) at(steps[i]).after.push_back(other);
      (memory[i].on_side ? collective : kernel) = steps[i];
    }
  }

  /// One pair of steps at a time: the second waits where waits_for_side says so of the two.
  void wait_for_conflicts(const std::vector<int>& steps, const std::vector<StepMemory>& memory) {
    int kernel = -1;
    std::vector<size_t> asked;  // collectives that nothing of the kernels' stream has waited for
    for (size_t i = 0; i < steps.size(); ++i) {
      StepOrder& order = at(steps[i]);
      if (order.stream != 0 && kernel >= 0) order.after.push_back(kernel);
      std::erase_if(asked, [&](size_t other) {
        if (at(steps[other]).stream == order.stream) return false;
        StepMemory second = memory[i];
        second.on_side = false;
        const std::vector<StepMemory> pair = {memory[other], second};
        if (!waits_for_side(pair)[1]) return false;
        order.after.push_back(steps[other]);
        return order.stream == 0;  // later kernels come behind this one
      });
      if (order.stream == 0) kernel = steps[i];
      if (order.stream != 0) asked.push_back(i);
    }
  }

  const Program& program_;
  CommStreams streams_;
  ProgramOrder& out_;
};

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
  Orderer orderer(program, streams, out);
  std::map<AxisSet, int> stream_of;
  for (const Phase phase : {Phase::micro, Phase::update}) orderer.add_phase(phase, stream_of);
  return out;
}

}  // namespace shardrun
