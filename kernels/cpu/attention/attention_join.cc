// Quotients of sums over keys.
#include "kernels/cpu/attention/attention_join.h"

#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

// y = o / total, which may lie where o does; lse = top + log(total).
void run_attention_join(const KernelArgs& args) {
  const auto *tops = args.in[0].as<float>(), *totals = args.in[2].as<float>();
  auto* lse = args.out[1].as<float>();
  const int64_t rows = args.in[0].count(), width = args.in[1].type.shape.back();
  parallel_ranges(rows, row_grain(width), [&](int64_t begin, int64_t end) {
    alignas(64) float ob[kBlock], yb[kBlock];
    for (int64_t r = begin; r < end; ++r) {
      const bool none = tops[r] == kNever;
      const float inverse = none ? 0.0f : 1.0f / totals[r];
      lse[r] = none ? kNever : tops[r] + std::log(totals[r]);
      for_blocks(width, [&](int64_t c, int64_t n) {
        const float* o = floats(args.in[1], r * width + c, n, ob);
        float* y = place(args.out[0], r * width + c, yb);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = o[i] * inverse;
        put(args.out[0], r * width + c, n, y);
      });
    }
  });
}

}  // namespace

KernelImpl attention_join() {
  return {"attention_join", "cpu:simd", refuse_other_floats, [](const KernelCall&) {
            return PreparedKernel{run_attention_join, 0, "cpu:simd"};
          }};
}

}  // namespace shardrun::cpu
