// Attention over whole keys, in one pass.
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The join then takes q, k and v, and does all of it.
void take_attention(Program& program, const Uses& uses, size_t s, std::set<size_t>& gone) {
  Step& join = program.steps[s];
  if (!is_kernel(join, "attention_join")) return;
  const BufferId top = join.in[0], o = join.in[1], total = join.in[2];
  const Step* sums = made_for(program, uses, o, "attention_sums", s, {s});
  if (sums == nullptr || sums->out[1] != total || sums->in[3] != top || !uses.passing(total) ||
      uses.readers(total) != std::vector{s})
    return;
  const size_t adds = uses.makers(o)[0];
  const Step* maximum = made_for(program, uses, top, "attention_top", s, {adds, s});
  std::vector<BufferId> scored = {sums->in[0], sums->in[1]}, whole = sums->in;
  whole.erase(whole.begin() + 3);
  if (sums->node.attrs.i("has_mask") != 0) scored.push_back(whole[3]);
  const TensorType& keys = program.buffers[static_cast<size_t>(sums->in[1])].type;
  if (maximum == nullptr || maximum->in != scored ||
      sums->node.attrs.i("keys") != keys.shape[2])  // others have the rest
    return;
  gone.insert({adds, uses.makers(top)[0]});
  join.node.op = "attention";
  join.node.attrs = {};
  for (const auto& [name, value] : sums->node.attrs.all()) {
    if (name != "keys") join.node.attrs.set(name, value);
  }
  join.in = join.node.inputs = whole;
}

}  // namespace

void fuse_attention_parts(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    take_attention(program, uses, s, gone);
  });
}

}  // namespace shardrun
