// One packed buffer for each weight and layout.
#include "program/keep_packed.h"

#include <algorithm>
#include <map>

#include "program/ops/pack.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

/// A product of oneDNN's gains a tenth or less by it: of one reading, less than the writer loses;
/// in validation, little for so much memory.
bool pays(const Step& reader, const Step* writer) {
  const bool again = writer != nullptr && reader.phase != writer->phase;  // micro-batches
  return !reader.node.op.starts_with("matmul") || again;
}

Step packing(const Program& program, BufferId weights, BufferId packed,
             const WeightLayout& layout) {
  Step out;
  out.node.op = "pack_weights";
  out.node.name = str(program.buffers[static_cast<size_t>(weights)].name, "/packed", packed);
  out.node.attrs.set("layout", layout.to_string());
  out.in = out.node.inputs = {weights};
  out.out = out.node.outputs = {packed};
  out.source = out.node.name;
  return out;
}

/// The update that also lays out `weights`, which it makes; none if that is not its kernel's way.
std::optional<Step> update_packing(const Program& program, const Step& update, BufferId weights,
                                   BufferId packed, const WeightLayout& layout,
                                   const RunsAlike& takes) {
  if (!is_update(update) && !is_packed_update(update.node.op)) return std::nullopt;
  const PackedUpdate form = PackedUpdate::of(update.node, update.in.size());
  if (form.update.count > 1 || update.out[form.of_result()] != weights) return std::nullopt;
  Step out = update;
  out.node = with_layout(update.node, layout);
  out.out.push_back(packed);
  out.node.outputs = out.out;
  if (!runs_alike(program, out, update, takes)) return std::nullopt;
  return out;
}

}  // namespace

void keep_packed(Program& program, const PackedWeights& layout_of, const RunsAlike& takes) {
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
    const bool reads = takes_post_ops(step.node.op) || has_post_ops(step.node.op);
    if (step.kind != Step::Kind::kernel || !reads) continue;
    const BufferId weights = step.in[1];
    const std::vector<size_t>& writers = uses.makers(weights);
    if (persistent.count(weights) == 0 || writers.size() > 1) continue;
    if (!pays(step, writers.empty() ? nullptr : &program.steps[writers[0]])) continue;
    const std::vector<TensorType> in = types_of(program, step.in),
                                  out = types_of(program, step.out);
    const std::optional<WeightLayout> layout = layout_of({step.node, in, out});
    if (!layout) continue;
    const auto [it, fresh] = known.try_emplace({weights, layout->to_string()}, -1);
    if (fresh) {
      it->second = static_cast<BufferId>(program.buffers.size());
      Step pack = packing(program, weights, it->second, *layout);
      Buffer buffer;
      buffer.name = pack.node.name;
      buffer.type = layout->type(in[1]);
      program.buffers.push_back(std::move(buffer));
      program.setup.push_back(pack);
      if (!writers.empty()) {
        Step& writer = program.steps[writers[0]];
        if (auto update = update_packing(program, writer, weights, it->second, *layout, takes)) {
          writer = std::move(*update);
        } else {
          pack.phase = writer.phase;
          behind[writers[0]].push_back(std::move(pack));
        }
      }
    }
    step.node.attrs.set("rearranged", int64_t{1});
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
