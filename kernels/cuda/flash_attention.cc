// Attention and its gradient through cuDNN's fused kernels, where these do what is asked for; else,
// and where cuDNN has none for the GPU, by products.
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/families.h"

namespace shardrun::cuda {
namespace {

/// Heads are done a group at a time, as many as have room in a workspace of this size.
constexpr int64_t kMostBytes = 512 << 20;

CudnnAttention attention_of(const KernelCall& call) {
  const AttentionSizes size(call);
  const AttentionAttrs attrs = AttentionAttrs::of(call.node);
  CudnnAttention a;
  a.gradient = size.gradient, a.heads = size.heads;
  a.queries = size.queries, a.keys = size.keys;
  a.width = size.width, a.value_width = size.value_width;
  a.scale = attrs.scale, a.causal = attrs.causal;
  for (int64_t parts = 1; a.heads > 1 && a.workspace_bytes() > kMostBytes; ++parts) {
    if (size.heads % parts == 0) a.heads = size.heads / parts;
  }
  return a;
}

Refusal refuses(const KernelCall& call) {
  if (auto reason = refuse_attention(call)) return reason;
  const AttentionSizes size(call);
  const AttentionAttrs attrs = AttentionAttrs::of(call.node);
  if (size.dtype != DType::bf16) return str("computes in bf16, not ", size.dtype);
  if (attrs.slope != 1 || attrs.has_mask || attrs.dropout > 0 || attrs.q_offset != 0)
    return "has no mask, slope, dropout or offset";
  for (int64_t width : {size.width, size.value_width}) {
    if (width % 8 != 0 || width > 128)
      return str("has heads of 8 to 128 in steps of 8, not ", width);
  }
  const CudnnAttention a = attention_of(call);
  if (a.heads < size.heads && a.heads * a.queries * 4 % 16 != 0)
    return str("has groups of ", a.heads, " heads whose sums of ", a.queries,
               " queries do not begin on 16 bytes");
  return std::nullopt;
}

class Flash {
 public:
  explicit Flash(const KernelCall& call)
      : attention_(attention_of(call)),
        all_heads_(AttentionSizes(call).heads),
        graph_(make_cudnn_graph(attention_)),
        products_(attention_by_products()[attention_.gradient ? 1 : 0].prepare(call)) {}

  int64_t workspace_bytes() const {
    return std::max(attention_.workspace_bytes(), products_.workspace_bytes);
  }

  void run(const KernelArgs& args) {
    std::string why;
    if (graph_ && !graph_->prepare(&why)) graph_ = nullptr;
    if (!graph_) return products_.run(args);
    const auto& a = attention_;
    const int64_t q = a.queries * a.width * 2, k = a.keys * a.width * 2,
                  v = a.keys * a.value_width * 2, y = a.queries * a.value_width * 2,
                  lse = a.queries * 4;  // bytes of a head
    const auto &in = args.in, &out = args.out;
    for (int64_t head = 0; head < all_heads_; head += a.heads) {
      const auto at = [&](const TensorView& tensor, int64_t bytes) -> void* {
        return static_cast<char*>(tensor.data) + head * bytes;
      };
      if (a.gradient) {
        void* const tensors[] = {at(in[1], q),  at(in[2], k),  at(in[3], v),
                                 at(in[4], y),  at(in[0], y),  at(in[5], lse),
                                 at(out[0], q), at(out[1], k), at(out[2], v)};
        graph_->run(tensors, args.workspace, args.stream);
      } else {
        void* const tensors[] = {at(in[0], q), at(in[1], k), at(in[2], v), at(out[0], y),
                                 at(out[1], lse)};
        graph_->run(tensors, args.workspace, args.stream);
      }
    }
  }

 private:
  CudnnAttention attention_;
  int64_t all_heads_;
  std::unique_ptr<CudnnGraph> graph_;  // null: cuDNN has none
  PreparedKernel products_;
};

PreparedKernel prepare(const KernelCall& call) {
  const auto flash = std::make_shared<Flash>(call);
  return {[flash](const KernelArgs& args) { flash->run(args); }, flash->workspace_bytes(),
          "cuda:cudnn"};
}

}  // namespace

KernelList attention_kernels() {
  KernelList list;
  for (const char* op : {"attention", "attention_grad"})
    list.push_back({op, "cuda:cudnn", refuses, prepare});
  for (KernelImpl& impl : attention_by_products()) list.push_back(std::move(impl));
  return list;
}

}  // namespace shardrun::cuda
