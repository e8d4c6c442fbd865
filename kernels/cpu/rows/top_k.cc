// top_k: the largest or smallest numbers along a dim, best first, of equal ones the first. A NaN
// counts as the greatest. Short lines, and few numbers of lines side by side, 16 lines at a time,
// each with its best so far sorted; of other lines what beats the last of the best is collected,
// and thinned out now and then.
#include <algorithm>
#include <cstring>

#include "base/around.h"
#include "base/lanes.h"
#include "base/round_up.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

using Ints = int32_t __attribute__((vector_size(kLanes * 4)));

constexpr int kMostInColumns = 8;     // numbers of each line
constexpr int64_t kShort = 512;       // lines up to so long
constexpr int64_t kAtOnce = 64;       // numbers of each line
constexpr int64_t kMostSorted = 64;   // best ones that are kept sorted
constexpr int64_t kSpare = 48;        // candidates at least, besides those kept twice
constexpr int32_t kNone = INT32_MIN;  // below all keys
constexpr int32_t kNaN = 0x7f800001;  // above infinity's

/// Integers in the order of the numbers; 0 and -0 are equal, and so are all NaN.
Ints keys_of(const Lanes& x, bool largest) {
  const Ints bits = std::bit_cast<Ints>(x + 0.0f);
  const Ints ordered = bits ^ ((bits >> 31) & 0x7fffffff);
  const Ints keys = x != x ? Ints{} + kNaN : ordered;
  return largest ? keys : ~keys;
}

/// Bit i: is element i other than 0?
uint32_t bits_of(const Ints& mask) {
#ifdef __AVX512F__
  const auto v = std::bit_cast<__m512i>(mask);
  return _mm512_test_epi32_mask(v, v);
#else
  // Not mask[i], which GCC 12 gets wrong under its undefined-behaviour sanitizer.
  int32_t each[kLanes];
  std::memcpy(each, &mask, sizeof each);
  uint32_t bits = 0;
  for (int64_t i = 0; i < kLanes; ++i) bits |= (each[i] != 0 ? 1u : 0u) << i;
  return bits;
#endif
}

/// A key and a place in the line as one number: greater ones come first.
uint64_t candidate(int32_t key, int64_t place) {
  const auto high = static_cast<uint32_t>(key) ^ 0x80000000u;
  return static_cast<uint64_t>(high) << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}
int64_t place_of(uint64_t candidate) { return 0xffffffffu - static_cast<uint32_t>(candidate); }
int32_t key_of(uint64_t candidate) {
  return static_cast<int32_t>(static_cast<uint32_t>(candidate >> 32) ^ 0x80000000u);
}

struct TopK : Around {
  int64_t k;
  bool largest;

  explicit TopK(const KernelCall& call)
      : Around(call.in[0].shape, call.node.attrs.i("axis")),
        k(call.node.attrs.i("k")),
        largest(call.node.attrs.i("largest") != 0) {}

  bool keeps_columns() const { return k <= kMostInColumns && (inner > 1 || extent <= kShort); }

  /// Of a thread: candidates, of which k are kept.
  int64_t candidates() const { return round_up(2 * k + kSpare, 8); }
  int64_t workspace_bytes() const {
    return keeps_columns() ? 0 : int64_t{omp_get_max_threads()} * candidates() * 8;
  }

  /// Where line `at` begins in a tensor of `size` numbers a line.
  int64_t begin_of(int64_t at, int64_t size) const {
    return inner == 1 ? at * size : at / inner * size * inner + at % inner;
  }

  /// The result's line from `to` on: place(j) of the operand's, which begins at x.
  template <class T, class Place>
  void put_line(const T* x, int64_t to, const KernelArgs& args, Place&& place) const {
    T* values = args.out[0].as<T>() + to;
    int64_t* places = args.out[1].as<int64_t>() + to;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t from = place(j);
      values[j * inner] = x[from * inner];
      places[j * inner] = from;
    }
  }

  /// Lines [first, first + n), n <= 16, of which the best kBest >= k are kept.
  template <int kBest, class T>
  void of_lines(const T* x, int64_t first, int64_t n, const KernelArgs& args) const {
    Ints best[kBest], places[kBest];
    for (int j = 0; j < kBest; ++j) best[j] = Ints{} + kNone, places[j] = Ints{};
    int64_t begin[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) begin[i] = begin_of(first + i, extent);
    const bool as_they_lie = n == kLanes && begin[n - 1] - begin[0] == n - 1;
    alignas(64) float some[kAtOnce][kLanes] = {};
    for (int64_t e = 0; e < extent; ++e) {
      if (!as_they_lie && e % kAtOnce == 0) {
        const int64_t end = std::min(kAtOnce, extent - e);
        for (int64_t i = 0; i < n; ++i) {
          const T* from = x + begin[i] + e * inner;
          for (int64_t j = 0; j < end; ++j) some[j][i] = as_float(from[j * inner]);
        }
      }
      const Lanes v =
          as_they_lie ? load_lanes(x + begin[0] + e * inner) : load_lanes(some[e % kAtOnce]);
      const Ints key = keys_of(v, largest), beats = key > best[kBest - 1];
      if (bits_of(beats) == 0) continue;
      best[kBest - 1] = beats ? key : best[kBest - 1];
      places[kBest - 1] = beats ? Ints{} + static_cast<int32_t>(e) : places[kBest - 1];
      for (int j = kBest - 1; j > 0; --j) {  // up to where it belongs
        const Ints a = best[j - 1], b = best[j], pa = places[j - 1], pb = places[j], up = b > a;
        best[j - 1] = up ? b : a, best[j] = up ? a : b;
        places[j - 1] = up ? pb : pa, places[j] = up ? pa : pb;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      put_line(x + begin[i], begin_of(first + i, k), args,
               [&](int64_t j) { return int64_t{places[j][i]}; });
    }
  }

  template <class T>
  void of_line(const T* x, int64_t line, uint64_t* found, const KernelArgs& args) const {
    int64_t count = 0;
    int32_t least = kNone;  // what does not beat this is not among the best
    const auto thin_out = [&] {
      std::nth_element(found, found + k - 1, found + count, std::greater<>());
      count = k;
      least = key_of(found[k - 1]);
    };
    const auto insert = [&](uint64_t better) {  // among k that are sorted
      int64_t j = count < k ? count++ : k - 1;
      for (; j > 0 && found[j - 1] < better; --j) found[j] = found[j - 1];
      found[j] = better;
      if (count == k) least = key_of(found[k - 1]);
    };
    const bool sorted = k <= kMostSorted;
    const T* const from = x + begin_of(line, extent);
    for (int64_t first = 0; first < extent; first += kLanes) {
      const int64_t n = std::min(kLanes, extent - first);
      Lanes v{};
      if (inner == 1 && n == kLanes) {
        v = load_lanes(from + first);
      } else {
        for (int64_t i = 0; i < n; ++i) v[i] = as_float(from[(first + i) * inner]);
      }
      const Ints key = keys_of(v, largest);
      uint32_t beat = bits_of(key > least) & (0xffffu >> (kLanes - n));
      for (; beat != 0; beat &= beat - 1) {
        const int i = std::countr_zero(beat);
        const uint64_t better = candidate(key[i], first + i);
        if (!sorted) {
          found[count++] = better;
        } else if (key[i] > least) {
          insert(better);
        }
      }
      if (!sorted && count + kLanes > candidates()) thin_out();
    }
    if (!sorted) {
      if (count > k) thin_out();
      std::sort(found, found + k, std::greater<>());
    }
    put_line(from, begin_of(line, k), args, [&](int64_t j) { return place_of(found[j]); });
  }

  template <int kBest, class T>
  void of_all_lines(const T* x, const KernelArgs& args) const {
    const int64_t lines = outer * inner, grain = row_grain(extent * kLanes);
    parallel_ranges(divide_up(lines, kLanes), grain, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin * kLanes; at < std::min(end * kLanes, lines); at += kLanes)
        of_lines<kBest>(x, at, std::min(kLanes, lines - at), args);
    });
  }

  template <class T>
  void run(const KernelArgs& args) const {
    const T* x = args.in[0].as<T>();
    if (k == 0) return;
    if (!keeps_columns()) {
      parallel_ranges(outer * inner, row_grain(extent), [&](int64_t begin, int64_t end) {
        uint64_t* found =
            static_cast<uint64_t*>(args.workspace) + omp_get_thread_num() * candidates();
        for (int64_t line = begin; line < end; ++line) of_line(x, line, found, args);
      });
    } else if (k <= 2) {
      of_all_lines<2>(x, args);
    } else if (k <= 4) {
      of_all_lines<4>(x, args);
    } else {
      of_all_lines<kMostInColumns>(x, args);
    }
  }
};

std::optional<std::string> refuses(const KernelCall& call) {
  const auto& [dtype, shape] = call.in[0];
  if (!is_f32_or_bf16(dtype)) return str("compares f32 and bf16, not ", dtype);
  if (shape[static_cast<size_t>(call.node.attrs.i("axis"))] > INT32_MAX) return "counts in 32 bits";
  return std::nullopt;
}

}  // namespace

KernelList top_k_kernels() {
  return {{"top_k", "cpu:simd", refuses, [](const KernelCall& call) {
             const TopK top(call);
             return PreparedKernel{[=](const KernelArgs& args) {
                                     if (args.in[0].type.dtype == DType::bf16) {
                                       top.run<uint16_t>(args);
                                     } else {
                                       top.run<float>(args);
                                     }
                                   },
                                   top.workspace_bytes(), "cpu:simd"};
           }}};
}

}  // namespace shardrun::cpu
