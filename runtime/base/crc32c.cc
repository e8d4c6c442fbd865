// Checksums by ISA-L, and the arithmetic that combines those of parts.
//
// A register of 32 bits is a polynomial over GF(2), its highest coefficient last; reading n zero
// bytes multiplies it by x^(8 n) modulo Castagnoli's polynomial (Mark Adler's crc32_combine in
// zlib).
#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace shardrun {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;
constexpr uint32_t kOne = 1u << 31;  // the polynomial 1

uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

/// x^(8 bytes).
uint32_t over(int64_t bytes) {
  uint32_t power = kOne, square = kOne >> 8;  // x^8
  for (auto rest = static_cast<uint64_t>(bytes); rest != 0; rest >>= 1) {
    if (rest & 1) power = multiply(square, power);
    square = multiply(square, square);
  }
  return power;
}

/// The register after these bytes.
uint32_t after(uint32_t reg, const void* data, int64_t bytes) {
  // Its interface takes bytes that it could change, and an int.
  auto* from = static_cast<unsigned char*>(const_cast<void*>(data));
  while (bytes > 0) {
    const auto some = static_cast<int>(std::min<int64_t>(bytes, 1 << 30));
    reg = crc32_iscsi(from, some, reg);
    from += some;
    bytes -= some;
  }
  return reg;
}

}  // namespace

uint32_t crc32c(const void* data, int64_t bytes, uint32_t before) {
  return ~after(~before, data, bytes);
}

void Crc32cPart::add(int64_t at, const void* data, int64_t bytes) {
  if (const int64_t gap = at - at_; sum_ != 0 && gap != 0) {
    if (gap != gap_) gap_ = gap, over_gap_ = over(gap);
    sum_ = multiply(over_gap_, sum_);
  }
  sum_ = after(sum_, data, bytes);
  at_ = at + bytes;
}

uint32_t Crc32cPart::sum() const { return multiply(over(bytes_ - at_), sum_); }

uint32_t crc32c_of_parts(uint32_t sum, int64_t message_bytes) {
  return ~(multiply(over(message_bytes), ~0u) ^ sum);
}

}  // namespace shardrun
