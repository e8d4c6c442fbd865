// What is read and written beside kernels since they last waited.
#include "program/collective_waits.h"

#include <algorithm>

namespace shardrun {

std::vector<int> ends_beside_kernels(const Program& program, const std::vector<BufferId>& holders) {
  std::vector<int> ends(program.steps.size());
  std::vector<bool> read(holders.size(), false), written(holders.size(), false);
  std::vector<size_t> running;
  const auto holder = [&](BufferId b) {
    return static_cast<size_t>(holders[static_cast<size_t>(b)]);
  };
  const auto wait = [&](size_t s) {
    for (size_t c : running) {
      ends[c] = static_cast<int>(s) - 1;
      for (BufferId b : program.steps[c].in) read[holder(b)] = false;
      for (BufferId b : program.steps[c].out) written[holder(b)] = false;
    }
    running.clear();
  };
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    ends[s] = static_cast<int>(s);
    if (s > 0 && step.phase != program.steps[s - 1].phase) wait(s);
    if (step.kind == Step::Kind::collective && !step.collective->traits().local) {
      for (BufferId b : step.in) read[holder(b)] = true;
      for (BufferId b : step.out) written[holder(b)] = true;
      running.push_back(s);
      continue;
    }
    const auto is_written = [&](BufferId b) { return written[holder(b)]; };
    if (std::any_of(step.in.begin(), step.in.end(), is_written) ||
        std::any_of(step.out.begin(), step.out.end(),
                    [&](BufferId b) { return is_written(b) || read[holder(b)]; }))
      wait(s);
  }
  wait(program.steps.size());
  return ends;
}

}  // namespace shardrun
