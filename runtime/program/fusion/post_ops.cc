// Products and convolutions that end with the element-wise steps behind them.
#include <algorithm>
#include <optional>
#include <set>

#include "graph/op_def.h"
#include "program/fusion/rewrites.h"
#include "program/ops/post.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// Collects the steps between `p` and `s` that make a buffer of what stands at `p`: a bias in the
/// shape and type that a sum wants. False if it is made otherwise.
bool made_early(const Program& program, const Uses& uses, BufferId b, size_t p, size_t s,
                std::set<size_t>& steps) {
  if (uses.stands(b, p, s)) return true;
  if (!uses.passing(b)) return false;
  const size_t made = uses.makers(b)[0];
  const Step& step = program.steps[made];
  if (made <= p || made >= s || step.kind != Step::Kind::kernel || step.out.size() != 1 ||
      step.phase != program.steps[p].phase)
    return false;
  steps.insert(made);
  return std::all_of(step.in.begin(), step.in.end(),
                     [&](BufferId in) { return made_early(program, uses, in, p, s, steps); });
}

/// The product and the first step that reads it become one, at the place of either: of the first
/// where all that the second takes is there by then, or is small and can be, else of the second
/// where that keeps nothing alive for longer. Returns that place, or nullopt if they stay two.
std::optional<size_t> take_next(Program& program, Uses& uses, const TakesStep& takes, size_t p) {
  const Step& product = program.steps[p];
  const BufferId result = product.out[0];
  const std::vector<size_t>& readers = uses.readers(result);
  const bool keep = !uses.passing(result) || readers.size() != 1;
  if (readers.empty() || !uses.makes_alone(result) || (keep && product.out.size() > 1))
    return std::nullopt;
  const size_t s = readers[0];
  const Step& next = program.steps[s];
  if (next.kind != Step::Kind::kernel || !is_post_op(next.node.op) || next.phase != product.phase ||
      next.out.size() != 1 || type_of(program, next.out[0]).shape != type_of(program, result).shape)
    return std::nullopt;
  const BufferId out = next.out[0];
  const auto found = std::find(next.in.begin(), next.in.end(), result);
  const auto at = static_cast<size_t>(found - next.in.begin());
  Step fused = product;
  fused.in.insert(fused.in.end(), next.in.begin(), found);
  fused.in.insert(fused.in.end(), found + 1, next.in.end());
  // In place of an operand, or of what others still read, it stays as it is.
  const auto takes_also = [&](BufferId b) {
    return std::find(fused.in.begin(), fused.in.end(), b) != fused.in.end();
  };
  if (!uses.makes_alone(out) || takes_also(out) || takes_also(result)) return std::nullopt;
  const auto all = [](auto begin, auto end, auto&& holds) {
    return std::all_of(begin, end, holds);
  };
  const auto others = fused.in.begin() + static_cast<std::ptrdiff_t>(product.in.size());
  size_t place = p;
  std::set<size_t> early;
  if (!all(others, fused.in.end(), [&](BufferId b) {
        const bool small =
            byte_size(type_of(program, b)) * 16 <= byte_size(type_of(program, result));
        return small ? made_early(program, uses, b, p, s, early) : uses.stands(b, p, s);
      })) {
    place = s;
    early.clear();
    if (!all(product.in.begin(), product.in.end(),
             [&](BufferId b) { return uses.lives_to(b, s, p) && !uses.written_between(b, p, s); }))
      return std::nullopt;
  }
  fused.out[0] = out;
  if (keep) fused.out.push_back(result);
  fused.node.inputs = fused.in;
  Node follower = next.node;
  follower.inputs = next.in;
  add_post_op(fused.node, follower, at, keep);
  fused.node.outputs = fused.out;
  const std::vector<TensorType> in = types_of(program, fused.in),
                                types = types_of(program, fused.out);
  if (takes && !takes(fused.node, in, types)) return std::nullopt;
  uses.forget(program, p, s + 1);
  program.steps[p] = program.steps[s] = Step();
  program.steps[place] = std::move(fused);
  for (const size_t step : early) {  // in their order, each to where the product stands
    const auto at = program.steps.begin();
    std::rotate(at + static_cast<std::ptrdiff_t>(place), at + static_cast<std::ptrdiff_t>(step),
                at + static_cast<std::ptrdiff_t>(step) + 1);
    ++place;
  }
  uses.note(program, p, s + 1);
  return place;
}

/// Steps that take_next has emptied.
bool is_gone(const Step& step) { return step.in.empty() && step.out.empty(); }

}  // namespace

void fuse_post_ops(Program& program, const TakesStep& takes) {
  Uses uses(program);
  for (size_t first = 0; first < program.steps.size(); ++first) {
    std::optional<size_t> at = first;
    while (at && program.steps[*at].kind == Step::Kind::kernel && !is_gone(program.steps[*at]) &&
           (takes_post_ops(program.steps[*at].node.op) || has_post_ops(program.steps[*at].node.op)))
      at = take_next(program, uses, takes, *at);
  }
  std::set<size_t> gone;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (is_gone(program.steps[s])) gone.insert(s);
  }
  remove_gone(program, gone);
}

}  // namespace shardrun
