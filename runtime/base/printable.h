// Text that comes from files, such as names in a model, as people may see it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardrun {

/// The text with everything in it that a terminal would act on written out instead: control
/// characters as \x1b, characters that turn the direction of text or break lines as \u202e, bytes
/// that are no UTF-8 as \xff. Letters of all languages stay, and so does a text that is printable
/// already: printable(printable(t)) == printable(t).
std::string printable(std::string_view text);
bool is_printable(std::string_view text);  // as it is

/// printable(text); of a text of more than `most` bytes the whole letters among these, and "…".
std::string excerpt(std::string_view text, size_t most);

}  // namespace shardrun
