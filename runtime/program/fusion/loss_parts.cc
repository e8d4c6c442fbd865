// A loss over whole classes, in one pass.
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

bool is_over_last(const Step& step, const Program& program) {
  const auto rank = program.buffers[static_cast<size_t>(step.in[0])].type.shape.size();
  return step.in.size() == 1 && step.node.attrs.i("keepdims") == 0 &&
         step.node.attrs.ints("axes") == std::vector{static_cast<int64_t>(rank) - 1};
}

/// The join then takes the logits, and finds maxima and sums itself.
void take_loss(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& join = program.steps[s];
  if (!is_kernel(join, "cross_entropy_join")) return;
  const BufferId labels = join.in[0], top = join.in[1], all = join.in[2];
  const Step* sums = made_for(program, uses, all, "cross_entropy_sums", s, {s});
  if (sums == nullptr || sums->in[1] != labels || sums->in[2] != top) return;
  const size_t adds = uses.makers(all)[0];
  const Step* maximum = made_for(program, uses, top, "reduce_max", s, {adds, s});
  if (maximum == nullptr || maximum->in[0] != sums->in[0] || !is_over_last(*maximum, program))
    return;
  const TensorType& logits = program.buffers[static_cast<size_t>(sums->in[0])].type;
  if (sums->node.attrs.i("classes") != logits.shape.back()) return;  // others have the rest
  gone.insert({adds, uses.makers(top)[0]});
  join.node.op = "cross_entropy";
  join.in = join.node.inputs = {sums->in[0], labels};
}

}  // namespace

void fuse_loss_parts(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    take_loss(program, uses, s, gone);
  });
}

}  // namespace shardrun
