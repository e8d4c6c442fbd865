// A phase as the Simulation has it, one lane of two streams.
#include "explain/critical_path.h"

#include "simulate/engine.h"
#include "simulate/step_order.h"

namespace shardrun {

double critical_path(const Program& program, std::span<const double> seconds,
                     std::vector<double>* starts) {
  const ProgramOrder order = order_of(program, CommStreams::one);
  double out = 0;
  if (starts != nullptr) starts->assign(program.steps.size(), 0);
  for (const Phase phase : {Phase::micro, Phase::update}) {
    Simulation sim;
    std::vector<int> streams;
    for (int s = 0; s < order.streams; ++s) streams.push_back(sim.add_stream(0));
    std::vector<int> tasks(program.steps.size(), -1);
    int64_t runs = 1;
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const Step& step = program.steps[s];
      if (step.phase != phase) continue;
      std::vector<int> after;
      for (int other : order.steps[s].after) after.push_back(tasks[static_cast<size_t>(other)]);
      const auto kind = communicates(step) ? TaskKind::communication : TaskKind::kernel;
      const int stream = streams[static_cast<size_t>(order.steps[s].stream)];
      tasks[s] = sim.add({stream, kind, seconds[s]}, after);
      runs = program.runs(step);
    }
    sim.run();
    for (size_t s = 0; starts != nullptr && s < tasks.size(); ++s) {
      if (tasks[s] >= 0) (*starts)[s] = out + sim.spans()[static_cast<size_t>(tasks[s])].begin;
    }
    out += static_cast<double>(runs) * sim.makespan();
  }
  return out;
}

}  // namespace shardrun
