// Plans as files: what does not fit is refused, and the field is named.
#include "graph/plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/exec/random_plan.h"

namespace shardrun {
namespace {

using nlohmann::json;

class PlanFile : public testing::Test {
 protected:
  PlanFile()
      : graph_(test::small_model({})),
        plan_(test::random_plan(graph_, Mesh::parse("data=2,model=3"), 7)) {
    plan_.model_hash = structural_hash(graph_);
  }

  /// The sentence with which the changed plan is refused; "" if it is not.
  std::string refusal(const std::function<void(json&)>& change) const {
    json file = json::parse(to_json(plan_));
    change(file);
    try {
      check_plan(plan_from_json(file.dump(), "plan.json"), graph_);
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
      return e.what();
    }
  }

  void expect(const std::function<void(json&)>& change,
              const std::vector<std::string>& parts) const {
    const std::string sentence = refusal(change);
    for (const std::string& part : parts)
      EXPECT_NE(sentence.find(part), std::string::npos) << part << " in: " << sentence;
  }

  Graph graph_;
  Plan plan_;
};

TEST_F(PlanFile, ReloadsAsItWas) {
  const Plan again = plan_from_json(to_json(plan_), "plan.json");
  EXPECT_EQ(again.mesh, plan_.mesh);
  EXPECT_EQ(again.values, plan_.values);
  EXPECT_EQ(again.nodes, plan_.nodes);
  EXPECT_EQ(again.model_hash, plan_.model_hash);
  EXPECT_EQ(refusal([](json&) {}), "");
}

/// Files of before 'redistributed' had that name.
TEST_F(PlanFile, ReadsTheOlderName) {
  plan_.redistributed["w1"] = plan_.values.at("w1");
  json file = json::parse(to_json(plan_));
  file["handed"] = file["redistributed"];
  file.erase("redistributed");
  EXPECT_EQ(plan_from_json(file.dump(), "plan.json").redistributed, plan_.redistributed);
}

TEST_F(PlanFile, AnotherModelIsRefusedByItsHash) {
  expect([](json& p) { p["model_hash"] = "1234"; },
         {"field 'model_hash' is 1234", "plan it again"});
  expect([](json& p) { p["model_hash"] = "what"; },
         {"field 'model_hash' is 'what'", "hexadecimal"});
  test::ModelOptions wider;
  wider.hidden = 8;
  const Graph other = test::small_model(wider);
  EXPECT_THROW(check_plan(plan_, other), Error);
}

TEST_F(PlanFile, AnotherMeshIsRefusedByItsHash) {
  expect([](json& p) { p["mesh"][0]["size"] = 4; },
         {"plan.json: field 'mesh' is data=4,model=3", "'mesh_hash'"});
  expect([](json& p) { p["mesh"][1]["name"] = "tensor"; }, {"field 'mesh' is data=2,tensor=3"});
  expect([](json& p) { std::swap(p["mesh"][0], p["mesh"][1]); },
         {"field 'mesh' is model=3,data=2", "plan anew"});
  expect([](json& p) { p["mesh"].erase(1); }, {"field 'mesh' is data=2,"});
  expect([](json& p) { p["mesh"][0]["size"] = 0; }, {"field 'mesh'", "'data' has size 0"});
  expect([](json& p) { p["mesh"][0]["name"] = "model"; }, {"field 'mesh'", "named twice"});
  expect([](json& p) { p["mesh"][0].erase("size"); }, {"field 'mesh'", "'size' is missing"});
  expect([](json& p) { p.erase("mesh"); }, {"field 'mesh' is missing"});
  expect([](json& p) { p.erase("mesh_hash"); }, {"field 'mesh_hash' is missing"});
}

TEST_F(PlanFile, ValuesThatDoNotFitAreNamed) {
  expect([](json& p) { p["values"].erase("w1"); }, {"field 'values' lacks 'w1'"});
  expect([](json& p) { p["values"]["more"] = "[-]"; }, {"field 'values' has 'more'"});
  expect([](json& p) { p["values"]["w1"] = "[-]"; },
         {"field values['w1']", "sharding has 1 dims, the value has 2"});
  expect([](json& p) { p["values"]["w1"] = "[{rows}, -]"; },
         {"field values['w1']", "axis 'rows' is not in the mesh data=2,model=3"});
  expect([](json& p) { p["values"]["w1"] = "[{data}, {data}]"; },
         {"field values['w1']", "'data' twice"});
  expect([](json& p) { p["values"]["w1"] = "{data}"; }, {"field values['w1']", "expected '['"});
  expect([](json& p) { p["values"]["w1"] = 3; }, {"field values['w1'] is not a sharding"});
  expect([](json& p) { p["values"] = 7; }, {"field 'values' is not an object"});
  expect([](json& p) { p["redistributed"]["w1"] = "[-]"; },
         {"field redistributed['w1']", "1 dims"});
  expect([](json& p) { p["redistributed"]["ghost"] = "[-]"; },
         {"field 'redistributed' has 'ghost'"});
  expect([](json& p) { p["regathered"].push_back("ghost"); }, {"field 'regathered' has 'ghost'"});
}

TEST_F(PlanFile, NodesThatDoNotFitAreNamed) {
  expect([](json& p) { p["nodes"].erase("fc1"); }, {"field 'nodes' lacks 'fc1'"});
  expect([](json& p) { p["nodes"]["fc9"] = p["nodes"]["fc1"]; }, {"field 'nodes' has 'fc9'"});
  expect([](json& p) { p["nodes"]["fc1"]["in"].erase(1); },
         {"field nodes['fc1'] has 1 operands and 1 results, wanted 2 and 1"});
  expect([](json& p) { p["nodes"]["fc1"].erase("out"); },
         {"field nodes['fc1']", "'out' is missing"});
  expect([](json& p) { p["nodes"]["fc1"]["in"][1] = "[{tensor}, -]"; },
         {"field nodes['fc1'].in[1]", "axis 'tensor'"});
  expect([](json& p) { p["nodes"]["fc1"]["in"][1] = "[-]"; }, {"field nodes['fc1']", "1 dims"});
  expect(
      [](json& p) {
        const std::string now = p["nodes"]["fc1"]["out"][0];
        p["nodes"]["fc1"]["out"][0] = now == "[-, -]" ? "[{data}, -]" : "[-, -]";
      },
      {"field nodes['fc1'].out[0] is", "but values['"});
}

TEST_F(PlanFile, OtherFilesAreRefused) {
  expect([](json& p) { p["format"] = "shardrun-plan-9"; }, {"field 'format' is 'shardrun-plan-9'"});
  expect([](json& p) { p["seconds"] = "soon"; }, {"field 'seconds' has the wrong type"});
  expect([](json& p) { p["seconds"] = 1; },
         {"field 'seconds' is 1", "'comm_seconds' less 'hidden_seconds', 0"});
  expect(
      [](json& p) { p["mesh"][0]["size"] = 2.5; },
      {"field 'mesh': field 'size' is 2.5, wanted a whole number of at most 9223372036854775807"});
  expect([](json& p) { p["bytes"] = ~uint64_t{0}; }, {"field 'bytes' is 18446744073709551615"});
  expect([](json& p) { p["bytes"] = true; }, {"field 'bytes' has the wrong type"});
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"),
                                  std::string("7"), deep, "{\"format\": " + deep + "}"}) {
    try {
      plan_from_json(text, "plan.json");
      ADD_FAILURE() << "'" << text.substr(0, 40) << "' was read";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("plan.json: "), 0u) << e.what();
    }
  }
}

}  // namespace
}  // namespace shardrun
