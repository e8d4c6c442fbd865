// Every strategy, its shards by the bodies of the GPU's own kernels, on the host.
#include "tests/cuda/strategies.h"

#include "tests/cuda/host/own_on_host.h"

namespace shardrun {
namespace {

TEST(CudaStrategies, EqualUnsharded) {
  const KernelList kernels = own_kernels<cuda::OnHost<1>>();
  const RunCase run = [&](const Case& c, const std::vector<Tensor>& in) {
    for (const KernelImpl& impl : kernels) {
      if (impl.op == c.node.op && !(impl.refuses && impl.refuses({c.node, c.in, c.out})))
        return run_impl(impl, c, in);
    }
    return std::vector<Tensor>();
  };
  for (const OpDef* op : all_ops()) check_strategies(*op, run);
}

}  // namespace
}  // namespace shardrun
