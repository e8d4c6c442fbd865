// One pass over the graph: what can be partial, and which options that makes useful.
#include "planner/space/partial_kinds.h"

#include <algorithm>

namespace shardrun {
namespace {

unsigned bit(const Placement& placement) {
  return placement.kind == Placement::Kind::partial ? 1u << static_cast<unsigned>(placement.op) : 0;
}

}  // namespace

void drop_useless_partials(const Graph& graph, const Folding& folding,
                           const std::map<std::string, Sharding>& pinned,
                           std::vector<SpmdRule>& rules) {
  unsigned asked = 0;  // bit per ReduceOp
  for (const auto& [name, sharding] : pinned) {
    for (const Sharding::Partial& p : sharding.partial) asked |= 1u << static_cast<unsigned>(p.op);
  }
  std::vector<unsigned> made(graph.values().size(), asked);
  std::vector<std::vector<bool>> useful(rules.size());
  for (size_t c = 0; c < rules.size(); ++c) useful[c].assign(rules[c].options.size(), false);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const auto c = static_cast<size_t>(folding.class_of_node[n]);
    for (size_t o = 0; o < rules[c].options.size(); ++o) {
      const SpmdRule::Option& option = rules[c].options[o];
      bool any = false, wanted = false;
      for (size_t i = 0; i < option.in.size(); ++i) {
        any = any || bit(option.in[i]) != 0;
        wanted = wanted || (made[static_cast<size_t>(node.inputs[i])] & bit(option.in[i])) != 0;
      }
      if (any && !wanted) continue;
      useful[c][o] = true;
      for (size_t r = 0; r < option.out.size(); ++r)
        made[static_cast<size_t>(node.outputs[r])] |= bit(option.out[r]);
    }
  }
  for (size_t c = 0; c < rules.size(); ++c) {
    if (folding.classes[c].nodes.empty()) continue;
    size_t next = 0;
    std::erase_if(rules[c].options, [&](const auto&) { return !useful[c][next++]; });
  }
}

}  // namespace shardrun
