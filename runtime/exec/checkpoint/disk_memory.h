// Disk memory: buffers that a disk is read into and written from.
#pragma once

#include <cstdint>
#include <memory>

namespace shardrun {

/// Of so many bytes, on a boundary of huge pages and of them where the system has some: a transfer
/// past the page cache then has few pieces. Its pages are there when it returns. Null of no bytes.
/// Throws Error(out_of_memory).
std::shared_ptr<char> disk_memory(int64_t bytes);

}  // namespace shardrun
