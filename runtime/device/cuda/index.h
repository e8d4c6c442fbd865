// How kernels find their elements, and how many they move at once. For host and device code: tests
// run it on the host.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SR_HOST_DEVICE __host__ __device__
#else
#define SR_HOST_DEVICE
#endif
#ifdef __CUDA_ARCH__
#define SR_UNROLL _Pragma("unroll")
#else
#define SR_UNROLL
#endif

namespace shardrun::cuda {

/// Divides counts in [0, bound] by what is known when a kernel is launched: where both are below
/// 2^31 by a product and a shift (Granlund and Montgomery, "Division by invariant integers using
/// multiplication", theorem 4.2).
class Divisor {
 public:
  Divisor() = default;
  Divisor(int64_t by, int64_t bound) : by_(by) {
    if (by < 1 || by > kMost || bound > kMost) return;
    int log = 0;  // rounded up
    while (int64_t{1} << log < by) ++log;
    shift_ = 31 + log;
    factor_ = static_cast<uint32_t>((uint64_t{1} << shift_) / static_cast<uint64_t>(by) + 1);
  }
  /// i % by, and i / by left in i.
  SR_HOST_DEVICE int64_t split(int64_t& i) const {
    if (factor_ == 0) {
      const int64_t rest = i % by_;
      i /= by_;
      return rest;
    }
    const auto n = static_cast<uint32_t>(i);
    const auto quotient = static_cast<uint32_t>(uint64_t{n} * factor_ >> shift_);
    i = quotient;
    return n - quotient * static_cast<uint32_t>(by_);
  }

 private:
  static constexpr int64_t kMost = INT32_MAX;
  int64_t by_ = 1;
  uint32_t factor_ = 0;  // 0: divides
  int shift_ = 0;
};

// ---- units: neighbours that a thread moves at once

struct alignas(16) Sixteen {
  uint64_t low, high;
};

/// The most bytes, at most 16, that begin and end wherever something does: `all` are addresses,
/// steps and lengths in bytes, or'ed. 48 | 8 → 8.
inline int64_t unit_of(uint64_t all) {
  all |= sizeof(Sixteen);
  return static_cast<int64_t>(all & (~all + 1));
}
inline uint64_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

/// Calls f(U{}) with a U of so many bytes.
template <class F>
void with_unit(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return f(Sixteen{});
  }
}

template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};

}  // namespace shardrun::cuda
