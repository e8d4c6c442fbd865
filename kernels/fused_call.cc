// Whether a fused step and the step alone have one kernel.
#include "kernels/fused_call.h"

#include "graph/op_def.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

std::string_view impl_of(std::span<const KernelList* const> lists, const KernelCall& call) {
  for (const KernelList* list : lists) {
    for (const KernelImpl& k : *list) {
      if (k.op == call.node.op && (!k.refuses || !k.refuses(call))) return k.name;
    }
  }
  return "";
}

}  // namespace

bool runs_fused(std::span<const KernelList* const> lists, const KernelCall& call) {
  const Node alone = without_post_ops(call.node);
  const std::span<const TensorType> own = call.in.first(kOwnOperands);
  return runs_alike(lists, call, {alone, own, infer_types(alone, own)});
}

bool runs_alike(std::span<const KernelList* const> lists, const KernelCall& a,
                const KernelCall& b) {
  return impl_of(lists, a) == impl_of(lists, b);
}

}  // namespace shardrun
