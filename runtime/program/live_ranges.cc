// Live ranges of buffers, and which of them may lie in another's memory.
#include "program/live_ranges.h"

#include <algorithm>

#include "graph/op_def.h"

namespace shardrun {

std::vector<LiveRange> live_ranges(const Program& program, const std::vector<BufferId>& holders) {
  std::vector<LiveRange> live(program.buffers.size());
  const int end = static_cast<int>(program.steps.size());
  auto at = [&](BufferId b) -> LiveRange& { return live[static_cast<size_t>(b)]; };
  for (const Binding& b : program.bindings) {
    LiveRange& l = at(b.buffer);
    l.first = -1;
    l.persistent = is_persistent(b.role);
    l.zeroed = b.zeroed_each_step;
    // What is the same in the next step need not be filled again, batches too.
    if (!l.zeroed) l.last = end;
  }
  for (const Step& step : program.setup) {
    for (BufferId b : step.out) at(b) = {-1, end, true};
  }
  for (int s = 0; s < end; ++s) {
    const Step& step = program.steps[static_cast<size_t>(s)];
    for (BufferId b : step.in) {
      SR_REQUIRE(at(b).first <= s, internal, "step '", step.node.name, "' reads '",
                 program.buffers[static_cast<size_t>(b)].name, "' before it is made");
      at(b).last = std::max(at(b).last, s);
    }
    for (BufferId b : step.out) {
      at(b).first = std::min(at(b).first, s);
      at(b).last = std::max(at(b).last, s);
    }
  }
  for (const auto* list : {&program.outputs, &program.metrics}) {
    for (const Binding& b : *list) at(b.buffer).last = end;
  }
  for (size_t b = 0; b < holders.size(); ++b)
    at(holders[b]).last = std::max(at(holders[b]).last, live[b].last);
  for (LiveRange& l : live) {  // what the micro phase reads last is there in the next micro-batch
    const bool ends = l.last >= 0 && l.last < end &&
                      program.steps[static_cast<size_t>(l.last)].phase == Phase::update;
    if (l.zeroed && !ends) l.last = end;
  }
  return live;
}

std::vector<std::pair<int, int>> alias_pairs(const Step& step) {
  if (step.kind == Step::Kind::kernel) return op_def(step.node.op).in_place;
  if (step.collective->traits().in_place) return {{0, 0}};
  return {};
}

bool may_alias(const Program& program, const std::vector<LiveRange>& live,
               const std::vector<BufferId>& holders, int s, std::pair<int, int> pair) {
  const Step& step = program.steps[static_cast<size_t>(s)];
  const auto [r, o] = pair;
  if (static_cast<size_t>(r) >= step.out.size() || static_cast<size_t>(o) >= step.in.size())
    return false;
  const auto holder = [&](BufferId b) { return holders[static_cast<size_t>(b)]; };
  const BufferId result = step.out[static_cast<size_t>(r)],
                 operand = holder(step.in[static_cast<size_t>(o)]);
  if (result == operand || holder(result) != result) return false;
  const LiveRange &from = live[static_cast<size_t>(operand)],
                  &to = live[static_cast<size_t>(result)];
  return (!from.persistent || from.zeroed) && !to.persistent && from.last == s && to.first == s &&
         std::count_if(step.in.begin(), step.in.end(),
                       [&](BufferId b) { return holder(b) == operand; }) == 1 &&
         byte_size(program.buffers[static_cast<size_t>(operand)].type) ==
             byte_size(program.buffers[static_cast<size_t>(result)].type);
}
}  // namespace shardrun
