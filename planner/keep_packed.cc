// One packed buffer for each weight and layout.
#include "planner/keep_packed.h"

#include <algorithm>
#include <map>

#include "graph/op_def.h"
#include "graph/ops/post.h"
#include "planner/step_uses.h"

namespace shardrun {
namespace {

/// Do the weights that step `s` reads stay from one of its runs to the next? With the step of the
/// update phase that writes them between steps, if one does.
struct Kept {
  bool stays = false;
  std::optional<size_t> writer;
};
Kept kept(const Program& program, const Uses& uses, const std::set<BufferId>& persistent,
          size_t s) {
  const BufferId weights = program.steps[s].in[1];
  const std::vector<size_t>& makers = uses.makers(weights);
  if (persistent.count(weights) == 0 || makers.size() > 1) return {};
  if (makers.empty()) return {true, std::nullopt};
  const bool between =
      program.steps[s].phase == Phase::micro && program.steps[makers[0]].phase == Phase::update;
  return {between, makers[0]};
}

Step packing(const Program& program, BufferId weights, BufferId packed, const Attrs& layout) {
  Step out;
  out.node.op = "pack_weights";
  out.node.name = str(program.buffers[static_cast<size_t>(weights)].name, "/packed", packed);
  out.node.attrs = layout;
  out.in = out.node.inputs = {weights};
  out.out = out.node.outputs = {packed};
  out.source = out.node.name;
  return out;
}

}  // namespace

void keep_packed(Program& program, const PackedWeights& layout_of) {
  const Uses uses(program);
  std::set<BufferId> persistent;
  for (const Binding& b : program.bindings) {
    if (b.role == Role::parameter || b.role == Role::constant) persistent.insert(b.buffer);
  }
  for (const Step& step : program.setup) persistent.insert(step.out.begin(), step.out.end());
  std::map<std::pair<BufferId, std::string>, BufferId> known;
  std::map<size_t, std::vector<Step>> behind;  // by the step that writes the weights
  for (size_t s = 0; s < program.steps.size(); ++s) {
    Step& step = program.steps[s];
    const bool convolution = step.node.op.starts_with("conv") &&
                             (takes_post_ops(step.node.op) || has_post_ops(step.node.op));
    if (step.kind != Step::Kind::kernel || !convolution) continue;
    const Kept k = kept(program, uses, persistent, s);
    if (!k.stays) continue;
    const std::optional<Attrs> layout =
        layout_of(step.node, types_of(program, step.in), types_of(program, step.out));
    if (!layout) continue;
    const BufferId weights = step.in[1];
    const auto [it, fresh] = known.try_emplace({weights, to_string(*layout)}, -1);
    if (fresh) {
      it->second = static_cast<BufferId>(program.buffers.size());
      Step pack = packing(program, weights, it->second, *layout);
      Buffer buffer;
      buffer.name = pack.node.name;
      buffer.type = infer_types(pack.node, std::vector{type_of(program, weights)})[0];
      program.buffers.push_back(std::move(buffer));
      program.setup.push_back(pack);
      if (k.writer) {
        pack.phase = Phase::update;
        behind[*k.writer].push_back(std::move(pack));
      }
    }
    step.node.attrs.set("packed", int64_t{1});
    step.in.push_back(it->second);
    step.node.inputs = step.in;
  }
  std::vector<Step> steps;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    steps.push_back(std::move(program.steps[s]));
    for (Step& pack : behind[s]) steps.push_back(std::move(pack));
  }
  program.steps = std::move(steps);
}

}  // namespace shardrun
