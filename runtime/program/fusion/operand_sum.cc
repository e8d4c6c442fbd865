// A bias's gradient from the product that makes its weight's.
#include <algorithm>
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/ops/post.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The product that multiplies away what is summed then makes the sum, too.
void sum_operand(Program& program, const Uses& uses, const TakesStep& takes, size_t s,
                 std::set<size_t>& gone) {
  const Step& sum = program.steps[s];
  if (!is_kernel(sum, "reduce_sum") || sum.node.attrs.i("keepdims", 1) != 0) return;
  const BufferId of = sum.in[0], out = sum.out[0];
  if (!uses.makes_alone(out)) return;
  for (size_t p : uses.readers(of)) {
    Step& product = program.steps[p];
    const std::vector<size_t>& readers = uses.readers(out);
    if (!is_kernel(product, "matmul") || product.in[0] == product.in[1] ||
        product.phase != sum.phase || uses.written_between(of, std::min(s, p), std::max(s, p)) ||
        std::any_of(readers.begin(), readers.end(), [&](size_t r) { return r <= p; }))
      continue;
    Step fused = product;
    add_operand_sum(fused.node, product.in[0] == of ? 0 : 1);
    const DType type = type_of(program, product.out[0]).dtype;
    const Node same = operand_sum(fused.node, type_of(program, of).dtype, type);
    if (type_of(program, out).dtype != type ||
        same.attrs.ints("axes") != sum.node.attrs.ints("axes"))
      continue;
    fused.out.push_back(out);
    fused.node.outputs = fused.out;
    if (takes && !takes(fused.node, types_of(program, fused.in), types_of(program, fused.out)))
      continue;
    product = std::move(fused);
    gone.insert(s);
    return;
  }
}

}  // namespace

void fuse_operand_sums(Program& program, const TakesStep& takes) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    sum_operand(program, uses, takes, s, gone);
  });
}

}  // namespace shardrun
