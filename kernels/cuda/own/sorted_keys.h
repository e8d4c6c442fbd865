// Indices, and keys of where each goes, sorted. The sort is a kernel a round, each element finding
// its place by itself.
#pragma once

#include <limits>
#include <utility>

#include "kernels/cuda/own/movement.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// Indices as rows of [0, extent); what is outside is -1.
struct Indices {
  const void* data;
  bool wide;  // i64, else i32
  int64_t offset, extent;

  Indices(const TensorView& view, int64_t from, int64_t size)
      : data(view.data), wide(view.type.dtype == DType::i64), offset(from), extent(size) {}
  SR_HOST_DEVICE int64_t row(int64_t i) const {
    const int64_t at =
        (wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i]) -
        offset;
    return at >= 0 && at < extent ? at : -1;
  }
};

/// The slices of data that tuples of indices pick, counted over all of data; -1: outside.
struct Tuples {
  static constexpr int kMost = 8;
  const void* data = nullptr;
  bool wide = false;
  int entries = 0;                   // of a tuple
  int64_t size[kMost] = {};          // of the dims that they pick from
  int64_t in_batch = 1, slices = 1;  // tuples, and slices of data, of each batch
  int64_t extent = 0;                // slices in all

  Tuples(const Shape& of, const TensorType& indices, int64_t batch_dims)
      : wide(indices.dtype == DType::i64), entries(static_cast<int>(indices.shape.back())) {
    for (int64_t d = batch_dims; d + 1 < static_cast<int64_t>(indices.shape.size()); ++d)
      in_batch *= indices.shape[static_cast<size_t>(d)];
    int64_t batches = 1;
    for (int64_t d = 0; d < batch_dims; ++d) batches *= of[static_cast<size_t>(d)];
    for (int e = 0; e < entries; ++e) slices *= size[e] = of[static_cast<size_t>(batch_dims + e)];
    extent = batches * slices;
  }
  static int64_t count(const TensorType& indices) {
    return element_count(Shape(indices.shape.begin(), indices.shape.end() - 1));
  }
  static int64_t slice(const Shape& of, const TensorType& indices, int64_t batch_dims) {
    return element_count(Shape(of.begin() + batch_dims + indices.shape.back(), of.end()));
  }

  SR_HOST_DEVICE int64_t row(int64_t i) const {
    int64_t at = 0;
    for (int e = 0; e < entries; ++e) {
      const int64_t k = i * entries + e;
      const int64_t index =
          wide ? static_cast<const int64_t*>(data)[k] : static_cast<const int32_t*>(data)[k];
      if (index < 0 || index >= size[e]) return -1;
      at = at * size[e] + index;
    }
    return i / in_batch * slices + at;
  }
};

// ---- keys: where something goes, before which it is ----

/// Sorted by place, then by number, since both are in a key and no two are equal.
SR_HOST_DEVICE inline uint64_t key_of(int64_t place, int64_t number) {
  return static_cast<uint64_t>(place) << 32 | static_cast<uint64_t>(number);
}
SR_HOST_DEVICE inline int64_t place_in(uint64_t key) { return static_cast<int64_t>(key >> 32); }
SR_HOST_DEVICE inline int64_t number_in(uint64_t key) {
  return static_cast<int64_t>(key & 0xffffffffu);
}

/// How many of sorted keys [0, n) are less than `key`.
SR_HOST_DEVICE inline int64_t lower_bound(const uint64_t* keys, int64_t n, uint64_t key) {
  int64_t low = 0;
  while (n > 0) {
    const int64_t half = n / 2;
    if (keys[low + half] < key) {
      low += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return low;
}

/// By row: what is outside goes to `extent`, behind all.
template <class Index>
struct RowKey {
  Index indices;  // Indices, or Tuples
  uint64_t* keys;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t row = indices.row(i);
    keys[i] = key_of(row >= 0 ? row : indices.extent, i);
  }
};

/// By element: index i of [outer, count, inner] goes to an element of [outer, extent, inner].
struct ElementKey {
  Indices indices;
  uint64_t* keys;
  int64_t outer, count, inner;
  SR_HOST_DEVICE int64_t place(int64_t i) const {
    const int64_t row = indices.row(i), o = i / (count * inner);
    return row >= 0 ? (o * indices.extent + row) * inner + i % inner : -1;
  }
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = place(i);
    keys[i] = key_of(at >= 0 ? at : outer * indices.extent * inner, i);
  }
};

/// Runs of kRun keys, each sorted: a key's place is how many of its run are less.
struct SortRuns {
  static constexpr int64_t kRun = 256;
  const uint64_t* from;
  uint64_t* to;
  int64_t count;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t begin = i / kRun * kRun, end = begin + kRun < count ? begin + kRun : count;
    const uint64_t key = from[i];
    int64_t less = begin;
    for (int64_t k = begin; k < end; ++k) less += from[k] < key;
    to[less] = key;
  }
};

/// Two sorted runs of `run` keys become one.
struct MergeRuns {
  const uint64_t* from;
  uint64_t* to;
  int64_t count, run;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t begin = i / (2 * run) * (2 * run);
    const int64_t middle = begin + run < count ? begin + run : count;
    const int64_t end = begin + 2 * run < count ? begin + 2 * run : count;
    const uint64_t key = from[i];
    to[i < middle ? i + lower_bound(from + middle, end - middle, key)
                  : begin + (i - middle) + lower_bound(from + begin, middle - begin, key)] = key;
  }
};

inline int64_t sort_bytes(int64_t count) {
  return 2 * count * static_cast<int64_t>(sizeof(uint64_t));
}

/// The keys that `make` makes, sorted, in `memory` of sort_bytes(count).
template <class On, class Make>
const uint64_t* sorted_keys(const KernelArgs& args, void* memory, int64_t count, Make make) {
  auto* keys = static_cast<uint64_t*>(memory);
  uint64_t* other = keys + count;
  make.keys = keys;
  On::each(args, count, make, "keys");
  On::each(args, count, SortRuns{keys, other, count}, "sort");
  std::swap(keys, other);
  for (int64_t run = SortRuns::kRun; run < count; run *= 2) {
    On::each(args, count, MergeRuns{keys, other, count, run}, "sort");
    std::swap(keys, other);
  }
  return keys;
}

/// Keys hold 32 bits of each.
inline Refusal keys_refuse(int64_t places, int64_t numbers) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (places < kMost && numbers < kMost) return std::nullopt;
  return "sorts fewer than 2^31 indices by fewer than 2^31 places";
}

}  // namespace shardrun::cuda
