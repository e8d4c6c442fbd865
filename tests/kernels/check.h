// A case by every CPU kernel that takes it, against the reference.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <random>
#include <set>
#include <string>

#include "kernels/cpu/cpu.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {

inline constexpr uint64_t kSeed = 20240611;

inline Node make(const char* op, Attrs attrs) {
  return {.op = op, .name = "node", .attrs = std::move(attrs), .inputs = {}, .outputs = {}};
}

/// Runs every accepting implementation of the case's op. Returns how many accepted.
inline int check(const Case& c, std::mt19937_64& rng, std::set<std::string>& exercised) {
  SCOPED_TRACE(describe(c));
  int accepted = 0;
  const std::vector<Tensor> in = random_operands(c, rng);
  std::vector<Tensor> want;
  for (const KernelImpl& impl : cpu_kernels()) {
    if (impl.op != c.node.op || (impl.refuses && impl.refuses({c.node, c.in, c.out}))) continue;
    SCOPED_TRACE(impl.name);
    if (want.empty()) want = run_reference(c.node, in);
    const std::vector<Tensor> got = run_impl(impl, c, in);
    bool bf16 = false;
    for (const auto& types : {c.in, c.out}) {
      for (const TensorType& t : types) bf16 = bf16 || t.dtype == DType::bf16;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE("result " + std::to_string(i));
      expect_close(got[i], want[i], bf16 ? 2e-2 : 1e-4);
    }
    // Run to run the same bits, and with another number of threads too (but oneDNN, which does
    // dense operands for by_nonzeros, promises only the former; attention's products are made for
    // one thread).
    const int threads = omp_get_max_threads();
    const bool onednn = impl.name == "cpu:onednn" || impl.name == "cpu:nonzeros";
    if (!onednn) omp_set_num_threads(threads == 3 ? 2 : 3);
    const std::vector<Tensor> again = run_impl(impl, c, in);
    omp_set_num_threads(threads);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto bytes = static_cast<size_t>(byte_size(got[i].type()));
      EXPECT_TRUE(bytes == 0 || std::memcmp(got[i].data(), again[i].data(), bytes) == 0)
          << "differs from run to run";
    }
    exercised.insert(impl.op + " " + impl.name);
    ++accepted;
  }
  return accepted;
}

}  // namespace shardrun
