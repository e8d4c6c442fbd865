// at(id): a number that counts from 0, as containers take it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun {

inline size_t at(int32_t id) { return static_cast<size_t>(id); }

}  // namespace shardrun
