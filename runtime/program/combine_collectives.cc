// Which neighbours one call can do.
#include "program/combine_collectives.h"

#include <algorithm>

#include "program/memory.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

bool is_all_reduce(const Step& step) {
  return step.kind == Step::Kind::collective &&
         step.collective->kind == Collective::Kind::all_reduce;
}

bool go_together(const Program& program, const Step& a, const Step& b) {
  return a.phase == b.phase && a.collective->axes == b.collective->axes &&
         a.collective->op == b.collective->op &&
         type_of(program, a.in[0]).dtype == type_of(program, b.in[0]).dtype;
}

}  // namespace

void combine_collectives(Program& program) {
  const Uses uses(program);
  const std::vector<bool> in_place = runs_in_place(program);
  std::vector<Step>& steps = program.steps;
  const auto may_join = [&](size_t s) {
    return is_all_reduce(steps[s]) && in_place[s] && uses.lives_to(steps[s].out[0], s + 1, s);
  };
  int32_t call = 0;
  for (size_t first = 0; first < steps.size(); ++first) {
    if (!may_join(first)) continue;
    size_t end = first + 1;
    const auto is_made_here = [&](BufferId b) {
      return std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(first),
                         steps.begin() + static_cast<std::ptrdiff_t>(end),
                         [&](const Step& step) { return step.out[0] == b; });
    };
    while (end < steps.size() && may_join(end) && go_together(program, steps[first], steps[end]) &&
           !is_made_here(steps[end].in[0]))
      ++end;
    if (end > first + 1) ++call;
    for (size_t s = first; s < end && end > first + 1; ++s) steps[s].call = call;
    first = end - 1;
  }
}

}  // namespace shardrun
