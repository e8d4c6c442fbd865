// One pass over the bytes.
#include "base/printable.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace shardrun {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: what stands there is no UTF-8
};

Character character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || bytes > text.size()) return {};
  uint32_t code = byte(0) & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool longer_than_needed = code < (bytes == 4 ? 0x10000u : bytes == 3 ? 0x800u : 0x80u);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (longer_than_needed || surrogate || code > 0x10ffff) return {};
  return {code, bytes};
}

/// Controls of ISO 6429, of Unicode's bidirectional algorithm, its separators, and its tags, which
/// are not seen.
bool acts(uint32_t code) {
  struct Span {
    uint32_t first, last;
  };
  constexpr Span kActing[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                              {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                              {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
  return std::any_of(std::begin(kActing), std::end(kActing),
                     [&](const Span& s) { return code >= s.first && code <= s.last; });
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = character_at(text);
    const size_t bytes = std::max<size_t>(1, c.bytes);
    const auto byte = static_cast<unsigned char>(text[0]);
    char code[16] = {};
    if (c.bytes == 0 || (c.code < 0x80 && acts(c.code))) {
      std::snprintf(code, sizeof code, "\\x%02x", byte);
    } else if (c.code >= 0x80 && acts(c.code)) {
      std::snprintf(code, sizeof code, c.code > 0xffff ? "\\U%08x" : "\\u%04x", c.code);
    }
    out += code[0] != '\0' ? std::string_view(code) : text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return out;
}

std::string excerpt(std::string_view text, size_t most) {
  if (text.size() <= most) return printable(text);
  constexpr size_t kMostOfLetter = 4;  // bytes in UTF-8
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  size_t end = most;
  while (end > 0 && most - end < kMostOfLetter && continues(end)) --end;
  return printable(text.substr(0, end)) + "…";
}

bool is_printable(std::string_view text) {
  const auto plain = [](unsigned char c) { return c >= 0x20 && c < 0x7f; };
  return std::all_of(text.begin(), text.end(), plain) || printable(text) == text;
}

}  // namespace shardrun
