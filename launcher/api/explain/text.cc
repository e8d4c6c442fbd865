// Numbers and lines as reports show them.
#include "explain/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace shardrun {

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string ms(double seconds) {
  if (seconds >= 0.9995) return format("%.4g s", seconds);
  return format(seconds < 1e-6 ? "%.4f ms" : "%.3g ms", seconds * 1e3);
}

std::string signed_ms(double seconds) {
  const double size = std::abs(seconds);
  if (size < 5e-8) return "+0 ms";
  if (size >= 0.9995) return format("%+.4g s", seconds);
  return format(size < 1e-6 ? "%+.4f ms" : "%+.3g ms", seconds * 1e3);
}

std::string mib(int64_t bytes) { return format("%.2f MiB", static_cast<double>(bytes) / 0x1p20); }

std::string signed_mib(int64_t bytes) {
  return format("%+.2f MiB", static_cast<double>(bytes) / 0x1p20);
}

std::string percent(double part, double whole) {
  return format("%.1f %%", whole > 0 ? 100 * part / whole : 0);
}

std::string left(const std::string& text, size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

std::string right(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string wrapped(const std::string& first, const std::string& text) {
  std::string out, line = first, word;
  int depth = 0;
  bool fresh = true;  // no word on this line yet
  const auto flush = [&] {
    if (word.empty()) return;
    const size_t needed = word.size() + (fresh ? 0 : 1);
    if (!fresh && line.size() + needed > kColumns) {
      out += line + "\n";
      line = std::string(first.size(), ' ');
      fresh = true;
    }
    line += (fresh ? "" : " ") + word;
    fresh = false;
    word.clear();
  };
  for (char c : text) {
    const bool remark = c == '(' && word.empty();  // prose, unlike "partial(sum: a)"
    if (c == '[' || c == '{' || (c == '(' && !remark)) ++depth;
    if (c == ']' || c == '}' || c == ')') depth = std::max(0, depth - 1);
    if (c == ' ' && depth == 0) {
      flush();
    } else {
      word += c;
    }
  }
  flush();
  return out + line + "\n";
}

std::string part_row(size_t indent, const std::string& name, const std::string& amount,
                     const std::string& fraction, const std::string& remark) {
  std::string row =
      left(std::string(indent, ' ') + name, 34) + right(amount, 12) + right(fraction, 10);
  if (remark.empty()) return row + "\n";
  return wrapped(row + "   ", remark);
}

}  // namespace shardrun
