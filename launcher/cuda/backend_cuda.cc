// GPUs: a machine's ranks take them in turn.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "collectives/checked.h"
#include "collectives/nccl/cuda_communicator.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/autotune.h"
#include "kernels/cuda/cuda_kernels.h"
#include "ranks/agreement.h"
#include "ranks/backend.h"
#include "ranks/gpu_cluster.h"

namespace shardrun {
namespace {

std::string missing() {
  std::string why;
  cuda::device_count(&why);
  return why;
}

/// GPUs of this machine; throws invalid_input if there is none.
int gpus() {
  std::string why;
  const int count = cuda::device_count(&why);
  SR_REQUIRE(count > 0, invalid_input, "device cuda: ", why, "; run with --device cpu");
  return count;
}

/// This rank's number among those of its machine.
int local_rank(Communicator& host) {
  std::array<char, 256> mine{};
  gethostname(mine.data(), mine.size() - 1);
  std::vector<std::array<char, 256>> all(static_cast<size_t>(host.size()));
  host.all_gather(mine.data(), all.data(), std::vector<int64_t>(all.size(), sizeof mine),
                  DType::u8);
  return static_cast<int>(std::count(all.begin(), all.begin() + host.rank(), mine));
}

/// What CUDA tells of GPU 0.
GpuFacts facts() {
  const auto attribute = [](cudaDeviceAttr which) {
    int value = 0;
    cuda::check(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
    return value;
  };
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  GpuFacts out;
  out.name = properties.name;
  out.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  out.major = properties.major;
  out.minor = properties.minor;
  out.multiprocessors = properties.multiProcessorCount;
  out.clock = 1e3 * attribute(cudaDevAttrClockRate);
  // Of both edges of the clock, as many bits as the bus is wide.
  out.memory_bandwidth =
      2e3 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  return out;
}

Cluster cluster(int64_t ranks) {
  const int count = cuda::device_count();
  return count > 0 ? gpu_cluster(facts(), count) : assumed_gpu_cluster(ranks);
}

class CudaRank final : public RankDevice {
 public:
  explicit CudaRank(Communicator& host)
      : host_(host),
        device_(cuda::open_device(local_rank(host) % gpus())),
        comm_(checked_as(host, cuda::make_cuda_communicator(host, *device_->side()))) {}
  Device& device() override { return *device_; }
  Communicator& comm() override { return *comm_; }
  DeviceCapacity capacity() const override {
    return {device_->name(), device_->uuid(), device_->free_bytes(), true};
  }
  void agree(const std::function<void()>& rehearse) override {
    shardrun::agree(host_, {cuda::place_of_choices(), cuda::choices_here, cuda::take_choices_here},
                    rehearse);
  }

 private:
  Communicator& host_;
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

/// What libshardrun looks for in this library (launcher/api/ranks/cuda_part.cc).
extern "C" const Backend* shardrun_cuda_backend() {
  static const std::array<const KernelList*, 1> lists = {&cuda_kernels()};
  static const Backend cuda = {"cuda",
                               lists,
                               false,
                               missing,
                               [] { return cuda::device_count(); },
                               cluster,
                               "cuda",
                               [](Communicator& host) -> std::unique_ptr<RankDevice> {
                                 return std::make_unique<CudaRank>(host);
                               },
                               Collectives::apart,
                               nullptr,
                               false};
  return &cuda;
}

}  // namespace shardrun
