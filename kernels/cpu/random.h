// Uniform numbers and dropout's masks from runs of Philox numbers.
#pragma once

#include <cmath>

#include "base/philox_blocks.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {

/// uniform = (bits >> 8) * 2^-24 >= p exactly where bits >> 8 >= this.
inline uint32_t keep_threshold(double p) {
  return static_cast<uint32_t>(std::ceil(p * 16777216.0));
}

/// each(i, words, count): the random bits of elements position + i, position + i + 1, …, below n.
template <class Each>
void draw_runs(const RandomStream& stream, uint64_t position, int64_t n, const Each& each) {
  alignas(64) uint32_t words[kPhiloxWords];
  for (int64_t done = 0; done < n;) {
    const uint64_t from = position + static_cast<uint64_t>(done);
    draw_words(stream, from / 4, words);
    const auto skip = static_cast<int64_t>(from % 4);
    const int64_t count = std::min(n - done, kPhiloxWords - skip);
    each(done, words + skip, count);
    done += count;
  }
}

/// keep[i] = factor if stream.uniform(position + i) >= p, else 0; the same numbers as one by one.
inline void draw_keep(const RandomStream& stream, uint64_t position, int64_t n, double p,
                      float factor, float* keep) {
  const uint32_t threshold = keep_threshold(p);
  draw_runs(stream, position, n, [&](int64_t done, const uint32_t* word, int64_t count) {
    const float kept = factor;  // not read again behind each number that is written
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) keep[done + i] = (word[i] >> 8) >= threshold ? kept : 0.0f;
  });
}

/// u[i] = stream.uniform(position + i).
inline void draw_uniform(const RandomStream& stream, uint64_t position, int64_t n, float* u) {
  draw_runs(stream, position, n, [&](int64_t done, const uint32_t* word, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      u[done + i] = static_cast<float>(static_cast<int32_t>(word[i] >> 8)) * 0x1p-24f;
  });
}

/// The same for elements that do not lie side by side.
inline void draw_keep_at(const RandomStream& stream, const uint64_t* positions, int64_t n, double p,
                         float factor, float* keep) {
  const uint32_t threshold = keep_threshold(p);
  alignas(64) uint32_t c[4][kPhiloxBlocks];
  for (int64_t done = 0; done < n; done += kPhiloxBlocks) {
    const int64_t count = std::min(n - done, kPhiloxBlocks);
    const uint64_t* at = positions + done;
    draw_blocks(
        stream, [&](int64_t b) { return at[std::min(b, count - 1)] / 4; }, c);
    for (int64_t i = 0; i < count; ++i)
      keep[done + i] = (c[at[i] % 4][i] >> 8) >= threshold ? factor : 0.0f;
  }
}

}  // namespace shardrun::cpu
