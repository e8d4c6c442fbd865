// Offsets, or holders' numbers in their stead.
#include "program/fusion/places.h"

#include "program/memory.h"

namespace shardrun {

Places::Places(const Program& program) : program_(program), placed_(program.arena_bytes > 0) {
  constexpr int64_t kApart = int64_t{1} << 40;  // more than any buffer has bytes
  if (!placed_) {
    const std::vector<BufferId> holders = memory_holders(program);
    for (BufferId holder : holders) begins_.push_back(holder * kApart);
  } else {
    for (const Buffer& b : program.buffers) begins_.push_back(b.offset);
  }
}

Access Places::access(BufferId buffer, bool write, bool matching, size_t step) const {
  const TensorType& type = type_of(program_, buffer);
  return {begins_[static_cast<size_t>(buffer)],
          byte_size(type),
          write,
          matching,
          size_of(type.dtype),
          step};
}

}  // namespace shardrun
