// Where the elements of a strided box lie. For host and device code: tests run it on the host.
#pragma once

#include <cstdint>

#include "device/cuda/boxes.h"

#ifdef __CUDACC__
#define SR_HOST_DEVICE __host__ __device__
#else
#define SR_HOST_DEVICE
#endif

namespace shardrun::cuda {

struct BoxPlace {
  int64_t from, to;
};

/// The i-th element of the box in row-major order.
SR_HOST_DEVICE inline BoxPlace place_of(const BoxLoops& loops, int64_t i) {
  BoxPlace at{loops.from_offset, loops.to_offset};
  for (int d = loops.dims - 1; d >= 0; --d) {
    const int64_t here = i % loops.size[d];
    i /= loops.size[d];
    at.from += here * loops.from[d];
    at.to += here * loops.to[d];
  }
  return at;
}

}  // namespace shardrun::cuda
