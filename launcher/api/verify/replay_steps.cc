// Which of several ranks' steps are the same.
#include "verify/replay_steps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace shardrun {
namespace {

/// The Graph values that the kernel steps of one Program make.
class MadeValues {
 public:
  MadeValues(const Graph& graph, const Program& program) : graph_(graph), program_(program) {
    for (size_t v = 0; v < graph.values().size(); ++v)
      ids_.emplace(graph.values()[v].name, static_cast<ValueId>(v));
    for (size_t n = 0; n < graph.nodes().size(); ++n)
      nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
    for (const Step& step : program.setup) kept_.insert(step.out[0]);
  }

  /// As SharedStep::values has them, up to the last one that there is.
  std::vector<ValueId> of(const Step& step) const {
    std::vector<ValueId> out;
    for (size_t r = 0; r < step.out.size(); ++r) out.push_back(of_result(step, r));
    while (!out.empty() && out.back() < 0) out.pop_back();
    return out;
  }

 private:
  ValueId of_result(const Step& step, size_t r) const {
    if (kept_.count(step.out[r]) > 0) return -1;
    const auto node = nodes_.find(step.node.name);
    const auto named = ids_.find(program_.buffers[static_cast<size_t>(step.out[r])].name);
    ValueId value = -1;
    if (named != ids_.end() && graph_.value(named->second).producer >= 0) {
      value = named->second;
    } else if (node != nodes_.end()) {  // in windows, or in the place of what it replaces
      const std::vector<ValueId>& outputs = graph_.node(node->second).outputs;
      if (r < outputs.size()) value = outputs[r];
    }
    if (value < 0 && named != ids_.end()) {  // of one of several nodes, likewise
      const auto next = graph_.updates.find(named->second);
      if (next != graph_.updates.end() && producer(next->second).op == step.node.op)
        value = next->second;
    }
    return value >= 0 && graph_.phase_of(value) == step.phase ? value : -1;
  }
  const Node& producer(ValueId value) const { return graph_.node(graph_.value(value).producer); }

  const Graph& graph_;
  const Program& program_;
  std::map<std::string, ValueId> ids_;
  std::map<std::string, NodeId> nodes_;
  std::set<BufferId> kept_;  // from step to step
};

/// What tells a step from the others of its Program: how many collectives there are up to it, and
/// what it makes. So no step that is shared lies on different sides of a collective.
using Key = std::pair<size_t, std::vector<ValueId>>;

std::vector<std::pair<Key, size_t>> keys_of(const Graph& graph, const Program& program) {
  const MadeValues made(graph, program);
  std::vector<std::pair<Key, size_t>> out;
  size_t collectives = 0;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind == Step::Kind::collective) {
      out.push_back({{++collectives, {}}, s});
    } else if (std::vector<ValueId> values = made.of(step); !values.empty()) {
      out.push_back({{collectives, std::move(values)}, s});
    }
  }
  return out;
}

/// Places in `at` of a longest run that grows; where it is empty, there is no place.
std::vector<size_t> longest_growing(const std::vector<std::optional<size_t>>& at) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> last;  // of the runs of each length, the end that is lowest
  std::vector<size_t> before(at.size(), kNone);
  for (size_t i = 0; i < at.size(); ++i) {
    if (!at[i]) continue;
    const auto found = std::lower_bound(last.begin(), last.end(), *at[i],
                                        [&](size_t l, size_t place) { return *at[l] < place; });
    if (found != last.begin()) before[i] = *std::prev(found);
    if (found == last.end()) {
      last.push_back(i);
    } else {
      *found = i;
    }
  }
  std::vector<size_t> out;
  for (size_t i = last.empty() ? kNone : last.back(); i != kNone; i = before[i]) out.push_back(i);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<SharedStep> shared_steps(const Graph& graph, const std::vector<Program>& programs) {
  std::vector<Key> keys;
  std::vector<SharedStep> shared;
  for (auto& [key, step] : keys_of(graph, programs.at(0))) {
    shared.push_back({{step}, key.second});
    keys.push_back(std::move(key));
  }
  for (size_t rank = 1; rank < programs.size(); ++rank) {
    const auto theirs = keys_of(graph, programs[rank]);
    const std::map<Key, size_t> places(theirs.begin(), theirs.end());
    std::vector<std::optional<size_t>> at;
    for (const Key& key : keys) {
      const auto found = places.find(key);
      at.push_back(found == places.end() ? std::nullopt : std::optional(found->second));
    }
    std::vector<Key> kept_keys;
    std::vector<SharedStep> kept;
    for (const size_t i : longest_growing(at)) {
      shared[i].of_rank.push_back(*at[i]);
      kept.push_back(std::move(shared[i]));
      kept_keys.push_back(std::move(keys[i]));
    }
    shared = std::move(kept);
    keys = std::move(kept_keys);
  }
  return shared;
}

}  // namespace shardrun
