// Plan: JSON form, structural hash and checks.
#include "graph/plan.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/philox.h"
#include "base/printable.h"
#include "graph/json_text.h"
#include "graph/plan_json.h"

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
  const json& value = field(object, name, origin);
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (const std::optional<T> number = whole_number<T>(value)) return *number;
    SR_REQUIRE(!value.is_number(), invalid_input, origin, ": field '", name, "' is ", value.dump(),
               ", wanted a whole number of at most ", std::numeric_limits<T>::max());
  } else {
    try {
      return value.get<T>();
    } catch (const json::exception&) {
    }
  }
  fail(ErrorKind::invalid_input, origin, ": field '", name, "' has the wrong type");
}

/// `where`: "field values['wte']".
Sharding sharding_from(const json& item, const Mesh& mesh, const std::string& where) {
  SR_REQUIRE(item.is_string(), invalid_input, where, " is not a sharding");
  constexpr size_t kMostBytes = 4096;  // errors have it in them
  const size_t bytes = item.get_ref<const std::string&>().size();
  SR_REQUIRE(bytes <= kMostBytes, invalid_input, where, " has ", bytes, " bytes, wanted at most ",
             kMostBytes);
  try {
    return parse_sharding(item.get<std::string>(), mesh);
  } catch (const Error& e) {
    throw e.with_context(where);
  }
}

std::vector<Sharding> shardings_from(const json& node, const char* name, const Mesh& mesh,
                                     const std::string& where) {
  const json& list = field(node, name, where);
  SR_REQUIRE(list.is_array(), invalid_input, where, ": '", name, "' is not a list of shardings");
  std::vector<Sharding> out;
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(sharding_from(list[i], mesh, str(where, ".", name, "[", i, "]")));
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

ReduceOp op_from(const std::string& name, const std::string& origin) {
  for (const ReduceOp op : kReduceOps) {
    if (to_string(op) == name) return op;
  }
  fail(ErrorKind::invalid_input, origin, ": field 'op' is '", name,
       "', wanted sum, max, min or prod");
}

const json& object_of(const json& object, const char* name, const std::string& origin) {
  const json& by_name = field(object, name, origin);
  SR_REQUIRE(by_name.is_object(), invalid_input, origin, ": field '", name, "' is not an object");
  return by_name;
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
  for (const Rows& r : node.rows) {
    out["rows"].push_back({{"of", dim_json(r.of)},
                           {"by", dim_json(r.by)},
                           {"op", to_string(r.op)},
                           {"most_named", r.most_named},
                           {"most_owned", r.most_owned}});
  }
  return out;
}

/// `where`: "field nodes['h.0.MatMul']".
NodePlan node_from(const json& object, const Mesh& mesh, const std::string& where) {
  NodePlan node;
  node.in = shardings_from(object, "in", mesh, where);
  node.out = shardings_from(object, "out", mesh, where);
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
  if (object.contains("rows")) {
    for (const json& r : list_of(object, "rows", where)) {
      node.rows.push_back(
          {dim_from(field(r, "of", where), where), dim_from(field(r, "by", where), where),
           op_from(get<std::string>(r, "op", where), where), get<int64_t>(r, "most_named", where),
           get<int64_t>(r, "most_owned", where)});
    }
  }
  return node;
}

Mesh mesh_from(const json& list) {
  SR_REQUIRE(list.is_array(), invalid_input, "field 'mesh' is not a list of axes");
  std::vector<Mesh::Axis> axes;
  for (const json& axis : list) {
    axes.push_back({get<std::string>(axis, "name", "field 'mesh'"),
                    get<int64_t>(axis, "size", "field 'mesh'")});
  }
  try {
    return Mesh(std::move(axes));
  } catch (const Error& e) {
    throw e.with_context("field 'mesh'");
  }
}

uint64_t hash_from(const json& root, const char* name) {
  const std::string text = get<std::string>(root, name, "plan");
  char* end = nullptr;
  const uint64_t hash = std::strtoull(text.c_str(), &end, 16);
  SR_REQUIRE(!text.empty() && *end == '\0', invalid_input, "field '", name, "' is '", text,
             "', wanted hexadecimal");
  return hash;
}

uint64_t mix(uint64_t hash, const std::string& text) {
  return hash * 0x9E3779B97F4A7C15ull ^ hash_name(text.data(), text.size());
}

}  // namespace

void each_end(const Graph& graph, const Plan& plan,
              const std::function<void(ValueId, const Sharding&, Phase)>& want) {
  const auto lies = [&](ValueId id) -> const Sharding& {
    return plan.values.at(graph.value(id).name);
  };
  const auto want_whole = [&](ValueId id) {
    want(id, Sharding::replicated(graph.type(id).shape.size()), graph.last_phase());
  };
  for (ValueId id : graph.outputs) {
    if (!graph.outputs_stay_cut || !lies(id).partial.empty()) want_whole(id);
  }
  for (const auto& [name, id] : graph.metrics) want_whole(id);
  for (const auto& [held, next] : graph.updates) want(next, lies(held), graph.phase_of(next));
}

uint64_t structural_hash(const Graph& graph) {
  const auto number = [](auto n) { return std::to_string(static_cast<int64_t>(n)); };
  uint64_t hash = mix(1, "k" + number(graph.micro_batches));
  for (const Value& value : graph.values()) {
    if (value.role == Role::computed) continue;
    hash = mix(hash, value.name + to_string(value.type) + number(value.role));
  }
  for (const Node& node : graph.nodes()) {
    hash = mix(hash, node.op + "{" + to_string(node.attrs) + "}" + number(node.phase));
    for (ValueId id : node.inputs) hash = mix(hash, "i" + number(id));
    for (ValueId id : node.outputs) hash = mix(hash, "o" + number(id) + to_string(graph.type(id)));
  }
  for (ValueId id : graph.outputs) hash = mix(hash, "r" + number(id));
  if (graph.outputs_stay_cut) hash = mix(hash, "c");
  for (const auto& [persistent, next] : graph.updates)
    hash = mix(hash, "u" + number(persistent) + "," + number(next));
  return hash;
}

uint64_t mesh_hash(const Mesh& mesh) {
  uint64_t hash = 2;
  for (const Mesh::Axis& axis : mesh.axes()) hash = mix(hash, str(axis.name, "=", axis.size));
  return hash;
}

json json_of(const Plan& plan) {
  json values = json::object();
  for (const auto& [name, sharding] : plan.values) values[name] = to_string(sharding, plan.mesh);
  json nodes = json::object();
  for (const auto& [name, node] : plan.nodes) nodes[name] = node_json(node, plan.mesh);
  json redistributed = json::object();
  for (const auto& [name, sharding] : plan.redistributed)
    redistributed[name] = to_string(sharding, plan.mesh);
  json mesh = json::array();
  for (const auto& axis : plan.mesh.axes())
    mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  return {{"format", "shardrun-plan-1"},
          {"mesh", mesh},
          {"planner", plan.planner},
          {"model_hash", str(std::hex, plan.model_hash)},
          {"mesh_hash", str(std::hex, mesh_hash(plan.mesh))},
          {"seconds", plan.seconds},
          {"compute_seconds", plan.compute_seconds},
          {"comm_seconds", plan.comm_seconds},
          {"hidden_seconds", plan.hidden_seconds},
          {"bytes", plan.bytes},
          {"values", values},
          {"nodes", nodes},
          {"redistributed", redistributed},
          {"regathered", plan.regathered},
          {"recompute", plan.recompute},
          {"keep_casts", plan.keep_casts},
          {"keep_packed", plan.keep_packed},
          {"hold_fraction", plan.hold_fraction}};
}

std::string to_json(const Plan& plan) { return json_of(plan).dump(1) + "\n"; }

Plan plan_from_json(const std::string& text, const std::string& origin) {
  const json root = parse_json<json>(text, origin, "a plan");
  Plan plan;
  try {
    const std::string format = get<std::string>(root, "format", "plan");
    SR_REQUIRE(format == "shardrun-plan-1", invalid_input, "field 'format' is '", format,
               "', wanted 'shardrun-plan-1'");
    plan.mesh = mesh_from(field(root, "mesh", "plan"));
    const uint64_t hash = hash_from(root, "mesh_hash");
    SR_REQUIRE(hash == mesh_hash(plan.mesh), invalid_input, "field 'mesh' is ",
               plan.mesh.to_string(), ", and field 'mesh_hash' is of another (", std::hex, hash,
               ", this one has ", mesh_hash(plan.mesh), "); plan anew for another mesh");
    plan.planner = printable(get<std::string>(root, "planner", "plan"));
    plan.model_hash = hash_from(root, "model_hash");
    plan.seconds = get<double>(root, "seconds", "plan");
    plan.compute_seconds = get<double>(root, "compute_seconds", "plan");
    plan.comm_seconds = get<double>(root, "comm_seconds", "plan");
    if (root.contains("hidden_seconds"))  // an older file has none
      plan.hidden_seconds = get<double>(root, "hidden_seconds", "plan");
    SR_REQUIRE(plan.hidden_seconds >= 0, invalid_input, "field 'hidden_seconds' is ",
               plan.hidden_seconds, ", wanted at least 0");
    const double parts = plan.compute_seconds + plan.comm_seconds - plan.hidden_seconds;
    SR_REQUIRE(std::abs(plan.seconds - parts) <= 1e-9 * std::abs(parts) && parts >= 0,
               invalid_input, "field 'seconds' is ", plan.seconds,
               ", wanted 'compute_seconds' and 'comm_seconds' less 'hidden_seconds', ", parts);
    plan.bytes = get<int64_t>(root, "bytes", "plan");
    for (const auto& [name, sharding] : object_of(root, "values", "plan").items())
      plan.values[name] = sharding_from(sharding, plan.mesh, "field values['" + name + "']");
    const bool older = root.contains("handed") && !root.contains("redistributed");
    const std::string list = older ? "handed" : "redistributed";
    for (const auto& [name, sharding] : object_of(root, list.c_str(), "plan").items())
      plan.redistributed[name] =
          sharding_from(sharding, plan.mesh, "field " + list + "['" + name + "']");
    for (const std::string& name : get<std::vector<std::string>>(root, "regathered", "plan"))
      plan.regathered.insert(name);
    for (const std::string& name : get<std::vector<std::string>>(root, "recompute", "plan"))
      plan.recompute.insert(name);
    plan.keep_casts = get<bool>(root, "keep_casts", "plan");
    plan.keep_packed = get<bool>(root, "keep_packed", "plan");
    if (root.contains("hold_fraction"))  // an older file has none
      plan.hold_fraction = get<double>(root, "hold_fraction", "plan");
    SR_REQUIRE(plan.hold_fraction >= 0 && plan.hold_fraction <= 1, invalid_input,
               "field 'hold_fraction' is ", plan.hold_fraction, ", wanted 0 to 1");
    for (const auto& [name, node] : object_of(root, "nodes", "plan").items()) {
      plan.nodes[name] = node_from(node, plan.mesh, "field nodes['" + name + "']");
    }
  } catch (const Error& e) {
    throw e.with_context(origin);
  }
  return plan;
}

namespace {

/// `where`: what makes the text in front of an error.
template <class F>
void check_rank(const Sharding& sharding, const Mesh& mesh, const TensorType& type,
                const F& where) {
  try {
    check_sharding(sharding, mesh, type.shape.size());
  } catch (const Error& e) {
    throw e.with_context(where());
  }
}

/// The values that a plan says something of.
bool is_planned(const Value& value) { return value.role != Role::computed || value.producer >= 0; }

void check_values(const Plan& plan, const Graph& graph) {
  size_t planned = 0;
  for (const Value& value : graph.values()) {
    if (!is_planned(value)) continue;
    ++planned;
    const auto it = plan.values.find(value.name);
    SR_REQUIRE(it != plan.values.end(), invalid_input, "plan: field 'values' lacks '", value.name,
               "'");
    check_rank(it->second, plan.mesh, value.type,
               [&] { return "plan: field values['" + value.name + "']"; });
    const auto redistributed = plan.redistributed.find(value.name);
    if (redistributed == plan.redistributed.end()) continue;
    check_rank(redistributed->second, plan.mesh, value.type,
               [&] { return "plan: field redistributed['" + value.name + "']"; });
  }
  if (plan.values.size() == planned && plan.redistributed.empty() && plan.regathered.empty())
    return;
  std::set<std::string_view> known;
  for (const Value& value : graph.values()) {
    if (is_planned(value)) known.insert(value.name);
  }
  const auto require_known = [&](const std::string& name, const char* field) {
    SR_REQUIRE(known.count(name) > 0, invalid_input, "plan: field '", field, "' has '", name,
               "', which the model has not");
  };
  for (const auto& [name, sharding] : plan.values) require_known(name, "values");
  for (const auto& [name, sharding] : plan.redistributed) require_known(name, "redistributed");
  for (const std::string& name : plan.regathered) require_known(name, "regathered");
}

void check_node(const NodePlan& plan, const Node& node, const Plan& of, const Graph& graph) {
  const auto where = [&] { return "plan: field nodes['" + node.name + "']"; };
  SR_REQUIRE(plan.in.size() == node.inputs.size() && plan.out.size() == node.outputs.size(),
             invalid_input, where(), " has ", plan.in.size(), " operands and ", plan.out.size(),
             " results, wanted ", node.inputs.size(), " and ", node.outputs.size());
  std::vector<Shape> in, out;
  for (ValueId id : node.inputs) in.push_back(graph.type(id).shape);
  for (ValueId id : node.outputs) out.push_back(graph.type(id).shape);
  try {
    check_node_plan(plan, in, out, of.mesh);
  } catch (const Error& e) {
    throw e.with_context(where());
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Value& value = graph.value(node.outputs[i]);
    const Sharding& lies = of.values.at(value.name);
    SR_REQUIRE(plan.out[i] == lies, invalid_input, where(), ".out[", i, "] is ",
               to_string(plan.out[i], of.mesh), ", but values['", value.name, "'] is ",
               to_string(lies, of.mesh));
  }
}

}  // namespace

void check_plan(const Plan& plan, const Graph& graph) {
  SR_REQUIRE(plan.model_hash == structural_hash(graph), invalid_input,
             "plan: field 'model_hash' is ", std::hex, plan.model_hash,
             ", this model (with these options) has ", structural_hash(graph),
             "; plan it again with the same model and options");
  check_values(plan, graph);
  for (const Node& node : graph.nodes()) {
    const auto it = plan.nodes.find(node.name);
    SR_REQUIRE(it != plan.nodes.end(), invalid_input, "plan: field 'nodes' lacks '", node.name,
               "'");
    check_node(it->second, node, plan, graph);
  }
  if (plan.nodes.size() == graph.nodes().size()) return;
  std::set<std::string_view> known;
  for (const Node& node : graph.nodes()) known.insert(node.name);
  for (const auto& [name, node] : plan.nodes) {
    SR_REQUIRE(known.count(name) > 0, invalid_input, "plan: field 'nodes' has '", name,
               "', which the model has not");
  }
}

}  // namespace shardrun
