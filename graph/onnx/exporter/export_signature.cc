#include "graph/onnx/exporter/export_signature.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace shardrun::importer {
namespace {

bool says(std::string_view entry, const std::string& kind) {
  return entry.find(": " + kind + " ") != std::string_view::npos ||
         entry.find("Kind." + kind + ":") != std::string_view::npos;
}

/// The value that an entry is about: "add" in "add: BUFFER_MUTATION " and "…(name='add'), ".
std::string value_of(std::string_view entry) {
  constexpr std::string_view kName = "name='";
  if (const size_t at = entry.rfind(kName); at != std::string_view::npos) {
    const std::string_view rest = entry.substr(at + kName.size());
    return std::string(rest.substr(0, rest.find('\'')));
  }
  const size_t colon = entry.rfind(": ");
  if (colon == std::string_view::npos) return "";
  size_t begin = colon;
  while (begin > 0 && std::isspace(static_cast<unsigned char>(entry[begin - 1])) == 0) --begin;
  return std::string(entry.substr(begin, colon - begin));
}

}  // namespace

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

ExportSignature read_signature(const std::string& text) {
  constexpr std::string_view kTarget = "target='";
  ExportSignature out;
  size_t from = 0;
  for (size_t at = text.find(kTarget); at != std::string::npos; at = text.find(kTarget, from)) {
    const std::string_view entry = std::string_view(text).substr(from, at - from);
    const size_t open = at + kTarget.size();
    from = std::min(text.find('\'', open), text.size());
    const std::string tensor = text.substr(open, from - open);
    for (const char* kind : {"PARAMETER", "BUFFER", "CONSTANT_TENSOR"}) {
      if (!says(entry, kind)) continue;
      out.kinds.emplace(tensor, kind);
      out.placeholders.emplace(value_of(entry), tensor);
    }
    const std::string_view behind = std::string_view(text).substr(from);
    if (behind.substr(0, behind.find(kTarget)).find("persistent=False") != std::string_view::npos)
      out.not_persistent.insert(tensor);
    if (says(entry, "PARAMETER_MUTATION") || says(entry, "BUFFER_MUTATION"))
      out.mutations.push_back({tensor, value_of(entry)});
  }
  return out;
}

ExportSignature signature_of(const ::onnx::GraphProto& graph) {
  for (const auto& entry : graph.metadata_props()) {
    if (entry.key() == "pkg.torch.export.ExportedProgram.graph_signature")
      return read_signature(entry.value());
  }
  return {};
}

std::map<std::string, std::string> value_metadata(const ::onnx::GraphProto& graph,
                                                  const std::string& key) {
  std::map<std::string, std::string> out;
  for (const auto* list : {&graph.input(), &graph.output(), &graph.value_info()}) {
    for (const auto& value : *list) {
      for (const auto& entry : value.metadata_props()) {
        if (entry.key() == key) out[value.name()] = entry.value();
      }
    }
  }
  return out;
}

}  // namespace shardrun::importer
