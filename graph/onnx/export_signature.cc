#include "graph/onnx/export_signature.h"

#include <algorithm>
#include <string_view>

namespace shardrun::importer {

std::vector<std::string> quoted_names(const std::string& list) {
  std::vector<std::string> out;
  for (size_t open = list.find('\''); open != std::string::npos;) {
    const size_t close = list.find('\'', open + 1);
    if (close == std::string::npos) break;
    out.push_back(list.substr(open + 1, close - open - 1));
    open = list.find('\'', close + 1);
  }
  return out;
}

std::map<std::string, std::string> kinds_in_signature(const std::string& signature) {
  constexpr std::string_view kTarget = "target='";
  std::map<std::string, std::string> out;
  size_t from = 0;
  for (size_t at = signature.find(kTarget); at != std::string::npos;
       at = signature.find(kTarget, from)) {
    const std::string_view before = std::string_view(signature).substr(from, at - from);
    const size_t open = at + kTarget.size();
    from = std::min(signature.find('\'', open), signature.size());
    for (const char* kind : {"PARAMETER", "BUFFER", "CONSTANT_TENSOR"}) {
      const std::string name = kind;
      if (before.find(name + " ") != std::string_view::npos ||
          before.find("InputKind." + name + ":") != std::string_view::npos)
        out.emplace(signature.substr(open, from - open), name);
    }
  }
  return out;
}

}  // namespace shardrun::importer
