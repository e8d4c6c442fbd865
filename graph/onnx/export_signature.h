// What PyTorch's exporter writes of a module's tensors into metadata.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shardrun::importer {

/// The names in "['a', 'b.weight']".
std::vector<std::string> quoted_names(const std::string& list);

/// What a signature says of the tensors that a module owns, by name. Both forms in which PyTorch
/// has written one are read: "p_w: PARAMETER target='w'", a line for each, and
/// "InputSpec(kind=<InputKind.PARAMETER: 2>, arg=…, target='w', …)".
std::map<std::string, std::string> kinds_in_signature(const std::string& signature);

}  // namespace shardrun::importer
