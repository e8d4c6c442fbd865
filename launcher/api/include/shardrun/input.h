// Small files that a call names, read whole and within bounds.
#pragma once

#include "shardrun/shardrun.h"

namespace shardrun {

/// The whole of a regular file of at most `most` bytes; `wanted`: "a plan". Throws Failure(call)
/// that names what there is of `file` for any other: a device or a pipe may have no end.
std::string read_input(const NamedFile& file, const std::string& wanted, int64_t most);
/// Throws Failure(call), with `origin` in front, unless this is JSON that any parser takes alike:
/// no object has a field twice, no text has a byte of 0, and lists and objects are nested no deeper
/// than 64.
void check_json(const std::string& text, const std::string& origin, const std::string& wanted);
/// What a file says, as a sentence may show it: the letters among its first 80 bytes, of which none
/// acts on a terminal.
std::string shortened(const std::string& text);

}  // namespace shardrun
