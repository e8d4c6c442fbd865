// Numbers and lines as reports show them, on terminals of 100 columns.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun {

inline constexpr size_t kColumns = 100;

std::string format(const char* pattern, double value);
std::string ms(double seconds);                  // "17.9 ms", "1.25 s"
std::string signed_ms(double seconds);           // "+0.31 ms"
std::string mib(int64_t bytes);                  // "9.81 MiB"
std::string signed_mib(int64_t bytes);           // "+0.05 MiB"
std::string percent(double part, double whole);  // "79.8 %"

/// `text` in at least `width` columns, blanks behind or in front.
std::string left(const std::string& text, size_t width);
std::string right(const std::string& text, size_t width);

/// `first`, then as many words of `text` as go on each line, and a line's end. Lines behind the
/// first begin with as many blanks as `first` has characters. A word ends at a blank outside all
/// brackets, so that a Sharding stays together; remarks (like this) do not.
std::string wrapped(const std::string& first, const std::string& text);

/// One row of a table of parts: its name, an amount with its fraction, and a remark.
std::string part_row(size_t indent, const std::string& name, const std::string& amount,
                     const std::string& fraction, const std::string& remark = "");

}  // namespace shardrun
