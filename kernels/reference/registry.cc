// The reference kernels' families put together, and running one node with them.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "graph/op_def.h"
#include "kernels/kernel.h"
#include "kernels/reference/families.h"

namespace shardrun {
namespace {

/// A map's nodes do not move, so a kernel that was given out stays valid when one is added.
struct UserKernels {
  std::map<std::string, KernelImpl, std::less<>> by_op;
  std::shared_mutex mutex;
};

UserKernels& user_kernels() {
  static UserKernels instance;
  return instance;
}

}  // namespace

const KernelList& reference_kernels() {
  static const KernelList list = [] {
    KernelList all;
    for (auto family :
         {reference::elementwise_kernels, reference::reduce_kernels, reference::movement_kernels,
          reference::indexing_kernels, reference::matmul_kernels, reference::conv_kernels,
          reference::pool_kernels, reference::batch_norm_kernels, reference::norm_kernels,
          reference::segment_kernels, reference::softmax_kernels, reference::attention_kernels,
          reference::cached_attention_kernels, reference::recurrence_kernels,
          reference::random_kernels, reference::optimizer_kernels, reference::post_kernels}) {
      for (KernelImpl& impl : family()) all.push_back(std::move(impl));
    }
    return all;
  }();
  return list;
}

const KernelImpl* user_kernel(std::string_view op) {
  UserKernels& users = user_kernels();
  const std::shared_lock lock(users.mutex);
  const auto it = users.by_op.find(op);
  return it == users.by_op.end() ? nullptr : &it->second;
}

void register_reference_kernel(KernelImpl impl) {
  SR_REQUIRE(impl.prepare != nullptr, invalid_input, "reference kernel of op '", impl.op,
             "' has no prepare function");
  const KernelList& own = reference_kernels();
  const bool built_in =
      std::any_of(own.begin(), own.end(), [&](const KernelImpl& k) { return k.op == impl.op; });
  UserKernels& users = user_kernels();
  const std::unique_lock lock(users.mutex);
  SR_REQUIRE(!built_in && users.by_op.count(impl.op) == 0, invalid_input, "op '", impl.op,
             "' already has a reference kernel");
  std::string op = impl.op;
  users.by_op.emplace(std::move(op), std::move(impl));
}

std::vector<Tensor> run_reference(const Node& node, std::span<const Tensor> in) {
  std::vector<TensorType> in_types, out_types;
  std::vector<TensorView> in_views, out_views;
  for (const Tensor& t : in) {
    in_types.push_back(t.type());
    in_views.push_back(t.view());
  }
  out_types = infer_types(node, in_types);
  std::vector<Tensor> out;
  for (const TensorType& type : out_types) {
    out.emplace_back(type);
    out_views.push_back(out.back().view());
  }
  const KernelList* lists[] = {&reference_kernels()};
  const PreparedKernel kernel = select_kernel(lists, {node, in_types, out_types});
  // A vector is aligned to 16 bytes only; kernels expect 64.
  std::vector<char> scratch(static_cast<size_t>(kernel.workspace_bytes) + 64);
  void* workspace = scratch.data();
  size_t space = scratch.size();
  std::align(64, static_cast<size_t>(kernel.workspace_bytes), workspace, space);
  kernel.run({in_views, out_views, workspace});
  return out;
}

}  // namespace shardrun
