// The choice among a node's kernels: the first that does not refuse.
#include "kernels/kernel.h"

namespace shardrun {

PreparedKernel select_kernel(std::span<const KernelList* const> lists, const KernelCall& call) {
  std::string refusals;
  const auto prepare = [&](const KernelImpl& impl) -> std::optional<PreparedKernel> {
    const std::optional<std::string> reason =
        impl.refuses == nullptr ? std::nullopt : impl.refuses(call);
    if (reason.has_value()) {
      refusals += "; " + impl.name + ": " + *reason;
      return std::nullopt;
    }
    PreparedKernel prepared = impl.prepare(call);
    if (prepared.impl.empty()) prepared.impl = impl.name;
    return prepared;
  };
  for (const KernelList* list : lists) {
    for (const KernelImpl& impl : *list) {
      if (!impl.op.empty() && impl.op != call.node.op) continue;
      if (auto prepared = prepare(impl)) return *std::move(prepared);
    }
  }
  if (const KernelImpl* own = user_kernel(call.node.op)) {
    if (auto prepared = prepare(*own)) return *std::move(prepared);
  }
  fail(ErrorKind::unsupported, "op '", call.node.op, "' ('", call.node.name,
       "') has no kernel for it",
       refusals.empty() ? "; register_reference_kernel adds one" : refusals);
}

}  // namespace shardrun
