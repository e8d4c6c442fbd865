// Losses over whole classes, and attention over whole keys, in one pass.
#include <set>
#include <vector>

#include "program/fusion/rewrites.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

/// The one step that makes `made`, an `op` of the phase of step `s`; null if others than `readers`
/// know of it, or what it reads is written before `s`.
const Step* made_for(const Program& program, const Uses& uses, BufferId made, std::string_view op,
                     size_t s, const std::vector<size_t>& readers) {
  if (!uses.passing(made) || uses.readers(made) != readers) return nullptr;
  const size_t by = uses.makers(made)[0];
  const Step& maker = program.steps[by];
  if (!is_kernel(maker, op) || maker.phase != program.steps[s].phase) return nullptr;
  for (BufferId b : maker.in) {
    if (uses.written_between(b, by, s)) return nullptr;
  }
  return &maker;
}

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

void fuse_loss_parts(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    take_loss(program, uses, s, gone);
  });
}

void fuse_attention_parts(Program& program, const TakesStep&) {
  rewrite_steps(program, [&](const Uses& uses, size_t s, std::set<size_t>& gone) {
    take_attention(program, uses, s, gone);
  });
}

}  // namespace shardrun
