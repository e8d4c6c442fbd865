// What a step comes to, counted.
#include "explain/figures.h"

#include "graph/collective.h"
#include "graph/op_def.h"

namespace shardrun {

int64_t sent_bytes(const Program& program) {
  int64_t sum = 0;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::collective) continue;
    const DType dtype = program.buffers[static_cast<size_t>(step.in[0])].type.dtype;
    sum += program.runs(step) * bytes_sent(*step.collective, dtype, program.rank);
  }
  return sum;
}

std::map<std::string, double> arithmetic(const Graph& step) {
  std::map<std::string, double> out;
  for (const Node& node : step.nodes()) {
    const auto times = static_cast<double>(step.runs(node.phase));
    out[node.op] += times * node_flops(node, step.types(node.inputs), step.types(node.outputs));
  }
  return out;
}

}  // namespace shardrun
