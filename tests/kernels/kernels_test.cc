// Every CPU kernel against the reference, on the samples that the op's definition lists, on larger
// ones of the same kind, and on empty ones.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "graph/op_def.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"
#include "tests/kernels/check.h"

namespace shardrun {
namespace {

// A team of one within a team would be made anew each time.
TEST(ParallelRanges, WithinOthersHaveNoTeam) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  std::atomic<int> deepest = 0, elements = 0;
  cpu::parallel_ranges(2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      cpu::parallel_ranges(100, 1, [&](int64_t first, int64_t last) {
        deepest = std::max(deepest.load(), omp_get_level());
        elements += static_cast<int>(last - first);
      });
    }
  });
  omp_set_num_threads(threads);
  EXPECT_EQ(deepest, 1);
  EXPECT_EQ(elements, 200);
}

TEST(CpuKernels, TakeGroupsOfRows) { expect_same_of_groups(cpu_kernels(), kSeed); }

/// Of an op that oneDNN computes, at least in part.
bool is_by_onednn(const std::string& op) {
  static const std::set<std::string> ops = [] {
    std::set<std::string> names;
    for (const auto family : {cpu::matmul_kernels, cpu::conv_kernels, cpu::attention_kernels,
                              cpu::recurrence_kernels, cpu::pack_kernels}) {
      for (const KernelImpl& impl : family()) names.insert(impl.op);
    }
    return names;
  }();
  return ops.count(op) > 0;
}

/// Where oneDNN is held back, only what it computes: the rest has no choice of instructions.
TEST(CpuKernels, AgreeWithTheReference) {
  const bool all = std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr;
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  std::set<std::string> exercised;
  int cases = 0, accepted = 0;
  for (const OpDef* op : all_ops()) {
    if (!all && !is_by_onednn(op->name)) continue;
    for (const Case& c : cases_of(*op)) {
      ++cases;
      accepted += check(c, rng, exercised);
      if (HasFatalFailure()) return;
    }
  }
  std::cout << cases << " calls, " << accepted << " accepted by " << exercised.size()
            << " implementations\n";
  for (const KernelImpl& impl : cpu_kernels()) {
    if (!all && !is_by_onednn(impl.op)) continue;
    if (impl.name == "cpu:winograd") continue;  // wants more channels: TiledConvolutions, PostOps
    if (impl.name == "cpu:amx") continue;       // more rows: LargeMatmulsAndAttention, PostOps
    EXPECT_TRUE(exercised.count(impl.op + " " + impl.name))
        << impl.op << " " << impl.name << " was never run";
    EXPECT_NE(find_op(impl.op), nullptr) << impl.op;
  }
}

// Ranks may be threads of one process, each with its own OpenMP threads.
TEST(CpuKernels, RunInSeveralRanksAtOnce) {
  const TensorType x{DType::f32, {2, 2, 70, 16}}, lse{DType::f32, {2, 2, 70}};
  Case attention{make("attention", {{"scale", 0.25}, {"causal", int64_t{1}}}), {x, x, x}, {x, lse}};
  Case product{make("matmul", {{"equation", std::string("bhtd,bhsd->bhts")}}), {x, x}, {}};
  product.out = infer_types(product.node, product.in);
  for (const Case& c : {attention, product}) {
    std::mt19937_64 rng(kSeed + 2);
    const std::vector<Tensor> in = random_operands(c, rng);
    const auto impl =
        std::find_if(cpu_kernels().begin(), cpu_kernels().end(), [&](const KernelImpl& k) {
          return k.op == c.node.op && !k.refuses({c.node, c.in, c.out});
        });
    const Tensor want = run_reference(c.node, in)[0];
    std::vector<Tensor> got(4);
    std::vector<std::thread> ranks;
    for (Tensor& mine : got) {
      ranks.emplace_back([&, out = &mine] {
        omp_set_num_threads(2);
        for (int repeat = 0; repeat < 5; ++repeat) *out = run_impl(*impl, c, in)[0];
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Tensor& mine : got) expect_close(mine, want, 1e-4);
  }
}

TEST(CpuKernels, KeepNaNAndInfinity) {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> values = {nan,   inf,   -inf,    0.0f,  -0.0f,  1e-40f,
                                     88.0f, 89.0f, -104.0f, 3e38f, -3e38f, 1.0f};
  const Tensor x = Tensor::from({12}, values, DType::f32);
  for (const char* op :
       {"exp",        "log",  "tanh",     "erf",   "sigmoid", "relu", "sqrt",  "abs",  "neg",
        "reciprocal", "gelu", "softplus", "sin",   "cos",     "tan",  "asin",  "acos", "atan",
        "sinh",       "cosh", "asinh",    "acosh", "atanh",   "mish", "isnan", "isinf"}) {
    SCOPED_TRACE(op);
    Case c{make(op, {}), {x.type()}, {}};
    c.out = infer_types(c.node, c.in);
    const std::vector<Tensor> want = run_reference(c.node, {{x}});
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op != op) continue;
      const Tensor got = run_impl(impl, c, {x})[0];
      for (int64_t i = 0; i < x.count(); ++i) {
        const double g = got.at(i), w = want[0].at(i);
        if (op == std::string("gelu") && std::isinf(x.at(i))) continue;  // -inf * 0
        EXPECT_TRUE(std::isnan(w) ? std::isnan(g)
                                  : g == w || std::fabs(g - w) <= 1e-5 * std::fabs(w) + 1e-37)
            << op << "(" << x.at(i) << ") is " << g << ", want " << w;
      }
    }
  }
}

// The vectorised functions of our own against libm, over the range that matters for each.
TEST(CpuKernels, FunctionsAreAccurateTo1e6) {
  struct Function {
    const char* op;
    double low, high;
  };
  for (const Function& f : {Function{"exp", -80, 80},
                            {"log", 1e-30, 1e30},
                            {"log", 0.5, 2},
                            {"tanh", -10, 10},
                            {"erf", -5, 5},
                            {"sigmoid", -30, 30},
                            {"softplus", -20, 20},
                            {"elu", -3, 3},
                            {"silu", -20, 20},
                            {"gelu", -1, 10}}) {
    SCOPED_TRACE(f.op);
    const int64_t n = 40000;
    Tensor x({DType::f32, {n}});
    for (int64_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(i) / static_cast<double>(n - 1);
      x.as<float>()[i] =
          static_cast<float>(f.low > 0 && f.high > 1e3 ? f.low * std::pow(f.high / f.low, u)
                                                       : f.low + (f.high - f.low) * u);
    }
    Case c{make(f.op, {}), {x.type()}, {x.type()}};
    const Tensor want = run_reference(c.node, {{x}})[0];
    for (const KernelImpl& impl : cpu_kernels()) {
      if (impl.op != f.op) continue;
      const Tensor got = run_impl(impl, c, {x})[0];
      double worst = 0, at = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double error = std::fabs(got.at(i) - want.at(i)) / (std::fabs(want.at(i)) + 1e-6);
        if (error > worst) worst = error, at = x.at(i);
      }
      // (Below -1, gelu's 1 + erf cancels and only its absolute error stays small.)
      EXPECT_LE(worst, 1e-6) << "at " << at;
    }
  }
}

}  // namespace
}  // namespace shardrun
