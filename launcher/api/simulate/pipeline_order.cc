// Orders of runs, and the steps of each.
#include "simulate/pipeline_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace shardrun {
namespace {

/// The layers in the order in which the forward pass comes to them.
std::map<std::string, int> layer_numbers(const ProgramWork& work) {
  std::map<std::string, int> out;
  for (const StepWork& step : work.steps) {
    if (step.part == StepPart::forward && !step.layer.empty())
      out.emplace(step.layer, static_cast<int>(out.size()));
  }
  return out;
}

/// The layer of every step of a pass, `steps` of `work`: its own, or that of the step before it;
/// `first` in front of all layers and `last` behind them.
std::vector<int> layers_along(const ProgramWork& work, const std::vector<int>& steps,
                              const std::map<std::string, int>& numbers, int first, int last) {
  std::vector<int> out;
  size_t behind = 0;  // the last step of a layer
  for (int s : steps) {
    const auto layer = numbers.find(work.steps[static_cast<size_t>(s)].layer);
    out.push_back(layer != numbers.end() ? layer->second : out.empty() ? first : out.back());
    if (layer != numbers.end()) behind = out.size();
  }
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(behind), out.end(), last);
  return out;
}

/// Bytes behind each part that later parts read: every boundary that they pass counts.
void count_sent(const ProgramWork& work, DividedSteps& out) {
  const Program& program = *work.program;
  std::map<BufferId, size_t> made;  // by which part
  std::map<BufferId, size_t> last;  // part that reads it
  for (size_t p = 0; p < out.parts.size(); ++p) {
    for (int s : out.parts[p].forward) {
      const Step& step = program.steps[static_cast<size_t>(s)];
      for (BufferId id : step.in) {
        if (made.count(id) > 0 && made[id] < p) last[id] = p;
      }
      for (BufferId id : step.out) made[id] = p;
    }
  }
  for (const auto& [id, reader] : last) {
    const int64_t holders = work.holders.empty() ? 1 : work.holders[static_cast<size_t>(id)];
    const auto bytes = static_cast<double>(byte_size(type_of(program, id)));
    for (size_t p = made[id]; p < reader; ++p) {
      PartSteps& part = out.parts[p];
      part.sent += bytes / static_cast<double>(holders);
      part.gathered += bytes - bytes / static_cast<double>(holders);
      part.holders = std::max(part.holders, holders);
    }
  }
}

/// Gradients that steps of several stages add to are each one's.
void count_zeroed(const ProgramWork& work, DividedSteps& out) {
  const size_t stages = out.update.size();
  std::vector<std::set<BufferId>> used(stages);
  for (size_t p = 0; p < out.parts.size(); ++p) {
    for (int s : out.parts[p].backward) {
      const Step& step = work.program->steps[static_cast<size_t>(s)];
      used[p % stages].insert(step.in.begin(), step.in.end());
    }
  }
  for (const std::set<BufferId>& of_stage : used) {
    double& seconds = out.zero_seconds.emplace_back(0);
    for (const Zeroed& one : work.zeroed) seconds += of_stage.count(one.buffer) * one.seconds;
  }
}

}  // namespace

std::vector<PartRun> schedule_of(const Pipeline& pipeline, int stage, int micro_batches) {
  const int p = pipeline.stages, v = pipeline.chunks, all = micro_batches * v;
  SR_REQUIRE(v == 1 || micro_batches % p == 0, invalid_input,
             "--schedule interleaved: ", micro_batches, " micro-batches are no multiple of ", p,
             " stages; change --accumulate or --stages");
  // Micro-batches go through the chunks in groups of as many as there are stages.
  const auto run_of = [&](int k, PartRun::Pass pass) {
    if (v == 1) return PartRun{pass, stage, k};
    const int chunk = k % (p * v) / p, micro = k / (p * v) * p + k % p;
    return PartRun{pass, (pass == PartRun::Pass::forward ? chunk : v - 1 - chunk) * p + stage,
                   micro};
  };
  const int ahead = std::min(all, v == 1 ? p - 1 - stage : 2 * (p - 1 - stage) + (v - 1) * p);
  std::vector<PartRun> out;
  for (int k = 0; k < ahead; ++k) out.push_back(run_of(k, PartRun::Pass::forward));
  for (int k = ahead; k < all; ++k) {
    out.push_back(run_of(k, PartRun::Pass::forward));
    out.push_back(run_of(k - ahead, PartRun::Pass::backward));
  }
  for (int k = all - ahead; k < all; ++k) out.push_back(run_of(k, PartRun::Pass::backward));
  return out;
}

void require_layers(const Pipeline& pipeline, int64_t layers) {
  const int parts = pipeline.parts();
  SR_REQUIRE(parts == 1 || layers >= parts, invalid_input, "--stages ", pipeline.stages,
             pipeline.chunks > 1 ? str(" with --chunks ", pipeline.chunks) : "", ": ", parts,
             " parts, but the names of the model's nodes tell of ", layers, " layers");
}

DividedSteps divide(const ProgramWork& work, const Pipeline& pipeline, bool recompute_layers) {
  const std::map<std::string, int> numbers = layer_numbers(work);
  const int layers = static_cast<int>(numbers.size()), parts = pipeline.parts();
  require_layers(pipeline, layers);
  std::vector<int> forward, backward, update;
  for (size_t s = 0; s < work.steps.size(); ++s) {
    const StepPart part = work.steps[s].part;
    (part == StepPart::forward    ? forward
     : part == StepPart::backward ? backward
                                  : update)
        .push_back(static_cast<int>(s));
  }
  DividedSteps out;
  out.parts.resize(static_cast<size_t>(parts));
  out.update.resize(static_cast<size_t>(pipeline.stages));
  if (parts == 1 && (!recompute_layers || layers == 0)) {
    out.parts[0].backward = forward;
    out.parts[0].backward.insert(out.parts[0].backward.end(), backward.begin(), backward.end());
    std::sort(out.parts[0].backward.begin(), out.parts[0].backward.end());
    out.update[0] = update;
    count_zeroed(work, out);
    return out;
  }
  const auto part_of = [&](int layer) {
    return static_cast<size_t>(std::clamp(layer, 0, layers - 1) * parts / layers);
  };
  std::map<int, std::vector<int>> again;  // by layer: its own forward steps
  const std::vector<int> along = layers_along(work, forward, numbers, 0, layers - 1);
  for (size_t i = 0; i < forward.size(); ++i) {
    out.parts[part_of(along[i])].forward.push_back(forward[i]);
    if (!work.steps[static_cast<size_t>(forward[i])].layer.empty())
      again[along[i]].push_back(forward[i]);
  }
  const std::vector<int> back = layers_along(work, backward, numbers, layers - 1, 0);
  std::set<int> done;
  for (size_t i = 0; i < backward.size(); ++i) {
    std::vector<int>& to = out.parts[part_of(back[i])].backward;
    const bool own = !work.steps[static_cast<size_t>(backward[i])].layer.empty();
    if (recompute_layers && own && done.insert(back[i]).second)
      to.insert(to.end(), again[back[i]].begin(), again[back[i]].end());
    to.push_back(backward[i]);
  }
  for (int s : update) {
    const auto layer = numbers.find(work.steps[static_cast<size_t>(s)].layer);
    const size_t part = layer == numbers.end() ? 0 : part_of(layer->second);
    out.update[part % out.update.size()].push_back(s);
  }
  count_sent(work, out);
  count_zeroed(work, out);
  return out;
}

}  // namespace shardrun
