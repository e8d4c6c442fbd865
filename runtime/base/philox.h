// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). Every random number of shardrun is a pure function of a key and the
// element's global position, so that any mesh draws the same numbers and each rank only its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace shardrun {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// A stream of random numbers indexed by position. `stream` tells apart uses of one seed (a hash of
/// the parameter's name, a dropout node's key), `step` tells apart training steps.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t step = 0;

  /// The 32 random bits of element `index`; four consecutive elements share one Philox block.
  uint32_t bits(uint64_t index) const { return block(index / 4)[index % 4]; }
  std::array<uint32_t, 4> block(uint64_t block_index) const {
    return philox4x32(
        {static_cast<uint32_t>(block_index), static_cast<uint32_t>(block_index >> 32),
         static_cast<uint32_t>(step), static_cast<uint32_t>(stream)},
        {static_cast<uint32_t>(seed ^ (stream >> 32)), static_cast<uint32_t>(seed >> 32)});
  }
  /// In [0, 1), 24 bits.
  float uniform(uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }
  /// Standard normal by Box-Muller from two words of the element's own block.
  float normal(uint64_t index) const;
  /// out[i] = normal(first + i), several at a time.
  void normals(uint64_t first, int64_t n, float* out) const;
};

/// FNV-1a, for streams named by strings; `h`: of what stands before.
inline uint64_t hash_name(const char* data, std::size_t size, uint64_t h = 0xcbf29ce484222325ull) {
  for (std::size_t i = 0; i < size; ++i)
    h = (h ^ static_cast<unsigned char>(data[i])) * 0x100000001b3ull;
  return h;
}

}  // namespace shardrun
