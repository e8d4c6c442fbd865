// Any op, on the host: rare ones, and users' own, whose kernels are of the host.
#include <array>
#include <memory>

#include "base/round_up.h"
#include "device/cuda/cuda.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/families.h"

namespace shardrun::cuda {
namespace {

/// A kernel of the host and the memory that it works on, pinned. It waits for its own copies alone:
/// who runs it has waited for the stream, as before all kernels that cannot be recorded.
struct OnHost {
  PreparedKernel kernel;
  std::vector<TensorType> in, out;
  std::vector<int64_t> offsets;  // of operands, then results, then the workspace
  int64_t bytes = 0;
  Pinned memory = nullptr;

  TensorView place(size_t i, const TensorType& type) const {
    return {byte_size(type) == 0 ? nullptr : memory.get() + offsets[i], type};
  }

  void run(const KernelArgs& args) {
    const auto stream = static_cast<cudaStream_t>(args.stream);
    if (!memory) memory = make_pinned(bytes);
    std::vector<TensorView> from, to;
    for (size_t i = 0; i < in.size(); ++i) {
      from.push_back(place(i, in[i]));
      if (from[i].data == nullptr) continue;
      check(cudaMemcpyAsync(from[i].data, args.in[i].data, static_cast<size_t>(byte_size(in[i])),
                            cudaMemcpyDeviceToHost, stream),
            "a copy from the GPU");
    }
    for (size_t i = 0; i < out.size(); ++i) to.push_back(place(in.size() + i, out[i]));
    check(cudaStreamSynchronize(stream), "waiting for the GPU");
    kernel.run({from, to, memory.get() + offsets.back(), nullptr});
    for (size_t i = 0; i < out.size(); ++i) {
      if (to[i].data == nullptr) continue;
      check(cudaMemcpyAsync(args.out[i].data, to[i].data, static_cast<size_t>(byte_size(out[i])),
                            cudaMemcpyHostToDevice, stream),
            "a copy to the GPU");
    }
    check(cudaStreamSynchronize(stream), "waiting for the GPU");  // the memory serves other steps
  }
};

PreparedKernel prepare(const KernelCall& call) {
  const std::array<const KernelList*, 2> lists = {&cpu_kernels(), &reference_kernels()};
  auto state = std::make_shared<OnHost>();
  state->kernel = select_kernel(lists, call);
  state->in.assign(call.in.begin(), call.in.end());
  state->out.assign(call.out.begin(), call.out.end());
  const auto place = [&](int64_t bytes) {
    state->offsets.push_back(state->bytes);
    state->bytes += round_up_64(bytes);
  };
  for (const auto* types : {&state->in, &state->out}) {
    for (const TensorType& type : *types) place(byte_size(type));
  }
  place(state->kernel.workspace_bytes + 1);  // never empty
  PreparedKernel prepared;
  prepared.run = [state](const KernelArgs& args) { state->run(args); };
  prepared.impl = "cuda:host";
  prepared.recordable = false;
  return prepared;
}

}  // namespace

KernelList host_kernels() { return {{"", "cuda:host", nullptr, prepare}}; }

}  // namespace shardrun::cuda
