// Cross-entropy and its gradient from one reading of the logits.
#include <algorithm>
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// Steps behind `s` and before `end` that take what it makes, or what these make.
std::vector<size_t> dependents(const Program& program, size_t s, size_t end) {
  std::set<BufferId> made(program.steps[s].out.begin(), program.steps[s].out.end());
  std::vector<size_t> out;
  for (size_t t = s + 1; t < end; ++t) {
    const Step& step = program.steps[t];
    if (std::none_of(step.in.begin(), step.in.end(), [&](BufferId b) { return made.count(b) > 0; }))
      continue;
    made.insert(step.out.begin(), step.out.end());
    out.push_back(t);
  }
  return out;
}

/// May the steps `later`, in their order, run after step `end`? Not if a step that they then follow
/// writes what they read or write.
bool may_follow(const Program& program, const std::vector<size_t>& later, size_t end) {
  for (size_t moved : later) {
    const Step& step = program.steps[moved];
    for (size_t t = moved + 1; t <= end; ++t) {
      if (std::find(later.begin(), later.end(), t) != later.end()) continue;
      for (BufferId b : program.steps[t].out) {
        for (const auto* list : {&step.in, &step.out}) {
          if (std::find(list->begin(), list->end(), b) != list->end()) return false;
        }
      }
    }
  }
  return true;
}

/// The losses are then made where their gradient is, and what is made of them behind it.
void make_with_gradient(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  const Step& loss = program.steps[s];
  const BufferId lse = loss.out[1];
  if (!uses.passing(lse) || uses.readers(lse).size() != 1) return;
  const size_t g = uses.readers(lse)[0];
  const Step& grad = program.steps[g];
  if (!is_kernel(grad, "cross_entropy_grad") || grad.phase != loss.phase ||
      grad.in[1] != loss.in[0] || grad.in[2] != loss.in[1] || grad.in[3] != lse ||
      grad.node.attrs.i("offset", 0) != 0) {
    return;
  }
  std::vector<size_t> later = dependents(program, s, g);
  const auto reads = [&](size_t t) {
    const std::vector<BufferId>& out = program.steps[t].out;
    return std::find(out.begin(), out.end(), grad.in[0]) != out.end();
  };
  if (std::any_of(later.begin(), later.end(), reads) || uses.written_between(loss.in[0], s, g) ||
      uses.written_between(loss.in[1], s, g) || !may_follow(program, later, g))
    return;
  Step both = loss;
  both.node.op = "cross_entropy_and_grad";
  both.in = both.node.inputs = {grad.in[0], loss.in[0], loss.in[1]};
  both.out = both.node.outputs = {loss.out[0], grad.out[0]};
  std::vector<Step> order;
  for (size_t t = s + 1; t < g; ++t) {
    if (std::find(later.begin(), later.end(), t) == later.end())
      order.push_back(std::move(program.steps[t]));
  }
  order.push_back(std::move(both));
  for (size_t t : later) order.push_back(std::move(program.steps[t]));
  gone.insert(g);
  std::move(order.begin(), order.end(), program.steps.begin() + static_cast<std::ptrdiff_t>(s));
}

}  // namespace

void fuse_loss_gradient(Program& program, const TakesStep&) {
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (!is_kernel(program.steps[s], "cross_entropy")) continue;
    std::set<size_t> gone;
    make_with_gradient(program, Uses(program), s, gone);  // moves steps: uses are found anew
    remove_gone(program, gone);
  }
}

}  // namespace shardrun
