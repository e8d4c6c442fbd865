// One oneDNN matmul.
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/onednn.h"

namespace shardrun::cpu {
namespace {

class DnnlGemm : public Gemm {
 public:
  DnnlGemm(dnnl::matmul::primitive_desc pd, bool one_thread)
      : one_thread_(one_thread),
        pd_(std::move(pd)),
        primitive_(pd_),
        src_(pd_.src_desc()),
        weights_(pd_.weights_desc()),
        dst_(pd_.dst_desc()),
        scratch_(pd_.scratchpad_desc()) {}

  int64_t scratch_bytes() const override { return static_cast<int64_t>(scratch_.get_size()); }

  void run(const void* a, const void* b, void* c, void* scratch) const override {
    const ThreadCount threads(one_thread_ && !omp_in_parallel());
    const dnnl::engine& engine = cpu_engine();
    dnnl::stream stream(engine);
    primitive_.execute(stream,
                       {{DNNL_ARG_SRC, dnnl::memory(src_, engine, const_cast<void*>(a))},
                        {DNNL_ARG_WEIGHTS, dnnl::memory(weights_, engine, const_cast<void*>(b))},
                        {DNNL_ARG_DST, dnnl::memory(dst_, engine, c)},
                        {DNNL_ARG_SCRATCHPAD, dnnl::memory(scratch_, engine, scratch)}});
    stream.wait();
  }

 private:
  bool one_thread_;
  dnnl::matmul::primitive_desc pd_;
  dnnl::matmul primitive_;
  dnnl::memory::desc src_, weights_, dst_, scratch_;
};

}  // namespace

std::shared_ptr<const Gemm> Gemm::make(const GemmShape& s, std::string* why) {
  const ThreadCount threads(s.one_thread);
  try {
    dnnl::primitive_attr attr = caller_scratch();
    if (s.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attr.set_post_ops(ops);
    }
    const dnnl::matmul::desc desc(describe(s.a, s.a_strides, s.in),
                                  describe(s.b, s.b_strides, s.in),
                                  describe(s.c, s.c_strides, s.out));
    dnnl::matmul::primitive_desc pd(desc, attr, cpu_engine());
    const std::string impl = pd.impl_info_str();
    if (impl.starts_with("ref")) {
      *why = "oneDNN has only its slow reference for these strides";
      return nullptr;
    }
    return std::make_shared<DnnlGemm>(std::move(pd), s.one_thread);
  } catch (const dnnl::error& e) {
    *why = std::string("oneDNN refuses: ") + e.what();
    return nullptr;
  }
}

}  // namespace shardrun::cpu
