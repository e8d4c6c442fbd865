// One thread a unit, ranks from left to right.
#include "collectives/nccl/reduce_bodies.h"
#include "collectives/nccl/reduce_peers.h"
#include "collectives/reduce.h"
#include "device/cuda/launch.cuh"

namespace shardrun::cuda {

void load_reduce() {
  for (DType dtype : kReducible) {
    with_term(dtype, [](auto element) {
      for (int64_t unit : {1, 2, 4, 8, 16}) {
        with_reduce_unit<decltype(element)>(unit, [](auto body) {
          cudaFuncAttributes ignored{};
          check(cudaFuncGetAttributes(&ignored, for_each_kernel<decltype(body)>),
                "loading the reductions of ranks' memory");
        });
      }
    });
  }
}

void launch_reduce(cudaStream_t stream, std::span<const void* const> in, void* out, int64_t count,
                   DType dtype, Reduction op) {
  const auto each = [&](int64_t units, const auto& body) {
    for_each(stream, units, body, "a reduction of ranks' memory");
  };
  reduce_on(each, in, out, count, dtype, op);
}

}  // namespace shardrun::cuda
