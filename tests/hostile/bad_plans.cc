// Plan files and cluster files.
#include <nlohmann/json.hpp>

#include "graph/plan.h"
#include "planner/cost/cluster_file.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// y = relu(x + w)
Graph small_graph() {
  Graph graph;
  const ValueId x = graph.add_input("x", {DType::f32, {4, 2}}, Role::batch);
  const ValueId w = graph.add_persistent("w", {DType::f32, {4, 2}}, Role::parameter, {});
  const ValueId sum = graph.add("add", {x, w}, {}, "sum");
  graph.outputs.push_back(graph.add("relu", {sum}, {}, "y"));
  return graph;
}

Json small_plan() {
  const Graph graph = small_graph();
  Plan plan;
  plan.mesh = Mesh::parse("a=2,b=2");
  plan.planner = "test";
  plan.model_hash = structural_hash(graph);
  for (const Value& value : graph.values())
    plan.values[value.name] = Sharding::replicated(value.type.shape.size());
  for (const Node& node : graph.nodes()) {
    NodePlan& of = plan.nodes[node.name];
    of.in.assign(node.inputs.size(), Sharding::replicated(2));
    of.out.assign(node.outputs.size(), Sharding::replicated(2));
  }
  return Json::parse(to_json(plan));
}

/// `file` with what stands at a JSON pointer replaced, or taken away if `value` is null.
std::string changed(Json file, const std::string& pointer, const Json& value) {
  const Json::json_pointer at(pointer);
  if (value.is_null()) {
    Json& parent = file.at(at.parent_pointer());
    parent.is_array() ? parent.erase(std::stoul(at.back())) : void(parent.erase(at.back()));
  } else {
    file[at] = value;
  }
  return file.dump();
}

const std::string kDeep = std::string(100'000, '[') + std::string(100'000, ']');

void add_fields(BadFiles& files) {
  const Json plan = small_plan();
  const auto add = [&](const std::string& name, const std::string& pointer, const Json& value,
                       std::vector<std::string> words) {
    files.add(name, changed(plan, pointer, value), std::move(words));
  };
  for (const char* name : {"format", "mesh", "mesh_hash", "planner", "model_hash", "seconds",
                           "bytes", "values", "nodes", "redistributed", "regathered", "keep_casts"})
    add(std::string("without ") + name, std::string("/") + name, nullptr,
        {std::string("field '") + name + "' is missing"});
  add("another format", "/format", "shardrun-plan-9", {"'format' is 'shardrun-plan-9'"});
  add("a format that is a number", "/format", 1, {"field 'format' has the wrong type"});
  add("a mesh that is a text", "/mesh", "a=2", {"field 'mesh' is not a list"});
  add("an axis of no ranks", "/mesh/0/size", 0, {"field 'mesh'", "'a'", "0"});
  add("an axis of less than none", "/mesh/0/size", -2, {"field 'mesh'", "'a'", "-2"});
  add("an axis of 2^62 ranks", "/mesh/0/size", int64_t{1} << 62, {"field 'mesh'"});
  add("an axis of half a rank", "/mesh/0/size", 1.5, {"field 'size' is 1.5"});
  add("an axis without a name", "/mesh/0/name", "", {"field 'mesh'"});
  add("two axes of one name", "/mesh/0/name", "b", {"field 'mesh'", "'b'"});
  add("another mesh", "/mesh/0/size", 4, {"a=4,b=2", "'mesh_hash' is of another"});
  add("a hash of no digits", "/model_hash", "zz", {"field 'model_hash' is 'zz'"});
  add("another model", "/model_hash", "12", {"field 'model_hash' is 12"});
  add("seconds in words", "/seconds", "many", {"field 'seconds' has the wrong type"});
  add("seconds that do not add up", "/seconds", 3, {"field 'seconds' is 3"});
  add("less than no seconds", "/hidden_seconds", -1, {"field 'hidden_seconds' is -1"});
  add("bytes beyond 64 bits", "/bytes", 1e300, {"field 'bytes' is 1e+300"});
  add("memory that is held for more than twice as much", "/hold_fraction", 1.5,
      {"field 'hold_fraction' is 1.5"});
  add("memory that is held for less", "/hold_fraction", -0.1, {"field 'hold_fraction' is -0.1"});
  add("flags that are numbers", "/keep_packed", 1, {"field 'keep_packed' has the wrong type"});
  add("a list of numbers for names", "/regathered", {1, 2}, {"field 'regathered'"});
}

void add_shardings(BadFiles& files) {
  const Json plan = small_plan();
  const auto add = [&](const std::string& name, const std::string& pointer, const Json& value,
                       std::vector<std::string> words) {
    files.add(name, changed(plan, pointer, value), std::move(words));
  };
  add("a sharding that is a list", "/values/w", {1}, {"values['w'] is not a sharding"});
  add("a sharding of no brackets", "/values/w", "{a}", {"values['w']"});
  add("a sharding that does not end", "/values/w", "[{a}, -", {"values['w']"});
  add("an axis that is not there", "/values/w", "[{c}, -]", {"values['w']", "'c'"});
  add("an axis twice", "/values/w", "[{a}, {a}]", {"values['w']"});
  add("a dim more", "/values/w", "[-, -, {a}]", {"values['w']", "3"});
  add("a sharding of a million dims", "/values/w", "[" + std::string(2'000'000, '-') + "]",
      {"values['w'] has 2000002 bytes"});
  add("partial by an average", "/values/w", "[-, -] partial(avg: a)", {"values['w']", "avg"});
  add("a value missing", "/values/w", nullptr, {"'values' lacks 'w'"});
  add("a value more", "/values/v", "[-, -]", {"'values' has 'v'"});
  add("redistributed of what is not there", "/redistributed/v", "[-]", {"'redistributed' has 'v'"});
  add("regathered of what is not there", "/regathered", {"v"}, {"'regathered' has 'v'"});
  add("a node missing", "/nodes/sum", nullptr, {"'nodes' lacks 'sum'"});
  add("a node more", "/nodes/other", plan.at("nodes").at("sum"), {"'nodes' has 'other'"});
  add("an operand missing", "/nodes/sum/in/1", nullptr, {"nodes['sum'] has 1 operands"});
  add("operands that are a text", "/nodes/sum/in", "[-]", {"nodes['sum']", "'in'"});
  add("a result unlike its value", "/nodes/sum/out/0", "[{a}, -]", {"nodes['sum']"});
}

void add_parts(BadFiles& files) {
  const Json plan = small_plan();
  const Json halo = {{"of", {{"operand", 0}, {"dim", 0}}},
                     {"anchor", {{"result", 0}, {"dim", 0}}},
                     {"num", 1},
                     {"den", 1},
                     {"low", 0},
                     {"high", 0}};
  const Json rows = {{"of", {{"operand", 0}, {"dim", 0}}},
                     {"by", {{"operand", 1}, {"dim", 0}}},
                     {"op", "sum"},
                     {"most_named", 1},
                     {"most_owned", 1}};
  const Json blocks = {{"result", 0}, {"dim", 0}, {"of", {{{"operand", 0}, {"dim", 0}}}}};
  const auto with = [&](const std::string& name, const char* list, Json item,
                        const std::string& pointer, const Json& value,
                        std::vector<std::string> words) {
    item = Json::parse(changed(item, pointer, value));
    files.add(name, changed(plan, std::string("/nodes/sum/") + list, Json::array({item})),
              std::move(words));
  };
  with("a halo divided by nothing", "halos", halo, "/den", 0, {"nodes['sum']", "0"});
  with("a halo divided by less", "halos", halo, "/den", -1, {"nodes['sum']", "-1"});
  with("a halo of 2^63 - 1", "halos", halo, "/high", INT64_MAX, {"nodes['sum']"});
  with("a halo of -2^63", "halos", halo, "/low", INT64_MIN, {"nodes['sum']"});
  with("a halo of an operand that is not there", "halos", halo, "/of/operand", 9,
       {"nodes['sum']", "9"});
  with("a halo of operand -1", "halos", halo, "/of/operand", -1, {"nodes['sum']", "-1"});
  with("a halo of a dim that is not there", "halos", halo, "/of/dim", 7, {"nodes['sum']", "7"});
  with("a halo without its anchor", "halos", halo, "/anchor", nullptr, {"field 'anchor'"});
  with("a halo of a text", "halos", halo, "/num", "1", {"field 'num'"});
  with("blocks of a dim that is not there", "blocks", blocks, "/dim", 9, {"nodes['sum']", "9"});
  with("blocks of nothing", "blocks", blocks, "/of", Json::array(), {"nodes['sum']"});
  with("rows by an average", "rows", rows, "/op", "avg", {"field 'op' is 'avg'"});
  with("rows of less than none", "rows", rows, "/most_named", -1, {"nodes['sum']"});
  with("rows of an operand that is not there", "rows", rows, "/of/operand", 9,
       {"nodes['sum']", "9"});
  files.add("halos that are an object", changed(plan, "/nodes/sum/halos", {{"of", 1}}),
            {"nodes['sum']", "'halos' is not a list"});
}

}  // namespace

void read_plan(const std::string& path) {
  static const Graph graph = small_graph();
  const Plan plan = plan_from_json(text_of(path), path);
  try {
    check_plan(plan, graph);
  } catch (const Error& e) {
    throw e.with_context(path);
  }
}

std::vector<BadFile> bad_plans() {
  BadFiles files("plan.json", read_plan);
  files.add("as it should be", small_plan().dump(), {});
  files.add("nothing", "", {"is not JSON, wanted a plan"});
  files.add("half a plan", small_plan().dump().substr(0, 200), {"is not JSON, wanted a plan"});
  files.add("a list", "[1]", {"field 'format' is missing"});
  files.add("null", "null", {"field 'format' is missing"});
  files.add("a number too large for any", "{\n \"format\": 1e999}",
            {"line 2, column 12: 1e999 is a number that is too large"});
  std::string twice = small_plan().dump();
  twice.insert(1, "\"seconds\": 1, ");
  files.add("a field twice", twice, {"field 'seconds' is there twice"});
  files.add("a byte of 0 behind it", small_plan().dump() + std::string(1, '\0'),
            {"is not JSON", "line 1, column ", "stands '\\x00'"});
  files.add("bytes that are no text", std::string("{\"\xff\xfe\": 1}"), {"is not JSON"});
  files.add("deep lists", kDeep, {"nested deeper than 64"});
  add_fields(files);
  add_shardings(files);
  add_parts(files);
  return files.take();
}

std::vector<BadFile> bad_clusters() {
  BadFiles files("cluster.json", [](const std::string& path) { read_cluster_file(path); });
  const Json good = Json::parse(R"({"name": "lab", "devices": 4, "flops": {"f32": {"peak": 1e12}},
    "memory_bandwidth": {"peak": 1e11}, "within": {"bandwidth": 1e10, "latency": 1e-6}})");
  const auto add = [&](const std::string& name, const std::string& pointer, const Json& value,
                       std::vector<std::string> words) {
    files.add(name, changed(good, pointer, value), std::move(words));
  };
  files.add("as it should be", good.dump(), {});
  files.add("nothing", "", {"is not JSON, wanted a cluster file"});
  files.add("a list", "[1]", {"the file is [1], wanted an object"});
  files.add("a number too large for any", R"({"name": "lab", "devices": 1e999})",
            {"line 1, column 28: 1e999 is a number that is too large"});
  files.add("no number", R"({"name": "lab", "devices": NaN})",
            {"is not JSON", "line 1, column 28 stands 'NaN'"});
  files.add("a field twice", R"({"name": "lab", "devices": 8, "devices": 2})",
            {"field 'devices' is there twice"});
  files.add("deep lists", kDeep, {"nested deeper than 64"});
  files.add("17 MiB", std::string(17 << 20, ' '), {"has more than 16777216 bytes"});
  for (const char* name : {"name", "devices", "flops", "memory_bandwidth", "within"})
    add(std::string("without ") + name, std::string("/") + name, nullptr,
        {std::string("field '") + name + "' is missing"});
  add("no devices", "/devices", 0, {"field 'devices' is 0"});
  add("2^53 devices", "/devices", int64_t{1} << 53, {"9007199254740992"});
  add("nodes times devices beyond 64 bits", "/nodes", int64_t{1} << 52, {"4503599627370496"});
  add("several nodes and nothing between", "/nodes", 2, {"field 'between' is missing"});
  add("a name that is a number", "/name", 3, {"field 'name' is 3"});
  add("a type that is not known", "/flops/f31", {{"peak", 1}}, {"field 'flops.f31'"});
  add("no FLOPs", "/flops/f32/peak", 0, {"field 'flops.f32.peak' is 0"});
  add("more reached than there is", "/flops/f32/reached", 2, {"field 'flops.f32.reached' is 2"});
  add("latency below nothing", "/within/latency", -1, {"field 'within.latency' is -1"});
  add("bandwidth in words", "/within/bandwidth", "fast", {"field 'within.bandwidth' is \"fast\""});
  add("half a byte", "/memory_bytes", 0.5, {"field 'memory_bytes' is 0.5"});
  add("bandwidth by less than no ranks", "/within/bandwidth_by_ranks", {{"-3", 1}},
      {"bandwidth_by_ranks.-3"});
  add("a field that is not known", "/sped", 1, {"field 'sped' is not known"});
  add("collectives of another kind", "/collectives", "never", {"'collectives' is 'never'"});
  add("a name that a sentence would end at", std::string("/devi\0ces", 9), 1,
      {"field 'devi\\x00ces' has a byte of 0"});
  add("a source that is no text", "/sources", {{"name", 1}}, {"field 'sources.name' is 1"});
  add("a curve without points", "/measured",
      {{"collectives",
        {{{"backend", "mpi"},
          {"ranks", 2},
          {"group", 2},
          {"kind", "all_reduce"},
          {"sizes", Json::array()},
          {"seconds", Json::array()}}}}},
      {"measured.collectives[0].sizes"});
  add("a group of more than there are", "/measured",
      {{"collectives",
        {{{"backend", "mpi"},
          {"ranks", 2},
          {"group", 3},
          {"kind", "all_reduce"},
          {"sizes", {1}},
          {"seconds", {1}}}}}},
      {"measured.collectives[0].group' is 3"});
  add("a grid with holes", "/measured",
      {{"kernels",
        {{{"ranks", 1},
          {"grids",
           {{{"op", "matmul"},
             {"variant", ""},
             {"dtype", "f32"},
             {"first", {1, 2}},
             {"second", {1}},
             {"third", {1}},
             {"seconds", {1}}}}}}}}},
      {"measured.kernels[0].grids[0].seconds"});
  return files.take();
}

}  // namespace shardrun::test
