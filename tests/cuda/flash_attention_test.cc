// Attention by cuDNN or by products, without a GPU: which of them runs.
#include "kernels/cuda/cudnn/flash_attention.h"

#include <gtest/gtest.h>

#include "tests/cuda/host/on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

/// cuDNN's plan is made, and runs or fails; what it computes is nothing.
struct Here : cuda::OnHost<1> {
  static inline bool has_plan, fails;
  static inline int runs;
  static inline std::unique_ptr<cuda::Autotune> known;
  static void reset() {
    has_plan = true, fails = false, runs = 0;
    known = std::make_unique<cuda::Autotune>("", "a GPU");
  }

  struct Graph : cuda::CudnnGraph {
    bool prepare(std::string*) override { return has_plan; }
    bool has_plan_for(const std::string&, std::string*) const override { return has_plan; }
    void run(std::span<void* const>, void*, void*) override {
      ++runs;
      SR_REQUIRE(!fails, device, "cuDNN's engine fails");
    }
  };
  static std::unique_ptr<cuda::CudnnGraph> graph(const cuda::CudnnAttention&) {
    return std::make_unique<Graph>();
  }
  static cuda::Autotune* tuned() { return known.get(); }
  static bool may_measure(const KernelArgs&) { return true; }
  template <class Once>
  static float time(const KernelArgs&, const std::string&, const Once& once) {
    const auto take = [&] {
      const int before = runs;
      once();
      return runs > before ? 1.0f : 2.0f;
    };
    return cuda::time_if_it_runs(take, [] {});
  }
};

Case case_of(const KernelImpl& impl) {
  Case c;
  c.node.op = impl.op;
  c.node.attrs = {{"causal", int64_t{1}}, {"has_mask", int64_t{0}}, {"scale", 0.125}};
  const TensorType x{DType::bf16, {2, 3, 5, 8}};
  c.in = {x, x, x};
  if (impl.op == "attention_grad") c.in = {x, x, x, x, x, {DType::f32, {2, 3, 5}}};
  c.out = infer_types(c.node, c.in);
  EXPECT_FALSE(impl.refuses({c.node, c.in, c.out}).has_value());
  return c;
}

KernelList kernels() {
  return cuda::flash_attention_kernels_on<Here>(cuda::attention_kernels_on<Here>(false), false);
}

/// Products compute, now and later, and for a rank that is given it and has not seen the failure.
/// cuDNN counts to 2^31: 2^31 elements of q are two groups of heads, of one head none.
TEST(FlashAttention, GroupsHeadsOfLargeTensors) {
  Case c;
  c.node.op = "attention";
  c.node.attrs = {{"scale", 1.0}, {"causal", int64_t{0}}};
  const auto of = [&](int64_t heads, int64_t queries) {
    const TensorType q{DType::bf16, {1, heads, queries, 128}}, k{DType::bf16, {1, heads, 8, 128}};
    c.in = {q, k, k};
    c.out = infer_types(c.node, c.in);
    return KernelCall{c.node, c.in, c.out};
  };
  EXPECT_EQ(cuda::flash_attention_of(of(2, 1 << 22)).heads, 2);
  EXPECT_EQ(cuda::flash_attention_of(of(4, 1 << 22)).heads, 2);
  EXPECT_EQ(cuda::refuse_flash_attention(of(4, 1 << 22)), std::nullopt);
  EXPECT_EQ(cuda::refuse_flash_attention(of(1, 1 << 24)),
            "counts less than 2^31 elements of a tensor");
}

TEST(FlashAttention, IsDoneByProductsWhereCudnnFails) {
  std::mt19937_64 rng(1);
  for (const KernelImpl& impl : kernels()) {
    SCOPED_TRACE(impl.op);
    const Case c = case_of(impl);
    const std::vector<Tensor> in = random_operands(c, rng), want = run_reference(c.node, in);
    for (const bool has_plan : {false, true}) {
      Here::reset();
      Here::has_plan = has_plan, Here::fails = true;
      for (const bool first : {true, false}) {
        const std::vector<Tensor> got = run_impl(impl, c, in);
        for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], want[i], 2e-2);
        EXPECT_EQ(Here::runs, has_plan && first ? 1 : 0);
        const std::vector<std::string> sent = {Here::known->tell()};
        EXPECT_NE(sent[0].find("\town\n"), std::string::npos) << sent[0];
        Here::reset();
        Here::known->take(sent);
      }
    }
  }
}

TEST(FlashAttention, IsCudnnsWhereThatIsFaster) {
  std::mt19937_64 rng(2);
  for (const KernelImpl& impl : kernels()) {
    const Case c = case_of(impl);
    Here::reset();
    run_impl(impl, c, random_operands(c, rng));
    EXPECT_EQ(Here::runs, 2) << impl.op;  // once measured, once asked for
  }
}

}  // namespace
}  // namespace shardrun
