// What the backends of Communicator share: the reduction in rank order, the sizes of the chunks in
// which it is done, memory, and checks of arguments.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/round_up.h"
#include "base/shape.h"
#include "collectives/communicator.h"

namespace shardrun {

/// out[o][i] = in[0][i] op in[1][i] op …, from left to right, for each o; bf16 in f32 and rounded
/// once. Outputs may be inputs. max and min: a NaN wins. Integers wrap around. Throws unsupported
/// for f16.
void reduce_in_rank_order(std::span<const void* const> in, std::span<void* const> out,
                          int64_t count, DType dtype, Reduction op);
inline void reduce_in_rank_order(std::span<const void* const> in, void* out, int64_t count,
                                 DType dtype, Reduction op) {
  reduce_in_rank_order(in, std::span<void* const>(&out, 1), count, dtype, op);
}

/// The same in parts, for ranks that cannot see all inputs: `acc`, of accumulated_type(dtype),
/// holds what the ranks before have made (nothing if `fresh`), and takes on `in` from left to
/// right. round_accumulated then gives every `out` the bits that one reduction of all would have
/// given.
DType accumulated_type(DType dtype);
void accumulate_in_rank_order(void* acc, bool fresh, std::span<const void* const> in, int64_t count,
                              DType dtype, Reduction op);
void round_accumulated(const void* acc, std::span<void* const> out, int64_t count, DType dtype);

/// Memory of this process alone, for Communicator::allocate: on huge pages where there are any.
/// Throws out_of_memory.
std::shared_ptr<char> private_memory(int64_t bytes);

/// Reductions go chunk by chunk of this many bytes a peer, so that what arrives stays in cache.
inline constexpr int64_t kReduceChunkBytes = 256 << 10;
/// An all_reduce up to this size is one exchange of everything with everybody; between nodes every
/// call is.
inline constexpr int64_t kSmallAllReduceBytes = 16 << 10;

/// Of several buffers as if they were one, end to end: how many elements, and f(buffer, begin of
/// the part in it, its size, its place in the range) for the part of each that lies in `range`.
int64_t count_of(std::span<const Reduced> buffers);
template <class F>
void each_part(std::span<const Reduced> buffers, Range range, const F& f) {
  int64_t begin = 0;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const int64_t first = std::max(begin, range.begin);
    const int64_t end = std::min(begin + buffers[b].count, range.begin + range.size);
    if (first < end) f(b, first - begin, end - first, first - range.begin);
    begin += buffers[b].count;
  }
}

/// Sum of counts before `rank`.
int64_t offset_of(std::span<const int64_t> counts, int rank);
int64_t sum_of(std::span<const int64_t> counts);

/// "all_reduce of 64 bytes on rank 1 of 4", or of a part of the job's ranks "all_reduce of 64 bytes
/// on rank 3 (between ranks 1 and 3)". Without bytes they are not named.
std::string call_name(std::string_view operation, const Communicator& on,
                      std::optional<int64_t> bytes = std::nullopt);
/// Of a peer: "rank 3".
std::string peer_name(const Communicator& on, int peer);

/// Throws Error(comm): one count per rank, none negative.
void check_counts(std::string_view operation, std::span<const int64_t> counts,
                  const Communicator& on);
/// What can be reduced: all but f16, which no one computes in.
inline constexpr std::array kReducible = {DType::f32, DType::f64, DType::bf16, DType::i8,
                                          DType::u8,  DType::i32, DType::i64,  DType::boolean};
/// Throws Error(unsupported) for others.
void check_reducible(std::string_view operation, DType dtype, const Communicator& on);
/// Throws Error(comm): a rank that exists.
void check_peer(std::string_view operation, int peer, const Communicator& on);
/// Throws Error(comm): ranks that exist, each in at most one group.
void check_groups(const std::vector<std::vector<int>>& groups, const Communicator& on);

}  // namespace shardrun
