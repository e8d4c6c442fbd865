// What to do about an operator, or a form of one, that import does not know.
#pragma once

#include <string>

namespace shardrun::importer {

/// Three lines, each with a newline and a dash before it, that fit the operator, "RoiAlign" or
/// "com.acme::Fancy": "\n  - export the float model; …".
std::string advice_for(const std::string& op);
/// The same for an operator that cannot do with rows that a mask picks.
std::string advice_for_rows(const std::string& op);
/// The same for a size or a setting that depends on data.
std::string advice_for_size();

}  // namespace shardrun::importer
