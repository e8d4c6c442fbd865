// Gradients of looked-up rows, added where the sum is.
#include <set>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The sum then takes the rows itself. It stays where it stands.
void add_rows(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& sum = program.steps[s];
  if (!is_kernel(sum, "add")) return;
  for (const size_t i : {0, 1}) {
    const BufferId rows = sum.in[i], other = sum.in[1 - i];
    if (rows == other || !uses.passing(rows) || uses.readers(rows).size() != 1) continue;
    const size_t made = uses.makers(rows)[0];
    const Step& scatter = program.steps[made];
    const TensorType& type = type_of(program, sum.out[0]);
    if (!is_kernel(scatter, "gather_grad") || scatter.phase != sum.phase ||
        type_of(program, rows) != type || type_of(program, other) != type) {
      continue;
    }
    const std::vector<BufferId> in = {other, scatter.in[0], scatter.in[1]};
    if (uses.written_between(in[1], made, s) || uses.written_between(in[2], made, s)) continue;
    sum.node.op = "add_rows";
    sum.node.attrs = {{"axis", scatter.node.attrs.i("axis")},
                      {"offset", scatter.node.attrs.i("offset", 0)}};
    sum.in = sum.node.inputs = in;
    gone.insert(made);
    return;
  }
}

}  // namespace

void fuse_looked_up_rows(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    add_rows(program, uses, s, gone);
  });
}

}  // namespace shardrun
