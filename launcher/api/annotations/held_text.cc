// Metadata of annotated models, as JSON.
#include "annotations/held_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "base/printable.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

using nlohmann::json;

constexpr size_t kShownEntry = 200;
constexpr const char* kHeldForm =
    R"({"mesh": "data=2", "held": [{"lies": "[{data}, -]", "values": ["w"]}]})";
constexpr const char* kStepForm =
    R"({"of": "1f", "lies": [{"lies": "[{data}]", "values": ["%x"], "reads": [["%x", "sum"]], )"
    R"("copied": []}], )"
    R"("anew": ["w"], "shared": []})";

bool is_text(const json& one) { return one.is_string(); }

bool has_list(const json& root, const char* name) {
  return root.is_object() && root.contains(name) && root[name].is_array();
}

bool has_text(const json& root, const char* name) {
  return root.is_object() && root.contains(name) && root[name].is_string();
}

bool has_texts(const json& root, const char* name) {
  return has_list(root, name) && std::all_of(root[name].begin(), root[name].end(), is_text);
}

std::string shown(const json& entry) { return excerpt(entry.dump(), kShownEntry); }

std::vector<std::string> texts(const json& list) { return list.get<std::vector<std::string>>(); }

LiesSo parse_held_entry(const json& group) {
  SR_REQUIRE(has_text(group, "lies") && has_texts(group, "values"), invalid_input,
             "an entry of 'held' is ", shown(group), ", wanted ", kHeldForm);
  return {group["lies"].get<std::string>(), texts(group["values"]), {}, {}};
}

StepText parse_step(const json& step) {
  SR_REQUIRE(has_text(step, "of") && has_list(step, "lies") && has_texts(step, "anew") &&
                 has_texts(step, "shared"),
             invalid_input, "'step' is ", shown(step), ", wanted ", kStepForm);
  StepText out;
  out.of = step["of"].get<std::string>();
  for (const json& group : step["lies"]) {
    const auto is_read = [](const json& read) {
      return read.is_array() && read.size() == 2 && is_text(read[0]) && is_text(read[1]);
    };
    SR_REQUIRE(has_text(group, "lies") && has_texts(group, "values") &&
                   has_texts(group, "copied") && has_list(group, "reads") &&
                   std::all_of(group["reads"].begin(), group["reads"].end(), is_read),
               invalid_input, "an entry of 'lies' in 'step' is ", shown(group), ", wanted ",
               kStepForm);
    LiesSo& said = out.lies.emplace_back();
    said.lies = group["lies"].get<std::string>();
    said.values = texts(group["values"]);
    said.copied = texts(group["copied"]);
    for (const json& read : group["reads"])
      said.reads.emplace_back(read[0].get<std::string>(), read[1].get<std::string>());
  }
  out.anew = texts(step["anew"]);
  out.shared = texts(step["shared"]);
  return out;
}

}  // namespace

std::string to_text(const HeldText& held) {
  json groups = json::array();
  for (const LiesSo& group : held.held)
    groups.push_back({{"lies", group.lies}, {"values", group.values}});
  json out = {{"mesh", held.mesh.to_string()}, {"held", groups}};
  if (!held.step) return out.dump();
  json lies = json::array();
  for (const LiesSo& group : held.step->lies) {
    json reads = json::array();
    for (const auto& [value, node] : group.reads) reads.push_back(json::array({value, node}));
    lies.push_back({{"lies", group.lies},
                    {"values", group.values},
                    {"reads", reads},
                    {"copied", group.copied}});
  }
  out["step"] = {{"of", held.step->of},
                 {"lies", lies},
                 {"anew", held.step->anew},
                 {"shared", held.step->shared}};
  return out.dump();
}

HeldText parse_held(const std::string& text) {
  const auto root = parse_json<json>(text, "value", kHeldForm);
  SR_REQUIRE(has_text(root, "mesh") && has_list(root, "held"), invalid_input,
             "has no text 'mesh' or no list 'held', wanted ", kHeldForm);
  HeldText out;
  out.mesh = Mesh::parse(root["mesh"].get<std::string>());
  for (const json& group : root["held"]) out.held.push_back(parse_held_entry(group));
  if (root.contains("step")) out.step = parse_step(root["step"]);
  return out;
}

std::string wiring_of(const Graph& graph) {
  uint64_t hash = hash_name("", 0);
  const auto add = [&](const std::string& text) {
    hash = hash_name(text.c_str(), text.size() + 1, hash);  // with the 0 that ends it
  };
  for (const Node& node : graph.nodes()) {
    add(node.op);
    add(node.name);
    for (const std::vector<ValueId>& values : {node.inputs, node.outputs}) {
      for (ValueId id : values) add(graph.value(id).name);
      add("");
    }
  }
  return str(std::hex, hash);
}

}  // namespace shardrun
