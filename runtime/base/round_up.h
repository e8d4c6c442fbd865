// Rounding up to whole multiples, of non-negative numbers.
#pragma once

#include <cstdint>

namespace shardrun {

/// Of 10 by 4: 3.
constexpr int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
/// Of 10 to 4: 12.
constexpr int64_t round_up(int64_t n, int64_t to) { return divide_up(n, to) * to; }
/// Bytes, so that what follows begins at a boundary of 64: parts of workspaces and of staging.
constexpr int64_t round_up_64(int64_t bytes) { return round_up(bytes, 64); }

}  // namespace shardrun
