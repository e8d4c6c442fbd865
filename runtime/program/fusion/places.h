// Where steps read and write, as far as it is known.
#pragma once

#include "graph/program.h"

namespace shardrun {

/// Bytes that a step reads or writes.
struct Access {
  int64_t begin = 0, bytes = 0;
  bool write = false;
  /// Is element i of it, or row r, needed for element i, or row r, of the chain alone?
  bool matching = false;
  int64_t element_bytes = 0;
  size_t step = 0;

  bool overlaps(const Access& other) const {
    return bytes > 0 && other.bytes > 0 && begin < other.begin + other.bytes &&
           other.begin < begin + bytes;
  }
};

/// Buffers' offsets in a placed Program; before that, of each memory holder a range of its own.
class Places {
 public:
  explicit Places(const Program& program);
  bool placed() const { return placed_; }
  Access access(BufferId buffer, bool write, bool matching, size_t step) const;

 private:
  const Program& program_;
  bool placed_ = false;
  std::vector<int64_t> begins_;  // by buffer
};

}  // namespace shardrun
