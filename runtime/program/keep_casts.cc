// Casts of weights, moved into set-up and updates.
#include "program/keep_casts.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/op_def.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// Is it the optimizer's update of `weight`, in its place?
bool updates(const Step& step, BufferId weight) {
  return is_update(step) && step.in[0] == weight && step.out[0] == weight;
}

/// Makes what several casts of a weight leave one buffer that outlives the step.
void keep_cast(Program& program, const Uses& uses, BufferId weight, const std::set<size_t>& casts,
               std::set<size_t>& gone) {
  const std::vector<size_t>& makers = uses.makers(weight);
  if (makers.size() > 1 || (makers.size() == 1 && !updates(program.steps[makers[0]], weight)))
    return;
  const BufferId kept = program.steps[*casts.begin()].out[0];
  for (size_t cast : casts) {
    const BufferId narrow = program.steps[cast].out[0];
    if (!uses.passing(narrow)) return;
    for (size_t r : uses.readers(narrow)) {
      if (!makers.empty() && r > makers[0]) return;  // it wants the old weight
    }
  }
  for (size_t cast : casts) {
    const BufferId narrow = program.steps[cast].out[0];
    for (size_t r : uses.readers(narrow)) {
      std::vector<BufferId>& in = program.steps[r].in;
      std::replace(in.begin(), in.end(), narrow, kept);
    }
  }
  if (!makers.empty()) {
    Step& update = program.steps[makers[0]];
    update.out.push_back(kept);
    update.node.attrs.set("copy", std::string(to_string(type_of(program, kept).dtype)));
  }
  program.setup.push_back(program.steps[*casts.begin()]);
  gone.insert(casts.begin(), casts.end());
}

}  // namespace

bool casts_weight(const Graph& graph, const Node& node) {
  return op_def(node.op).cost == CostClass::conversion &&
         graph.value(node.inputs[0]).role == Role::parameter &&
         graph.type(node.outputs[0]).dtype == DType::bf16;
}

void keep_casts(Program& program) {
  const Uses uses(program);
  const std::set<BufferId> weights = buffers_of(program, Role::parameter);
  std::map<BufferId, std::set<size_t>> casts;  // by weight
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (is_kernel(step, "cast") && weights.count(step.in[0]) > 0 &&
        type_of(program, step.out[0]).dtype == DType::bf16)
      casts[step.in[0]].insert(s);
  }
  std::set<size_t> gone;
  for (const auto& [weight, steps] : casts) keep_cast(program, uses, weight, steps, gone);
  remove_gone(program, gone);
}

}  // namespace shardrun
