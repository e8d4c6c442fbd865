// Post-ops by rows that lie in cache.
#include "kernels/cpu/epilogue.h"

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

void Epilogue::run(const KernelArgs& args, float* sums) const {
  for (Stage& stage : stages_) {
    size_t next = 0;
    for (size_t i = 0; i < stage.in.size(); ++i)
      stage.in[i].data = i == stage.at ? sums : args.in[stage.operands[next++]].data;
    stage.out[0].data = &stage == &stages_.back() ? args.out[0].data : sums;
  }
  const int64_t tile = std::max<int64_t>(1, kTileBytes / 4 / std::max<int64_t>(columns_, 1));
  parallel_ranges((rows_ + tile - 1) / tile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (const Stage& stage : stages_) {
        stage.kernel.run_rows({stage.in, stage.out, nullptr}, t * tile,
                              std::min((t + 1) * tile, rows_));
      }
    }
  });
}

}  // namespace shardrun::cpu
