// protobuf's wire format: a message is fields one after the other, each with a tag in front, a
// message within is a field with a length (protobuf.dev/programming-guides/encoding).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun::importer {

/// Reads a base-128 varint; false if the bytes end or it is longer than 64 bits.
inline bool read_varint(std::string_view bytes, size_t& at, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at >= bytes.size()) return false;
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/// Of a field that is a varint, with its tag.
inline uint64_t number_in(std::string_view whole) {
  size_t at = 0;
  uint64_t value = 0;
  read_varint(whole, at, value);  // its tag
  read_varint(whole, at, value);
  return value;
}

/// Calls f(field, whole, payload) for each field of a message: `whole` with its tag, `payload` only
/// for length-delimited ones. False if the bytes are not a message, or f says so.
template <class F>
bool for_each_field(std::string_view bytes, F f) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t start = at;
    uint64_t tag = 0, length = 0;
    if (!read_varint(bytes, at, tag) || tag >> 3 == 0) return false;
    std::optional<std::string_view> payload;
    switch (tag & 7) {
      case 0:
        if (!read_varint(bytes, at, length)) return false;
        break;
      case 1: at += 8; break;
      case 5: at += 4; break;
      case 2:
        if (!read_varint(bytes, at, length) || length > bytes.size() - at) return false;
        payload = bytes.substr(at, length);
        at += length;
        break;
      default: return false;
    }
    if (at > bytes.size()) return false;
    if (!f(tag >> 3, bytes.substr(start, at - start), payload)) return false;
  }
  return true;
}

inline void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}

/// The tag and the length of a field whose payload follows.
inline void append_field(std::string& to, uint64_t field, uint64_t bytes) {
  append_varint(to, field << 3 | 2);
  append_varint(to, bytes);
}

}  // namespace shardrun::importer
