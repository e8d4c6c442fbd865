// The softmax over whole segments, and its gradient, in one pass.
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// What a step makes for `reader` alone, by an op that reads `x` first and `rows` last; null if it
/// is not so.
const Step* table_for(const Program& program, const Uses& uses, BufferId table, size_t reader,
                      std::string_view op) {
  const Step& step = program.steps[reader];
  const std::vector<size_t>& readers = uses.readers(table);
  if (!uses.passing(table) || readers.back() != reader) return nullptr;
  const size_t made = uses.makers(table)[0];
  const Step& maker = program.steps[made];
  if (!is_kernel(maker, op) || maker.phase != step.phase || maker.in[0] != step.in[0] ||
      maker.in.back() != step.in.back() || maker.node.attrs.i("offset", 0) != 0)
    return nullptr;
  for (BufferId b : maker.in) {
    if (b != table && uses.written_between(b, made, reader)) return nullptr;
  }
  return &maker;
}

/// The softmax over segments then finds their maxima and sums itself, and its gradient their sums.
void take_tables(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& step = program.steps[s];
  const bool grad = is_kernel(step, "segment_softmax_grad");
  if ((!grad && !is_kernel(step, "segment_softmax")) || step.in.size() != 4) return;
  const Step* table = nullptr;
  if (grad) {
    table = table_for(program, uses, step.in[2], s, "segment_softmax_reduce_grad");
    if (table == nullptr || table->in[1] != step.in[1] || uses.readers(step.in[2]).size() != 1)
      return;
  } else {
    table = table_for(program, uses, step.in[1], s, "segment_max");
    const Step* total = table_for(program, uses, step.in[2], s, "segment_exp_sum");
    if (table == nullptr || total == nullptr || total->in[1] != step.in[1] ||
        uses.readers(step.in[1]).size() != 2 || uses.readers(step.in[2]).size() != 1)
      return;
    gone.insert(uses.makers(step.in[2])[0]);
  }
  gone.insert(uses.makers(step.in[grad ? 2 : 1])[0]);
  step.node.attrs.set("size", table->node.attrs.i("size"));
  step.in = grad ? table->in : std::vector{step.in[0], step.in[3]};
  step.node.inputs = step.in;
}

}  // namespace

void fuse_segment_softmax(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    take_tables(program, uses, s, gone);
  });
}

}  // namespace shardrun
