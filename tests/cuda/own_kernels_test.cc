// The bodies of the GPU's own kernels, run by teams of the host, against the reference.
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/batch_norm.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/pool.h"
#include "kernels/cuda/softmax.h"
#include "tests/cuda/on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20261121;

template <class On>
KernelList own_kernels() {
  KernelList all;
  for (auto family :
       {cuda::norm_kernels_on<On>, cuda::softmax_kernels_on<On>, cuda::optimizer_kernels_on<On>,
        cuda::batch_norm_kernels_on<On>, cuda::pool_kernels_on<On>}) {
    for (KernelImpl& impl : family()) all.push_back(std::move(impl));
  }
  for (KernelImpl& impl : cuda::attention_kernels_on<On>(false)) all.push_back(std::move(impl));
  return all;
}

/// Every case of every op that `kernels` have; results in operands' memory where OpDef allows it.
void check_all(const KernelList& kernels, double most_elements) {
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  std::set<std::string> exercised;
  for (const KernelImpl& impl : kernels) {
    const OpDef& op = op_def(impl.op);
    for (const Case& c : cases_of(op)) {
      double elements = 0;
      for (const TensorType& t : c.in) elements += static_cast<double>(element_count(t.shape));
      if (elements > most_elements || impl.refuses({c.node, c.in, c.out})) continue;
      SCOPED_TRACE(describe(c));
      bool bf16 = false;
      for (const auto& types : {c.in, c.out}) {
        for (const TensorType& t : types) bf16 = bf16 || t.dtype == DType::bf16;
      }
      const std::vector<Tensor> in = random_operands(c, rng);
      const std::vector<Tensor> want = run_reference(c.node, in);
      const std::vector<Tensor> got = run_impl(impl, c, in);
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("result " + std::to_string(i));
        expect_close(got[i], want[i], bf16 ? 2e-2 : 1e-4);
      }
      for (const auto& [result, operand] : op.in_place) {
        const auto r = static_cast<size_t>(result), o = static_cast<size_t>(operand);
        if (r >= c.out.size() || o >= c.in.size() || c.out[r] != c.in[o]) continue;
        SCOPED_TRACE(str("result ", r, " in place of operand ", o));
        std::vector<TensorView> from, to;
        std::vector<Tensor> own;
        for (const Tensor& t : in)
          own.push_back(convert(t, t.dtype())), from.push_back(own.back().view());
        for (const TensorType& t : c.out) own.emplace_back(t), to.push_back(own.back().view());
        to[r].data = from[o].data;
        const PreparedKernel kernel = impl.prepare({c.node, c.in, c.out});
        std::vector<int64_t> memory(static_cast<size_t>(kernel.workspace_bytes / 8 + 1));
        kernel.run({from, to, memory.data()});
        const auto bytes = static_cast<size_t>(byte_size(c.out[r]));
        EXPECT_TRUE(bytes == 0 || std::memcmp(to[r].data, got[r].data(), bytes) == 0);
      }
      exercised.insert(impl.op);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  for (const KernelImpl& impl : kernels)
    EXPECT_TRUE(exercised.count(impl.op)) << impl.op << " was never run";
}

TEST(OwnKernels, AgreeWithTheReference) { check_all(own_kernels<cuda::OnHost<1>>(), 2e5); }

TEST(OwnKernels, AgreeWithTheReferenceInTeams) { check_all(own_kernels<cuda::OnHost<3>>(), 300); }

}  // namespace
}  // namespace shardrun
