// The CPU kernels' families put together.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/as_f32.h"

namespace shardrun {

const KernelList& cpu_kernels() {
  static const KernelList list = [] {
    const auto by_onednn = {cpu::matmul_kernels, cpu::conv_kernels, cpu::attention_kernels,
                            cpu::recurrence_kernels};
    const auto others = {cpu::pack_kernels,
                         cpu::elementwise_kernels,
                         cpu::reduce_kernels,
                         cpu::movement_kernels,
                         cpu::indexing_kernels,
                         cpu::pool_kernels,
                         cpu::batch_norm_kernels,
                         cpu::norm_kernels,
                         cpu::segment_kernels,
                         cpu::softmax_kernels,
                         cpu::random_kernels,
                         cpu::optimizer_kernels,
                         cpu::scan_kernels,
                         cpu::arg_extreme_kernels,
                         cpu::top_k_kernels,
                         cpu::scatter_kernels,
                         cpu::cached_attention_kernels};
    KernelList all;
    const auto add = [&](KernelList family) {
      for (KernelImpl& impl : family) all.push_back(std::move(impl));
    };
    add(cpu::depthwise_kernels());
    for (auto family : by_onednn) add(cpu::multiplies_bf16() ? family() : cpu::as_f32(family()));
    for (auto family : others) add(family());
    return all;
  }();
  return list;
}

std::optional<WeightLayout> packed_weights(const KernelCall& call) {
  const bool bf16 = call.in[0].dtype == DType::bf16 || call.in[1].dtype == DType::bf16;
  if (bf16 && !cpu::multiplies_bf16()) return std::nullopt;  // it is widened for each product
  return call.node.op.starts_with("conv") ? cpu::conv_layout(call) : cpu::matmul_layout(call);
}

std::string onednn_version() {
  const dnnl::version_t& v = *dnnl::version();
  return str(v.major, ".", v.minor, ".", v.patch);
}

}  // namespace shardrun
