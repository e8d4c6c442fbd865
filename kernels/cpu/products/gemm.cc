// One oneDNN matmul.
#include "kernels/cpu/products/gemm.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/products/tile_gemm.h"

namespace shardrun::cpu {
namespace {

class DnnlGemm : public Gemm {
 public:
  /// `at_once`: threads of a parallel region that may run it at once.
  DnnlGemm(const dnnl::matmul::primitive_desc& pd,
           const std::vector<std::pair<int, dnnl::memory::desc>>& operands, bool one_thread,
           int at_once, BlockLayout blocks)
      : one_thread_(one_thread),
        blocks_(blocks),
        scratch_bytes_(static_cast<int64_t>(pd.scratchpad_desc().get_size())) {
    const dnnl::matmul primitive(pd);
    std::vector<std::pair<int, dnnl::memory::desc>> arguments = {
        {DNNL_ARG_SRC, pd.src_desc()},
        {DNNL_ARG_WEIGHTS, pd.weights_desc()},
        {DNNL_ARG_DST, pd.dst_desc()},
        {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
    arguments.insert(arguments.end(), operands.begin(), operands.end());
    for (int i = 0; i < at_once; ++i) executions_.emplace_back(primitive, arguments);
  }

  int64_t scratch_bytes() const override { return scratch_bytes_; }

  BlockLayout blocks() const override { return blocks_; }

  void run(const void* a, const void* b, void* c, void* scratch,
           std::span<const void* const> operands) const override {
    const ThreadCount threads(one_thread_ && !omp_in_parallel());
    const auto thread = static_cast<size_t>(one_thread_ ? omp_get_thread_num() : 0);
    SR_REQUIRE(thread < executions_.size(), internal, "a product made for ", executions_.size(),
               " threads runs on thread ", thread);
    const void* data[4 + kMostPosts] = {a, b, c, scratch};
    std::copy(operands.begin(), operands.end(), data + 4);
    executions_[thread].run(std::span<const void* const>(data, 4 + operands.size()));
  }

 private:
  bool one_thread_;
  BlockLayout blocks_;
  int64_t scratch_bytes_;
  std::vector<Execution> executions_;  // one for each thread
};

/// The layout that oneDNN chose for b[k, n], if it is of the kind that pack_blocks makes.
std::optional<BlockLayout> blocks_of(const dnnl::memory::desc& b, DType dtype) {
  const dnnl_memory_desc_t& d = b.data;
  const dnnl_blocking_desc_t& f = d.format_desc.blocking;
  const int64_t pair = dtype == DType::bf16 ? 2 : 1;
  if (d.ndims != 2 || d.format_kind != dnnl_blocked || d.extra.flags != 0 || d.offset0 != 0 ||
      f.inner_nblks != (pair == 2 ? 3 : 2) || f.inner_idxs[0] != 0 || f.inner_blks[0] != 16 ||
      f.inner_idxs[1] != 1 || f.inner_blks[1] % 16 != 0 ||
      (pair == 2 && (f.inner_idxs[2] != 0 || f.inner_blks[2] != 2))) {
    return std::nullopt;
  }
  const BlockLayout out{f.inner_blks[1], 16 * pair};
  const int64_t block = out.width * out.depth;
  if (f.strides[0] != block || f.strides[1] != d.padded_dims[0] / out.depth * block ||
      static_cast<int64_t>(b.get_size()) != out.bytes(d.dims[0], d.dims[1], dtype)) {
    return std::nullopt;
  }
  return out;
}

/// All of a shape's. Operands are described with the number of the post-op that takes them.
bool append(const GemmShape& s, dnnl::post_ops& ops,
            std::vector<std::pair<int, dnnl::memory::desc>>& operands, std::string* why) {
  SR_REQUIRE(s.post.size() <= kMostPosts, internal, "a product has ", s.post.size(), " post-ops");
  for (const GemmPost& post : s.post) {
    Shape dims(s.c.size(), 1), strides = row_major_strides(dims);
    if (post.count == element_count(s.c)) {
      dims = s.c, strides = s.c_strides;
    } else if (post.count == s.c.back()) {
      dims.back() = post.count;
      strides = row_major_strides(dims);
    } else if (post.count > 1) {
      *why = post.op + " behind it has an operand that is neither the result's size nor a row's";
      return false;
    }
    const dnnl::memory::desc operand = describe(dims, strides, post.dtype);
    const int index = ops.len();
    if (!append(post, operand, ops)) {
      *why = "oneDNN has no post-op " + post.op;
      return false;
    }
    if (post.count > 0)
      operands.emplace_back(DNNL_ARG_ATTR_MULTIPLE_POST_OP(index) | DNNL_ARG_SRC_1, operand);
  }
  return true;
}

}  // namespace

// Its relu, max and min make a number of NaN.
bool append(const GemmPost& post, const dnnl::memory::desc& operand, dnnl::post_ops& ops) {
  using dnnl::algorithm;
  static const std::map<std::string, algorithm> pairs = {{"add", algorithm::binary_add},
                                                         {"sub", algorithm::binary_sub},
                                                         {"mul", algorithm::binary_mul},
                                                         {"div", algorithm::binary_div}};
  static const std::map<std::string, algorithm> single = {
      {"gelu", algorithm::eltwise_gelu_erf}, {"gelu_tanh", algorithm::eltwise_gelu_tanh},
      {"tanh", algorithm::eltwise_tanh},     {"sigmoid", algorithm::eltwise_logistic},
      {"elu", algorithm::eltwise_elu},       {"exp", algorithm::eltwise_exp}};
  if (post.count > 0) {
    const auto found = pairs.find(post.op);
    if (found == pairs.end()) return false;
    ops.append_binary(found->second, operand);
    return true;
  }
  const auto found = single.find(post.op);
  if (found == single.end()) return false;
  ops.append_eltwise(1.0f, found->second, static_cast<float>(post.alpha), 0.0f);
  return true;
}

std::shared_ptr<const Gemm> Gemm::make(const GemmShape& s, std::string* why) {
  const int at_once = s.one_thread ? omp_get_max_threads() : 1;
  const ThreadCount threads(s.one_thread);
  if (auto by_tiles = make_tile_gemm(s)) return by_tiles;
  for (const Shape* shape : {&s.a, &s.b, &s.c}) {
    for (const int64_t dim : *shape) {  // oneDNN 2.6 counts in 32 bits, and divides by what is left
      if (dim <= std::numeric_limits<int32_t>::max()) continue;
      *why = "a dim of " + std::to_string(dim) + " is beyond what oneDNN counts";
      return nullptr;
    }
  }
  try {
    dnnl::primitive_attr attr = caller_scratch();
    dnnl::post_ops ops;
    std::vector<std::pair<int, dnnl::memory::desc>> operands;
    if (s.accumulate) ops.append_sum(1.0f);
    if (!append(s, ops, operands, why)) return nullptr;
    attr.set_post_ops(ops);
    const dnnl::matmul::desc desc(
        describe(s.a, s.a_strides, s.in),
        s.b_in_blocks ? dnnl::memory::desc(s.b, onednn_type(s.in), dnnl::memory::format_tag::any)
                      : describe(s.b, s.b_strides, s.in),
        describe(s.c, s.c_strides, s.out));
    const dnnl::matmul::primitive_desc pd(desc, attr, cpu_engine());
    const std::string impl = pd.impl_info_str();
    if (impl.starts_with("ref")) {
      *why = "oneDNN has only its slow reference for these strides";
      return nullptr;
    }
    std::optional<BlockLayout> blocks;
    if (s.b_in_blocks && !(blocks = blocks_of(pd.weights_desc(), s.in))) {
      *why = "oneDNN's layout for the second operand is not one of blocks of 16 rows";
      return nullptr;
    }
    return std::make_shared<DnnlGemm>(pd, operands, s.one_thread, at_once,
                                      blocks.value_or(BlockLayout{}));
  } catch (const dnnl::error& e) {
    *why = std::string("oneDNN refuses: ") + e.what();
    return nullptr;
  }
}

}  // namespace shardrun::cpu
