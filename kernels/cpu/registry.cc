// The CPU kernels' families put together.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/onednn.h"

namespace shardrun {

const KernelList& cpu_kernels() {
  static const KernelList list = [] {
    KernelList all;
    for (auto family :
         {cpu::elementwise_kernels, cpu::reduce_kernels, cpu::movement_kernels,
          cpu::indexing_kernels, cpu::matmul_kernels, cpu::conv_kernels, cpu::pool_kernels,
          cpu::batch_norm_kernels, cpu::norm_kernels, cpu::segment_kernels, cpu::softmax_kernels,
          cpu::attention_kernels, cpu::dropout_kernels, cpu::optimizer_kernels}) {
      for (KernelImpl& impl : family()) all.push_back(std::move(impl));
    }
    return all;
  }();
  return list;
}

std::optional<WeightLayout> packed_weights(const KernelCall& call) {
  return call.node.op.starts_with("conv") ? cpu::conv_layout(call) : cpu::matmul_layout(call);
}

std::string onednn_version() {
  const dnnl::version_t& v = *dnnl::version();
  return str(v.major, ".", v.minor, ".", v.patch);
}

}  // namespace shardrun
