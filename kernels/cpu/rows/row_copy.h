// Copies of rows, one by one, for kernels that gather.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace shardrun::cpu {

/// Calls f(bytes), short rows' as a size that the compiler knows.
template <class F>
void with_row_size(int64_t bytes, F&& f) {
  switch (bytes) {
    case 2: return f(std::integral_constant<size_t, 2>{});
    case 4: return f(std::integral_constant<size_t, 4>{});
    case 8: return f(std::integral_constant<size_t, 8>{});
    case 16: return f(std::integral_constant<size_t, 16>{});
    case 32: return f(std::integral_constant<size_t, 32>{});
    default: return f(static_cast<size_t>(bytes));
  }
}

/// A row from `from`, or zeros if that is null.
template <class Size>
void copy_or_zero(char* to, const char* from, Size bytes) {
  if (from != nullptr) {
    std::memcpy(to, from, bytes);
  } else {
    std::memset(to, 0, bytes);
  }
}

}  // namespace shardrun::cpu
