// Post-ops by rows that lie in cache.
#include "kernels/cpu/products/epilogue.h"

#include "graph/ops/elementwise.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kTileBytes = int64_t{64} << 10;  // of sums, which all of them go over

const KernelImpl* kernel_of(const KernelCall& call) {
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.op == call.node.op && (!impl.refuses || !impl.refuses(call))) return &impl;
  }
  return nullptr;
}

}  // namespace

std::optional<std::string> refuse_more_results(const KernelCall& call) {
  if (call.out.size() == 1) return std::nullopt;
  return "gives one result, neither an intermediate one nor a sum of an operand";
}

std::optional<std::vector<GemmPost>> gemm_posts(const KernelCall& call,
                                                const std::function<bool(const Shape&)>& lies) {
  std::vector<GemmPost> out;
  for (const PostOp& post : post_ops(call.node)) {
    GemmPost g;
    g.op = post.node.op;
    const bool tanh = post.node.attrs.s("approximate", "none") == "tanh";
    if (g.op == "gelu" && tanh) g.op = "gelu_tanh";
    if (g.op == "gelu_grad") g.op = tanh ? "gelu_tanh_grad" : "gelu_erf_grad";
    if (g.op == "elu") g.alpha = activation_attr(post.node, "alpha");
    if (post.operands.size() > 1) return std::nullopt;
    if (!post.operands.empty()) {
      const TensorType& operand = call.in[post.operands[0]];
      const bool of_sums_last = g.op.ends_with("_grad"),
                 turned = g.op != "add" && g.op != "mul" && (post.at == 1) != of_sums_last;
      if (turned || !is_f32_or_bf16(operand.dtype) || !lies(operand.shape)) return std::nullopt;
      g.count = element_count(operand.shape);
      g.dtype = operand.dtype;
    }
    out.push_back(g);
  }
  return out.size() <= kMostPosts ? std::optional(out) : std::nullopt;
}

PostOperands::PostOperands(const KernelArgs& args) {
  for (const TensorView& operand : args.in.subspan(kOwnOperands)) data[count++] = operand.data;
}

std::shared_ptr<const Epilogue> Epilogue::make(const KernelCall& call, std::string* why) {
  auto made = std::make_shared<Epilogue>();
  const Shape& shape = call.out[0].shape;
  made->columns_ = shape.empty() ? 1 : shape.back();
  made->rows_ = made->columns_ == 0 ? 0 : element_count(shape) / made->columns_;
  const TensorType sums{DType::f32, shape};
  const std::vector<PostOp> posts = post_ops(call.node);
  for (const PostOp& post : posts) {
    std::vector<TensorType> in;
    for (size_t i : post.operands) in.push_back(call.in[i]);
    in.insert(in.begin() + static_cast<std::ptrdiff_t>(post.at), sums);
    const std::vector<TensorType> out = {&post == &posts.back() ? call.out[0] : sums};
    const KernelCall stage{post.node, in, out};
    const KernelImpl* impl = kernel_of(stage);
    Stage s;
    if (impl != nullptr) s.kernel = impl->prepare(stage);
    if (!s.kernel.run_rows) {
      *why = post.node.op + " has no kernel that works by rows";
      return nullptr;
    }
    s.at = post.at, s.operands = post.operands;
    for (const TensorType& type : in) s.in.push_back({nullptr, type});
    s.out.push_back({nullptr, out[0]});
    made->stages_.push_back(std::move(s));
  }
  return made;
}

void Epilogue::run(const KernelArgs& args, float* sums, int64_t begin, int64_t end) const {
  for (Stage& stage : stages_) {
    size_t next = 0;
    for (size_t i = 0; i < stage.in.size(); ++i)
      stage.in[i].data = i == stage.at ? sums : args.in[stage.operands[next++]].data;
    stage.out[0].data = &stage == &stages_.back() ? args.out[0].data : sums;
  }
  const int64_t tile = std::max<int64_t>(1, kTileBytes / 4 / std::max<int64_t>(columns_, 1));
  parallel_ranges((end - begin + tile - 1) / tile, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (const Stage& stage : stages_) {
        stage.kernel.run_rows({stage.in, stage.out, nullptr}, begin + t * tile,
                              std::min(begin + (t + 1) * tile, end));
      }
    }
  });
}

}  // namespace shardrun::cpu
