// Plan: JSON form, structural hash and checks.
#include "graph/plan.h"

#include <nlohmann/json.hpp>

#include "base/philox.h"

namespace shardrun {
namespace {

using nlohmann::json;

json shardings_json(const std::vector<Sharding>& shardings, const Mesh& mesh) {
  json out = json::array();
  for (const Sharding& s : shardings) out.push_back(to_string(s, mesh));
  return out;
}

const json& field(const json& object, const char* name, const std::string& origin) {
  SR_REQUIRE(object.is_object() && object.contains(name), invalid_input, origin, ": field '", name,
             "' is missing");
  return object.at(name);
}

template <class T>
T get(const json& object, const char* name, const std::string& origin) {
  try {
    return field(object, name, origin).get<T>();
  } catch (const json::exception&) {
    fail(ErrorKind::invalid_input, origin, ": field '", name, "' has the wrong type");
  }
}

std::vector<Sharding> shardings_from(const json& list, const Mesh& mesh, const std::string& origin,
                                     const std::string& node) {
  SR_REQUIRE(list.is_array(), invalid_input, origin, ": nodes['", node,
             "'] is not a list of shardings");
  std::vector<Sharding> out;
  for (const json& item : list) {
    SR_REQUIRE(item.is_string(), invalid_input, origin, ": nodes['", node,
               "'] holds something that is no sharding");
    out.push_back(parse_sharding(item.get<std::string>(), mesh));
  }
  return out;
}

json dim_json(const NodeDim& at) {
  return {{at.result ? "result" : "operand", at.index}, {"dim", at.dim}};
}

NodeDim dim_from(const json& object, const std::string& origin) {
  SR_REQUIRE(object.is_object(), invalid_input, origin, ": is no dim of an operand or result");
  const bool result = object.contains("result");
  return {result, get<int>(object, result ? "result" : "operand", origin),
          get<int>(object, "dim", origin)};
}

const json& list_of(const json& object, const char* name, const std::string& origin) {
  const json& list = field(object, name, origin);
  SR_REQUIRE(list.is_array(), invalid_input, origin, ": field '", name, "' is not a list");
  return list;
}

json node_json(const NodePlan& node, const Mesh& mesh) {
  json out = {{"in", shardings_json(node.in, mesh)}, {"out", shardings_json(node.out, mesh)}};
  for (const Halo& h : node.halos) {
    out["halos"].push_back({{"of", dim_json(h.of)},
                            {"anchor", dim_json(h.anchor)},
                            {"num", h.window.num},
                            {"den", h.window.den},
                            {"low", h.window.low},
                            {"high", h.window.high}});
  }
  for (const Blocks& b : node.blocks) {
    json of = json::array();
    for (const NodeDim& dim : b.of) of.push_back(dim_json(dim));
    out["blocks"].push_back({{"result", b.result.index}, {"dim", b.result.dim}, {"of", of}});
  }
  return out;
}

NodePlan node_from(const json& object, const Mesh& mesh, const std::string& origin,
                   const std::string& name) {
  NodePlan node;
  node.in = shardings_from(field(object, "in", origin), mesh, origin, name);
  node.out = shardings_from(field(object, "out", origin), mesh, origin, name);
  const std::string where = origin + ": nodes['" + name + "']";
  if (object.contains("halos")) {
    for (const json& h : list_of(object, "halos", where)) {
      node.halos.push_back({dim_from(field(h, "of", where), where),
                            dim_from(field(h, "anchor", where), where),
                            {get<int64_t>(h, "num", where), get<int64_t>(h, "den", where),
                             get<int64_t>(h, "low", where), get<int64_t>(h, "high", where)}});
    }
  }
  if (object.contains("blocks")) {
    for (const json& b : list_of(object, "blocks", where)) {
      Blocks blocks{{true, get<int>(b, "result", where), get<int>(b, "dim", where)}, {}};
      for (const json& of : list_of(b, "of", where)) blocks.of.push_back(dim_from(of, where));
      node.blocks.push_back(std::move(blocks));
    }
  }
  return node;
}

uint64_t mix(uint64_t hash, const std::string& text) {
  return hash * 0x9E3779B97F4A7C15ull ^ hash_name(text.data(), text.size());
}

}  // namespace

uint64_t structural_hash(const Graph& graph) {
  uint64_t hash = 1;
  for (const Value& value : graph.values()) {
    if (value.role == Role::computed) continue;
    hash = mix(hash, str(value.name, value.type, static_cast<int>(value.role)));
  }
  for (const Node& node : graph.nodes()) {
    hash = mix(hash, str(node.op, "{", to_string(node.attrs), "}", static_cast<int>(node.phase)));
    for (ValueId id : node.inputs) hash = mix(hash, str("i", id));
    for (ValueId id : node.outputs) hash = mix(hash, str("o", id, graph.type(id)));
  }
  for (ValueId id : graph.outputs) hash = mix(hash, str("r", id));
  for (const auto& [persistent, next] : graph.updates)
    hash = mix(hash, str("u", persistent, ",", next));
  return hash;
}

std::string to_json(const Plan& plan) {
  json values = json::object();
  for (const auto& [name, sharding] : plan.values) values[name] = to_string(sharding, plan.mesh);
  json nodes = json::object();
  for (const auto& [name, node] : plan.nodes) nodes[name] = node_json(node, plan.mesh);
  json handed = json::object();
  for (const auto& [name, sharding] : plan.handed) handed[name] = to_string(sharding, plan.mesh);
  json mesh = json::array();
  for (const auto& axis : plan.mesh.axes())
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  const json out = {{"format", "shardrun-plan-1"},
                    {"mesh", mesh},
                    {"planner", plan.planner},
                    {"model_hash", str(std::hex, plan.model_hash)},
                    {"seconds", plan.seconds},
                    {"compute_seconds", plan.compute_seconds},
                    {"comm_seconds", plan.comm_seconds},
                    {"bytes", plan.bytes},
                    {"values", values},
                    {"nodes", nodes},
                    {"handed", handed},
                    {"regathered", plan.regathered}};
  return out.dump(1) + "\n";
}

Plan plan_from_json(const std::string& text, const std::string& origin) {
  const json root = json::parse(text, nullptr, false);
  SR_REQUIRE(!root.is_discarded(), invalid_input, origin, ": is not JSON");
  SR_REQUIRE(get<std::string>(root, "format", origin) == "shardrun-plan-1", invalid_input, origin,
             ": field 'format' is '", get<std::string>(root, "format", origin),
             "', wanted 'shardrun-plan-1'");
  Plan plan;
  std::vector<Mesh::Axis> axes;
  const json& mesh = field(root, "mesh", origin);
  SR_REQUIRE(mesh.is_array(), invalid_input, origin, ": field 'mesh' is not a list of axes");
  for (const json& axis : mesh) {
    axes.push_back({get<std::string>(axis, "name", origin + ": mesh"),
                    get<int64_t>(axis, "size", origin + ": mesh")});
  }
  try {
    plan.mesh = Mesh(std::move(axes));
    plan.planner = get<std::string>(root, "planner", origin);
    const std::string hash = get<std::string>(root, "model_hash", origin);
    char* end = nullptr;
    plan.model_hash = std::strtoull(hash.c_str(), &end, 16);
    SR_REQUIRE(!hash.empty() && *end == '\0', invalid_input, "field 'model_hash' is '", hash,
               "', wanted hexadecimal");
    plan.seconds = get<double>(root, "seconds", origin);
    plan.compute_seconds = get<double>(root, "compute_seconds", origin);
    plan.comm_seconds = get<double>(root, "comm_seconds", origin);
    plan.bytes = get<int64_t>(root, "bytes", origin);
    for (const auto& [name, sharding] : field(root, "values", origin).items()) {
      SR_REQUIRE(sharding.is_string(), invalid_input, "values['", name, "'] is not a sharding");
      plan.values[name] = parse_sharding(sharding.get<std::string>(), plan.mesh);
    }
    for (const auto& [name, sharding] : field(root, "handed", origin).items()) {
      SR_REQUIRE(sharding.is_string(), invalid_input, "handed['", name, "'] is not a sharding");
      plan.handed[name] = parse_sharding(sharding.get<std::string>(), plan.mesh);
    }
    for (const std::string& name : get<std::vector<std::string>>(root, "regathered", origin))
      plan.regathered.insert(name);
    for (const auto& [name, node] : field(root, "nodes", origin).items()) {
      plan.nodes[name] = node_from(node, plan.mesh, origin, name);
    }
  } catch (const Error& e) {
    if (std::string_view(e.what()).substr(0, origin.size()) == origin) throw;
    throw e.with_context(origin);
  }
  return plan;
}

void check_plan(const Plan& plan, const Graph& graph) {
  SR_REQUIRE(plan.model_hash == structural_hash(graph), invalid_input,
             "plan: field 'model_hash' is ", std::hex, plan.model_hash,
             ", this model (with these options) has ", structural_hash(graph),
             "; plan it again with the same model and options");
  for (const Value& value : graph.values()) {
    const bool held = value.role != Role::computed;
    if (!held && value.producer < 0) continue;
    const auto it = plan.values.find(value.name);
    SR_REQUIRE(it != plan.values.end(), invalid_input, "plan: field 'values' lacks '", value.name,
               "'");
    try {
      check_sharding(it->second, plan.mesh, value.type.shape.size());
    } catch (const Error& e) {
      throw e.with_context("plan: values['" + value.name + "']");
    }
    const auto handed = plan.handed.find(value.name);
    if (handed == plan.handed.end()) continue;
    try {
      check_sharding(handed->second, plan.mesh, value.type.shape.size());
    } catch (const Error& e) {
      throw e.with_context("plan: handed['" + value.name + "']");
    }
  }
  for (const Node& node : graph.nodes()) {
    const auto it = plan.nodes.find(node.name);
    SR_REQUIRE(it != plan.nodes.end(), invalid_input, "plan: field 'nodes' lacks '", node.name,
               "'");
    SR_REQUIRE(
        it->second.in.size() == node.inputs.size() && it->second.out.size() == node.outputs.size(),
        invalid_input, "plan: nodes['", node.name, "'] has ", it->second.in.size(),
        " operands and ", it->second.out.size(), " results, wanted ", node.inputs.size(), " and ",
        node.outputs.size());
    std::vector<Shape> in, out;
    for (ValueId id : node.inputs) in.push_back(graph.type(id).shape);
    for (ValueId id : node.outputs) out.push_back(graph.type(id).shape);
    try {
      check_node_plan(it->second, in, out, plan.mesh);
    } catch (const Error& e) {
      throw e.with_context("plan: nodes['" + node.name + "']");
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value& value = graph.value(node.outputs[i]);
      SR_REQUIRE(it->second.out[i] == plan.values.at(value.name), invalid_input, "plan: nodes['",
                 node.name, "'] makes '", value.name, "' in a sharding other than values['",
                 value.name, "']");
    }
  }
}

}  // namespace shardrun
