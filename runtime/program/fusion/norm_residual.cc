// The gradient that goes past a norm, added by the norm's gradient.
#include <set>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The norm's gradient then adds what the sum would. It stays where it stands.
void add_residual(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  const Step& sum = program.steps[s];
  if (!is_kernel(sum, "add") || !uses.passing(sum.out[0])) return;
  for (const size_t i : {0, 1}) {
    const BufferId dx = sum.in[i], other = sum.in[1 - i];
    if (dx == other || !uses.passing(dx) || uses.readers(dx).size() != 1) continue;
    const size_t made = uses.makers(dx)[0];
    Step& norm = program.steps[made];
    const bool layer = is_kernel(norm, "layer_norm_grad");
    if ((!layer && !is_kernel(norm, "rms_norm_grad")) || norm.in.size() != (layer ? 5 : 4) ||
        norm.out[0] != dx || norm.phase != sum.phase ||
        type_of(program, other) != type_of(program, dx) ||
        type_of(program, sum.out[0]) != type_of(program, dx) ||
        uses.makers(other) == std::vector{made} || uses.written_between(other, made, s)) {
      continue;
    }
    norm.in.push_back(other);
    norm.out[0] = sum.out[0];
    gone.insert(s);
    return;
  }
}

}  // namespace

void fuse_norm_residual(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    add_residual(program, uses, s, gone);
  });
}

}  // namespace shardrun
