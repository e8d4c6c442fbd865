// The terminal that a person watches.
#pragma once

#include <string>

namespace shardrun::cli {

/// Does a person watch? mpirun gives its ranks a terminal of its own and passes on what they print,
/// so under a launcher it is the launcher's output that counts.
bool on_terminal();

/// As it is now, for it may be resized.
struct TerminalSize {
  int rows = 0;  // 0: not known
  int columns = 80;
};
TerminalSize terminal_size();

/// Columns that a text takes: of UTF-8 its code points, all of one column.
size_t columns_of(const std::string& text);

}  // namespace shardrun::cli
