// CRC-32C (Castagnoli's polynomial), which processors compute faster than disks write.
#pragma once

#include <cstdint>

namespace shardrun {

/// Of the bytes, as iSCSI (RFC 3720) and most file formats have it: crc32c("123456789") is
/// 0xE3069283. `before`: of what comes before them, so that
/// crc32c(b, m, crc32c(a, n)) is that of a and b one after the other.
uint32_t crc32c(const void* data, int64_t bytes, uint32_t before = 0);

/// The checksum of a message of which several ranks read a part each. A CRC is linear: what a run
/// of bytes adds to it depends on the run and its place alone, and what all runs add is combined by
/// exclusive or.
///
///   Crc32cPart mine(1000);      // of a message of 1000 bytes
///   mine.add(200, data, 100);   // its bytes [200, 300)
///   crc32c_of_parts(mine.sum() ^ that of who read the rest, 1000) == crc32c(message, 1000)
class Crc32cPart {
 public:
  explicit Crc32cPart(int64_t message_bytes) : bytes_(message_bytes) {}
  /// Runs come in the order of their places, and do not overlap.
  void add(int64_t at, const void* data, int64_t bytes);
  uint32_t sum() const;

 private:
  int64_t bytes_;
  int64_t at_ = 0;    // behind the last run
  uint32_t sum_ = 0;  // as if the message ended there
  int64_t gap_ = 0;   // the last gap between two runs, and what it multiplies by
  uint32_t over_gap_ = 0;
};
uint32_t crc32c_of_parts(uint32_t sum, int64_t message_bytes);

}  // namespace shardrun
