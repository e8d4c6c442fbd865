// One group_rows step for each list of numbers.
#include "program/share_groups.h"

#include <map>
#include <tuple>

#include "graph/op_def.h"
#include "program/ops/group_rows.h"
#include "program/step_uses.h"

namespace shardrun {

void share_groups(Program& program) {
  const Uses uses(program);
  using Key = std::tuple<BufferId, int64_t, int64_t, Phase>;  // numbers, size, offset
  std::map<Key, std::vector<size_t>> wanted;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind != Step::Kind::kernel) continue;
    const auto groups = RowGroups::wanted_by(step.node, types_of(program, step.in));
    if (!groups) continue;
    wanted[{step.in[groups->numbers], groups->size, groups->offset, step.phase}].push_back(s);
  }
  std::map<size_t, std::vector<Step>> before;  // by the first who wants them
  for (const auto& [key, steps] : wanted) {
    const auto& [numbers, size, offset, phase] = key;
    if (steps.size() < 2 || uses.written_between(numbers, steps.front(), steps.back())) continue;
    Step step;
    step.phase = phase;
    step.node.op = "group_rows";
    step.node.name =
        str(program.buffers[static_cast<size_t>(numbers)].name, "/groups", program.buffers.size());
    step.node.attrs = {{"size", size}, {"offset", offset}};
    step.source = step.node.name;
    const auto groups = static_cast<BufferId>(program.buffers.size());
    Buffer buffer;
    buffer.name = step.node.name;
    buffer.type = infer_types(step.node, types_of(program, {numbers}))[0];
    program.buffers.push_back(std::move(buffer));
    step.in = step.node.inputs = {numbers};
    step.out = step.node.outputs = {groups};
    before[steps.front()].push_back(std::move(step));
    for (size_t s : steps) {
      Step& reader = program.steps[s];
      reader.node.attrs.set("rearranged", int64_t{1});
      reader.in.push_back(groups);
      reader.node.inputs = reader.in;
    }
  }
  std::vector<Step> steps;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    for (Step& step : before[s]) steps.push_back(std::move(step));
    steps.push_back(std::move(program.steps[s]));
  }
  program.steps = std::move(steps);
}

}  // namespace shardrun
