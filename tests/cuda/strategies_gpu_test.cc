// Every strategy, its shards on the GPU.
#include <map>

#include "device/cuda/cuda.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/cuda/strategies.h"

namespace shardrun {
namespace {

/// Calls that are alike have one kernel: its plans are made once.
class ShardRuns {
 public:
  explicit ShardRuns(cuda::CudaDevice& device) : device_(device) {}

  std::vector<Tensor> run(const Case& c, const std::vector<Tensor>& in) {
    const auto [found, fresh] = kernels_.try_emplace(describe(c));
    PreparedKernel& kernel = found->second;
    if (fresh) {
      const KernelList* lists[] = {&cuda_kernels()};
      kernel = select_kernel(lists, {c.node, c.in, c.out});
      // Each of cuDNN's plans takes a while: of one in eight calls. What the host does, the CPU's
      // tests hold: of some ops it is a layout of the CPU's own.
      if (kernel.impl == "cuda:cudnn" && ++cudnns_ % 8 != 1) kernel.run = nullptr;
      if (kernel.impl == "cuda:host") kernel.run = nullptr;
    }
    if (!kernel.run) return {};
    int64_t bytes = 0;
    const auto place = [&](int64_t size) {
      const int64_t at = bytes;
      bytes += (size + 255) / 256 * 256;
      return at;
    };
    std::vector<int64_t> places;
    for (const auto& types : {c.in, c.out}) {
      for (const TensorType& t : types) places.push_back(place(byte_size(t)));
    }
    const int64_t workspace = place(kernel.workspace_bytes), kept = place(kernel.kept_bytes);
    if (bytes > bytes_) {
      memory_.reset();
      memory_ = device_.allocate(bytes);
      bytes_ = bytes;
    }
    std::vector<TensorView> from, to;
    for (size_t i = 0; i < in.size(); ++i) {
      from.push_back({byte_size(c.in[i]) == 0 ? nullptr : memory_.get() + places[i], c.in[i]});
      device_.copy_in(from[i].data, in[i].data(), byte_size(c.in[i]));
    }
    for (size_t i = 0; i < c.out.size(); ++i) {
      char* const data = memory_.get() + places[in.size() + i];
      to.push_back({byte_size(c.out[i]) == 0 ? nullptr : data, c.out[i]});
    }
    KernelArgs args{from, to, memory_.get() + workspace, device_.stream(), memory_.get() + kept};
    device_.copy_in(memory_.get() + kept, kept_by(kernel, args).data(), kernel.kept_bytes);
    kernel.run(args);
    std::vector<Tensor> out;
    for (const TensorView& view : to) {
      out.emplace_back(view.type);
      device_.copy_out(out.back().data(), view.data, byte_size(view.type));
    }
    return out;
  }

 private:
  cuda::CudaDevice& device_;
  std::map<std::string, PreparedKernel> kernels_;
  int64_t cudnns_ = 0, bytes_ = 0;
  std::shared_ptr<char> memory_;
};

/// A test for each op, as CudaKernelsOf.
class CudaStrategiesOf : public testing::TestWithParam<std::string> {};

TEST_P(CudaStrategiesOf, EqualUnshardedOnTheGpu) {
  std::string why;
  if (cuda::device_count(&why) == 0) GTEST_SKIP() << why;
  const auto device = cuda::open_device(0);
  ShardRuns shards(*device);
  check_strategies(op_def(GetParam()),
                   [&](const Case& c, const std::vector<Tensor>& in) { return shards.run(c, in); });
}

std::vector<std::string> names_of_ops() {
  std::vector<std::string> names;
  for (const OpDef* op : all_ops()) names.push_back(op->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaStrategiesOf, testing::ValuesIn(names_of_ops()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shardrun
