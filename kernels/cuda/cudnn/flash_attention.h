// Attention and its gradient by cuDNN's fused kernels, where these do what is asked for, or by
// products.
#pragma once

#include "kernels/cuda/cudnn/cudnn_or_own.h"
#include "kernels/cuda/own/attention.h"

namespace shardrun::cuda {

/// Heads are done a group at a time, as many as fit into a workspace of this size, and are a
/// batch.
inline constexpr int64_t kMostFlashBytes = 512 << 20;

inline CudnnAttention flash_attention_of(const KernelCall& call) {
  const AttentionSizes size(call);
  const AttentionAttrs attrs = AttentionAttrs::of(call.node);
  CudnnAttention a;
  a.gradient = size.gradient, a.heads = size.heads;
  a.queries = size.queries, a.keys = size.keys;
  a.width = size.width, a.value_width = size.value_width;
  a.scale = attrs.scale, a.causal = attrs.causal;
  const auto much = [&] {
    return a.workspace_bytes() > kMostFlashBytes || a.heads > LtShape::kMostBatch ||
           a.most_elements() > kMostCudnnElements;
  };
  for (int64_t parts = 1; a.heads > 1 && much(); ++parts) {
    if (size.heads % parts == 0) a.heads = size.heads / parts;
  }
  return a;
}

inline Refusal refuse_flash_attention(const KernelCall& call) {
  if (auto reason = refuse_attention(call)) return reason;
  const AttentionSizes size(call);
  const size_t first = size.gradient ? 1 : 0;
  if (auto reason = refuse_fused_attention(call.node, call.in[first], call.in[first + 2]))
    return reason;
  const CudnnAttention a = flash_attention_of(call);
  if (a.most_elements() > kMostCudnnElements) return "counts less than 2^31 elements of a tensor";
  if (a.heads < size.heads && a.heads * a.queries * 4 % 16 != 0)
    return str("has groups of ", a.heads, " heads whose sums of ", a.queries,
               " queries do not begin on 16 bytes");
  return std::nullopt;
}

/// cuDNN's, a group of heads at a time.
inline void run_flash_attention(const CudnnAttention& a, int64_t all_heads, const KernelArgs& args,
                                CudnnGraph& graph) {
  const int64_t q = a.queries * a.width * 2, k = a.keys * a.width * 2,
                v = a.keys * a.value_width * 2, y = a.queries * a.value_width * 2,
                lse = a.queries * 4;  // bytes of a head
  const auto &in = args.in, &out = args.out;
  for (int64_t head = 0; head < all_heads; head += a.heads) {
    const auto at = [&](const TensorView& tensor, int64_t bytes) -> void* {
      return static_cast<char*>(tensor.data) + head * bytes;
    };
    if (a.gradient) {
      void* const tensors[] = {at(in[1], q),  at(in[2], k),  at(in[3], v),
                               at(in[4], y),  at(in[0], y),  at(in[5], lse),
                               at(out[0], q), at(out[1], k), at(out[2], v)};
      graph.run(tensors, args.workspace, args.stream);
    } else {
      void* const tensors[] = {at(in[0], q), at(in[1], k), at(in[2], v), at(out[0], y),
                               at(out[1], lse)};
      graph.run(tensors, args.workspace, args.stream);
    }
  }
}

/// Those of `products` that cuDNN can be given too. `always`: by cuDNN whatever is faster.
template <class On>
KernelList flash_attention_kernels_on(const KernelList& products, bool always) {
  KernelList list;
  for (const KernelImpl& impl : products) {
    if (impl.op != "attention" && impl.op != "attention_grad") continue;
    const auto prepare = [always,
                          products = impl.prepare](const KernelCall& call) -> PreparedKernel {
      const CudnnAttention a = flash_attention_of(call);
      const auto by_cudnn = [a, heads = AttentionSizes(call).heads](const KernelArgs& args,
                                                                    CudnnGraph& graph) {
        run_flash_attention(a, heads, args, graph);
      };
      const auto kernel = std::make_shared<CudnnOrOwn<On>>(On::graph(a), a.key(), by_cudnn,
                                                           a.workspace_bytes(), products(call));
      return {[kernel, always](const KernelArgs& args) {
                always ? kernel->run_cudnns(args) : kernel->run(args);
              },
              kernel->workspace_bytes(), "cuda:cudnn"};
    };
    list.push_back({impl.op, "cuda:cudnn", refuse_flash_attention, prepare});
  }
  return list;
}

}  // namespace shardrun::cuda
