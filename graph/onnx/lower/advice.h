// What to do about an operator that import does not know.
#pragma once

#include <string>

namespace shardrun::importer {

/// Three lines, each with a newline and a dash before it, that fit the operator: "\n  - export the
/// float model; …".
std::string advice_for(const std::string& op);

}  // namespace shardrun::importer
