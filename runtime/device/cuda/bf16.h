// bf16 in kernels of our own, computed in f32. For host and device code.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"
#include "device/cuda/index.h"

namespace shardrun::cuda {

/// bf16 as base/dtype.h's bfloat16, which device code cannot call.
struct Bf16 {
  uint16_t bits;
};

SR_HOST_DEVICE inline float as_float(float x) { return x; }
SR_HOST_DEVICE inline float as_float(Bf16 x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
#else
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
#endif
}

SR_HOST_DEVICE inline void assign(double& to, double x) { to = x; }
SR_HOST_DEVICE inline void assign(float& to, float x) { to = x; }
SR_HOST_DEVICE inline void assign(Bf16& to, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#elif defined(__CUDA_ARCH__)
  const uint32_t u = __float_as_uint(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#else
  to.bits = bfloat16(x).bits;
#endif
}

}  // namespace shardrun::cuda
