// Plans in ONNX files: written as annotations, read as hints or as requirements.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "model.h"
#include "plan/plan.h"
#include "shardrun/shardrun.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;

class InFiles : public testing::Test {
 protected:
  InFiles() {
    GptModel gpt;
    gpt.layers = 2;
    gpt.hidden = 32;
    gpt.heads = 4;
    gpt.vocab = 64;
    gpt.context = 16;
    write_gpt(gpt, path("gpt.onnx"));
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// `loss`: of the model's output; "": as the model has it.
  Model load(World& world, const std::string& name, int64_t batch = 4, int turns = 1,
             const std::string& loss = "") const {
    ModelOptions options;
    options.batch = batch;
    options.accumulate = turns;
    options.loss = loss;
    return load_model(world, path(name), options);
  }
  ::onnx::ModelProto read(const std::string& name) const {
    ::onnx::ModelProto model;
    std::ifstream in(path(name), std::ios::binary);
    EXPECT_TRUE(model.ParseFromIstream(&in));
    return model;
  }
  void write(const std::string& name, const ::onnx::ModelProto& model) const {
    test::write_bytes(path(name), model.SerializeAsString());
  }
  std::string refusal(World& world, const Model& model, const PlanRequest& request) const {
    try {
      (void)make_plan(world, model, request);
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call) << e.what();
      return e.what();
    }
    return "nothing";
  }

  const TemporaryFolder folder_;
};

PlanRequest on(const std::string& mesh, const std::string& planner = "ilp",
               const std::string& annotations = "hint") {
  PlanRequest request;
  request.mesh = mesh;
  request.planner = planner;
  request.annotations = annotations;
  return request;
}

/// A plan but for who made it, and for weights in kernels' layouts, which are kept where those of
/// validation are: that is planned anew.
nlohmann::json json_of(const TrainingPlan& plan) {
  nlohmann::json out = nlohmann::json::parse(plan.json())["train"];
  out.erase("planner");
  out.erase("keep_packed");
  return out;
}

/// How many of what the file's nodes read and leave lie alike; what does not goes to `other`.
int alike(const Model& model, const Plan& a, const Plan& b, std::string& other) {
  int count = 0;
  const auto compare = [&](const std::string& what, const Sharding& one, const Sharding& two) {
    if (!one.partial.empty()) return;
    if (one == two) {
      ++count;
    } else {
      other += what + " " + to_string(one, a.mesh) + " " + to_string(two, b.mesh) + "\n";
    }
  };
  const Graph& graph = model.impl().train;
  for (const PlacedNode& node : model.impl().placed) {
    for (const auto& [tensor, name] : node.outputs) {
      const auto lies = a.values.find(name);
      if (lies != a.values.end()) compare(tensor, lies->second, b.values.at(name));
    }
    for (const Node& step : graph.nodes()) {
      if (std::find(node.made.begin(), node.made.end(), step.name) == node.made.end()) continue;
      for (size_t k = 0; k < step.inputs.size(); ++k) {
        for (const auto& [tensor, name] : node.inputs) {
          if (graph.value(step.inputs[k]).name == name)
            compare(tensor + ">" + step.name, a.nodes.at(step.name).in[k],
                    b.nodes.at(step.name).in[k]);
        }
      }
    }
  }
  return count;
}

/// What is held between steps and lies otherwise, by name; of parts of a sum no file tells.
std::vector<std::string> held_otherwise(const Model& model, const Plan& a, const Plan& b) {
  std::vector<std::string> out;
  for (const Value& value : model.impl().train.values()) {
    if (!is_persistent(value.role)) continue;
    const Sharding& lies = a.values.at(value.name);
    if (lies.partial.empty() && lies != b.values.at(value.name)) out.push_back(value.name);
  }
  return out;
}

/// A file with its plan gives that plan again, where it is required and all else follows. And runs.
TEST_F(InFiles, RoundTrips) {
  WideResNetModel images;
  images.preset = "wrn-16-4";
  images.width = 1;
  write_wide_resnet(images, path("images.onnx"));
  struct Case {
    const char *file, *mesh, *planner;
    int ranks;
    int64_t batch = 6;
    int turns = 1;
    const char* loss = "";
  };
  const char* const classes = "cross-entropy";
  for (const Case& c :
       {Case{"gpt.onnx", "2", "ilp", 2}, Case{"gpt.onnx", "2x2", "ilp", 4},
        Case{"gpt.onnx", "2x2", "dp", 4}, Case{"gpt.onnx", "2x2", "fsdp", 4},
        Case{"gpt.onnx", "2x2", "zero1", 4}, Case{"gpt.onnx", "2x2", "zero2", 4},
        Case{"gpt.onnx", "2x2", "megatron", 4}, Case{"gpt.onnx", "2x2", "fsdp+megatron", 4},
        Case{"gpt.onnx", "3", "megatron-sp", 3}, Case{"images.onnx", "2", "ilp", 2, 5, 1, classes},
        Case{"images.onnx", "2", "fsdp", 2, 5, 1, classes},
        Case{"gpt.onnx", "2x2", "zero1", 4, 8, 2},
        Case{"gpt.onnx", "2x2", "fsdp+megatron", 4, 8, 2},
        // Two samples on three ranks.
        Case{"images.onnx", "2x3", "megatron-sp+dp", 6, 2, 1, classes},
        Case{"images.onnx", "3x2", "beam", 6, 2, 2, classes}}) {
    World world = World::threads(c.ranks);
    const Model model = load(world, c.file, c.batch, c.turns, c.loss);
    const TrainingPlan first = make_plan(world, model, on(c.mesh, c.planner));
    EXPECT_EQ(annotate_model(model, first, path("out.onnx")), std::vector{path("out.onnx")});
    const Model again = load(world, "out.onnx", c.batch, c.turns, c.loss);
    EXPECT_FALSE(again.impl().annotations.nodes.empty());
    const auto one = json_of(first);
    for (const char* planner : {"propagate", "ilp"}) {
      SCOPED_TRACE(str(c.file, ' ', c.mesh, ' ', c.planner, ", read under ", planner));
      const TrainingPlan second = make_plan(world, again, on(c.mesh, planner, "required"));
      EXPECT_EQ(second.impl().annotation_notes, std::vector<std::string>());
      std::string other;
      EXPECT_GT(alike(again, first.impl().train, second.impl().train, other), 50);
      EXPECT_EQ(other, "");
      // Not only where values lie: nodes, copies, bytes and seconds.
      const auto two = json_of(second);
      EXPECT_EQ(nlohmann::json::diff(one, two), nlohmann::json::array());
    }
    const TrainingPlan second = make_plan(world, again, on(c.mesh, "propagate", "required"));
    const VerifyReport report = verify(world, again, second, {});
    EXPECT_TRUE(report.verified) << c.planner << ": " << report.mismatch;
  }
}

/// The forward pass alone, too, of a model that has no loss and of one that has.
TEST_F(InFiles, ForwardPasses) {
  WideResNetModel images;
  images.preset = "wrn-16-4";
  images.width = 1;
  write_wide_resnet(images, path("images.onnx"));
  World world = World::threads(4);
  for (const char* file : {"images.onnx", "gpt.onnx"}) {
    ModelOptions options;
    options.batch = 4;
    if (std::string(file) == "gpt.onnx") options.step = "forward";
    const Model model = load_model(world, path(file), options);
    for (const char* planner : {"ilp", "fsdp+megatron"}) {
      SCOPED_TRACE(str(file, ' ', planner));
      const TrainingPlan first = make_plan(world, model, on("2x2", planner));
      (void)annotate_model(model, first, path("out.onnx"));
      const ::onnx::ModelProto written = read("out.onnx");
      // The last node's result is called as the file calls it.
      EXPECT_EQ(written.graph().node().rbegin()->device_configurations_size(), 1);
      const Model again = load_model(world, path("out.onnx"), options);
      const TrainingPlan second = make_plan(world, again, on("2x2", "propagate", "required"));
      EXPECT_EQ(nlohmann::json::diff(json_of(first), json_of(second)), nlohmann::json::array());
      std::string other;
      EXPECT_GT(alike(again, first.impl().train, second.impl().train, other), 10);
    }
  }
}

/// State that another optimizer keeps, or other micro-batches, is passed over; what speaks of
/// gradients and updates, too. Parameters lie as the file says.
TEST_F(InFiles, AnotherOptimizer) {
  World world = World::threads(4);
  const auto load_as = [&](const std::string& name, const std::string& optimizer, int turns) {
    ModelOptions options;
    options.batch = 4;
    options.optimizer = optimizer;
    options.accumulate = turns;
    return load_model(world, path(name), options);
  };
  const Model adam = load_as("gpt.onnx", "adam", 2);
  const TrainingPlan first = make_plan(world, adam, on("2x2", "fsdp"));
  (void)annotate_model(adam, first, path("adam.onnx"), "four");
  const std::string where = path("adam.onnx") + ": metadata 'shardrun.held.four': ",
                    step = where +
                           "what 'step' says of gradients and updates is passed over, and follows "
                           "by propagation: it is of a step with other nodes, as another "
                           "optimizer's is";
  for (const char* optimizer : {"sgd", "adamw"}) {
    const Model other = load_as("adam.onnx", optimizer, 1);
    for (const char* planner : {"propagate", "ilp"}) {
      const TrainingPlan second = make_plan(world, other, on("2x2", planner, "required"));
      for (const Value& value : other.impl().train.values()) {
        if (value.role != Role::parameter) continue;
        EXPECT_EQ(second.impl().train.values.at(value.name),
                  first.impl().train.values.at(value.name))
            << value.name;
      }
      const std::vector<std::string>& notes = second.impl().annotation_notes;
      ASSERT_EQ(notes.size(), 2U) << optimizer;
      EXPECT_TRUE(notes[0].starts_with(where + "the step keeps no 'accumulated/")) << notes[0];
      EXPECT_EQ(notes[1], step);
      const VerifyReport report = verify(world, other, second, {});
      EXPECT_TRUE(report.verified) << optimizer << ": " << report.mismatch;
    }
  }
}

/// As hints they cost nothing: the plan that they come from is the best anyway, and another one's
/// are followed as far as they are free.
TEST_F(InFiles, AreHints) {
  World world = World::threads(4);
  const Model model = load(world, "gpt.onnx");
  const TrainingPlan best = make_plan(world, model, on("2x2"));
  (void)annotate_model(model, best, path("best.onnx"));
  const TrainingPlan same = make_plan(world, load(world, "best.onnx"), on("2x2"));
  EXPECT_EQ(same.impl().train.values, best.impl().train.values);
  EXPECT_GT(same.impl().hints.size(), 50U);
  for (const HintOutcome& hint : same.impl().hints) EXPECT_TRUE(hint.followed) << hint.text;
  (void)annotate_model(model, make_plan(world, model, on("2x2", "dp")), path("dp.onnx"));
  const TrainingPlan mixed = make_plan(world, load(world, "dp.onnx"), on("2x2"));
  EXPECT_LE(mixed.predicted_seconds(), best.predicted_seconds() * 1.0001);
  const TrainingPlan ignored = make_plan(world, load(world, "dp.onnx"), on("2x2", "ilp", "ignore"));
  EXPECT_EQ(ignored.impl().train.values, best.impl().train.values);
  EXPECT_TRUE(ignored.impl().hints.empty());
  // The plan's file keeps what became of them.
  EXPECT_NE(same.json().find("\"hints\""), std::string::npos);
  EXPECT_EQ(ignored.json().find("\"hints\""), std::string::npos);
}

TEST_F(InFiles, SeveralConfigurations) {
  World two = World::threads(2), four = World::threads(4);
  const Model model = load(two, "gpt.onnx");
  PlanRequest eight = on("2x4", "megatron");
  eight.ranks = 8;
  (void)annotate_model(model, make_plan(two, model, on("2", "dp")), path("one.onnx"), "two");
  const Model one = load(two, "one.onnx");
  const TrainingPlan on_eight = make_plan(two, one, eight);
  EXPECT_EQ(on_eight.impl().annotation_notes,
            std::vector<std::string>{"annotations are not followed: configuration 'two' is for 2 "
                                     "devices, mesh a=2,b=4 has 8"});
  (void)annotate_model(one, on_eight, path("both.onnx"), "eight");
  const Model both = load(two, "both.onnx");
  eight.planner = "propagate";
  eight.annotations = "required";
  EXPECT_EQ(refusal(two, both, eight),
            "--annotations required: the model has several device configurations, 'two' (2 "
            "devices), 'eight' (8 devices); choose one with --configuration");
  eight.configuration = "eight";
  std::string other;
  EXPECT_GT(alike(both, on_eight.impl().train, make_plan(two, both, eight).impl().train, other),
            50);
  EXPECT_EQ(other, "");
  eight.configuration = "nine";
  EXPECT_EQ(refusal(two, both, eight),
            "--annotations required: the model has no device configuration 'nine'; it has 'two' (2 "
            "devices), 'eight' (8 devices)");
  // As a hint it is noted: --annotate calls a new one so.
  for (const auto& [of, has] :
       {std::pair(&both, "'two' (2 devices), 'eight' (8 devices)"), std::pair(&model, "none")}) {
    PlanRequest fresh = on("2", "dp");
    fresh.configuration = "nine";
    EXPECT_EQ(make_plan(two, *of, fresh).impl().annotation_notes,
              std::vector<std::string>{std::string("annotations are not followed: the model has no "
                                                   "device configuration 'nine'; it has ") +
                                       has});
  }
  // What stops nowhere is not refused for the validation's sake, of which nothing is asked.
  PlanRequest strict;
  strict.mesh = "a=2";
  strict.tactics = {"batch@a"};
  strict.strict = true;
  EXPECT_EQ(
      to_string(make_plan(two, model, strict).impl().train.values.at("tokens"), Mesh::parse("a=2")),
      "[{a}, -]");
  PlanRequest pair = on("2", "propagate", "required");
  pair.configuration = "two";
  EXPECT_EQ(
      to_string(make_plan(two, both, pair).impl().train.values.at("tokens"), Mesh::parse("2")),
      "[{a}, -]");
  pair.mesh = "auto";
  EXPECT_EQ(
      refusal(two, both, pair),
      "--annotations required: configuration 'two' is for 2 devices of some mesh; give it, as "
      "--mesh data=2,model=4");
}

/// What is not followed is an error with a name, or a note.
TEST_F(InFiles, WhatIsNotThere) {
  World world = World::threads(2);
  const Model model = load(world, "gpt.onnx");
  (void)annotate_model(model, make_plan(world, model, on("2")), path("good.onnx"), "two");
  EXPECT_EQ(refusal(world, model, on("2", "ilp", "required")),
            "--annotations required: the model has no device configuration");
  // The inside of attention, which becomes one node here.
  ::onnx::ModelProto fused = read("good.onnx");
  auto& nodes = *fused.mutable_graph()->mutable_node();
  const auto softmax = std::find_if(nodes.begin(), nodes.end(),
                                    [](const auto& node) { return node.op_type() == "Softmax"; });
  ASSERT_NE(softmax, nodes.end());
  auto* own = softmax->device_configurations_size() > 0 ? softmax->mutable_device_configurations(0)
                                                        : softmax->add_device_configurations();
  own->set_configuration_id("two");
  auto* spec = own->add_sharding_spec();
  spec->set_tensor_name(softmax->output(0));
  for (const int64_t device : {0, 1}) spec->add_device(device);
  write("fused.onnx", fused);
  const Model inside = load(world, "fused.onnx");
  const std::string sentence = str("annotation of '", softmax->output(0), "' at node ",
                                   softmax - nodes.begin(), " '", softmax->name(), "': no ");
  EXPECT_EQ(refusal(world, inside, on("2", "propagate", "required")).substr(0, sentence.size()),
            sentence);
  const TrainingPlan noted = make_plan(world, inside, on("2"));
  ASSERT_EQ(noted.impl().annotation_notes.size(), 1U);
  EXPECT_EQ(noted.impl().annotation_notes[0].substr(0, sentence.size()), sentence);
  EXPECT_NE(noted.summary().find("note: annotation of"), std::string::npos) << noted.summary();
  // Stages are never passed over in silence.
  own->set_pipeline_stage(1);
  write("stages.onnx", fused);
  const Model stages = load(world, "stages.onnx");
  for (const char* use : {"hint", "required"}) {
    EXPECT_NE(refusal(world, stages, on("2", "ilp", use))
                  .find("is of pipeline stage 1 in "
                        "configuration 'two'"),
              std::string::npos);
  }
  EXPECT_EQ(refusal(world, stages, on("2", "ilp", "ignore")), "nothing");
  EXPECT_EQ(refusal(world, stages, on("2", "ilp", "maybe")),
            "annotations 'maybe' is not one of hint, required, ignore");
}

/// How parameters and state are held, in the model's metadata: what is none is an error that names
/// file, key and value, or a note.
TEST_F(InFiles, HeldAsNothingDoes) {
  World world = World::threads(4);
  const Model model = load(world, "gpt.onnx");
  (void)annotate_model(model, make_plan(world, model, on("data=2,model=2", "zero1")),
                       path("good.onnx"), "four");
  const ::onnx::ModelProto good = read("good.onnx");
  ASSERT_EQ(good.metadata_props_size(), 1);
  EXPECT_EQ(good.metadata_props(0).key(), "shardrun.held.four");
  const auto with = [&](const std::string& text) {
    ::onnx::ModelProto file = good;
    file.mutable_metadata_props(0)->set_value(text);
    write("bad.onnx", file);
    return load(world, "bad.onnx");
  };
  const std::string where = path("bad.onnx") + ": metadata 'shardrun.held.four'",
                    of_wte = where + ": value 'wte.weight': ",
                    step_form =
                        R"({"of": "1f", "lies": [{"lies": "[{data}]", "values": ["%x"], )"
                        R"("reads": [["%x", "sum"]], "copied": []}], "anew": ["w"], "shared": )"
                        R"([]})",
                    form = R"({"mesh": "data=2", "held": [{"lies": "[{data}, -]", "values": )"
                           R"(["w"]}]})";
  const auto held = [](const std::string& lies, const std::string& name) {
    return R"({"mesh": "data=2,model=2", "held": [{"lies": ")" + lies + R"(", "values": [")" +
           name + R"("]}]})";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"no json",
       where + ": value: is not JSON, wanted " + form + "; at line 1, column 1 stands 'no'"},
      {std::string(200, '['), where + ": value: lists and objects are nested deeper than 64"},
      {"[]", where + ": has no text 'mesh' or no list 'held', wanted " + form},
      {R"({"mesh": 4, "held": []})",
       where + ": has no text 'mesh' or no list 'held', wanted " + form},
      {R"({"mesh": "4", "held": [{"lies": "[a]", "values": [7]}]})",
       where + R"(: an entry of 'held' is {"lies":"[a]","values":[7]}, wanted )" + form},
      {R"({"mesh": "4", "held": [{"lies": "[a,-]", "values": ["wte.weight"]}, 7]})",
       where + ": an entry of 'held' is 7, wanted " + form},
      {R"({"mesh": "data=2", "held": []})",
       where + ": mesh data=2 has 2 ranks, configuration 'four' has 4"},
      {held("[data,-]", "wte"), where + ": value 'wte': the step holds no value of this name"},
      {held("[data,-]", R"(\u001b[2J)"),
       where + R"(: value '\x1b[2J': the step holds no value of this name)"},
      {held("[data,-]", "tokens"),
       where + ": value 'tokens': the step holds no value of this name"},
      {R"({"mesh": "4", "held": [], "step": []})", where + ": 'step' is [], wanted " + step_form},
      {R"({"mesh": "4", "held": [], "step": {"of": "1", "lies": [], "anew": [1], "shared": []}})",
       where + R"(: 'step' is {"anew":[1],"lies":[],"of":"1","shared":[]}, wanted )" + step_form},
      {R"({"mesh": "4", "held": [], "step": {"of": "1", "lies": [{"lies": "[a]", "values": [], )"
       R"("copied": [], "reads": [["x"]]}], "anew": [], "shared": []}})",
       where + R"(: an entry of 'lies' in 'step' is {"copied":[],"lies":"[a]","reads":[["x"]],)" +
           R"("values":[]}, wanted )" + step_form},
      {held("[-,-] partial(sum: data)", "wte.weight"),
       of_wte + "[-,-] partial(sum: data) is a partial sum, what is held is none"},
  };
  for (const auto& [text, wanted] : cases) {
    const Model bad = with(text);
    EXPECT_EQ(printable(refusal(world, bad, on("2x2", "propagate", "required"))), wanted);
    EXPECT_EQ(make_plan(world, bad, on("2x2", "dp")).impl().annotation_notes, std::vector{wanted});
  }
  // Worded where shardings are read: what they begin with is ours.
  for (const char* lies : {"[rows,-]", "[data]", "[data,data]", "[data", ""}) {
    const Model bad = with(held(lies, "wte.weight"));
    EXPECT_EQ(refusal(world, bad, on("2x2", "propagate", "required")).substr(0, of_wte.size()),
              of_wte);
    EXPECT_EQ(make_plan(world, bad, on("2x2", "dp")).impl().annotation_notes.size(), 1U) << lies;
  }
  // A mesh that cannot be read, then one that cuts as the plan's does not.
  for (const char* mesh : {"data=?", "data=0", "", "4=", "99999999999999999999"}) {
    const Model bad = with(str(R"({"mesh": ")", mesh, R"(", "held": []})"));
    EXPECT_EQ(refusal(world, bad, on("2x2", "propagate", "required")).substr(0, where.size()),
              where)
        << mesh;
  }
  EXPECT_EQ(refusal(world, with(held("[data,-]", "wte.weight")), on("4", "propagate", "required")),
            of_wte + "its devices cut dim 0 as no axes of mesh a=4 do");
  // Nothing of it is looked at where it is not asked for.
  EXPECT_EQ(refusal(world, with("no json"), on("2x2", "dp", "ignore")), "nothing");
}

/// Of devices, like all annotations: axes may have other names. A copy has it once.
TEST_F(InFiles, HeldUnderOtherNames) {
  World world = World::threads(4);
  const Model model = load(world, "gpt.onnx");
  const TrainingPlan first = make_plan(world, model, on("data=2,model=2", "fsdp"));
  (void)annotate_model(model, first, path("one.onnx"), "four");
  const Model one = load(world, "one.onnx");
  const TrainingPlan renamed = make_plan(world, one, on("x=2,y=2", "propagate", "required"));
  EXPECT_EQ(held_otherwise(one, first.impl().train, renamed.impl().train),
            std::vector<std::string>());
  // fsdp's parts are of both axes, which may as well be one.
  const TrainingPlan merged = make_plan(world, one, on("4", "propagate", "required"));
  EXPECT_EQ(to_string(merged.impl().train.values.at("wte.weight"), Mesh::parse("4")), "[{a}, -]");
  World two = World::threads(2);
  EXPECT_EQ(refusal(two, one, on("2", "propagate", "required")),
            "--annotations required: configuration 'four' is for 4 devices, mesh a=2 has 2");
  // Written again, it is replaced; another configuration's stays.
  (void)annotate_model(one, make_plan(world, one, on("2x2", "dp", "ignore")), path("again.onnx"),
                       "four");
  const ::onnx::ModelProto again = read("again.onnx");
  ASSERT_EQ(again.metadata_props_size(), 1);
  const auto is_cut = [](const ::onnx::ModelProto& file) {
    const auto held = nlohmann::json::parse(file.metadata_props(0).value())["held"];
    return held.dump().find("\"lies\":\"[{") != std::string::npos;
  };
  EXPECT_TRUE(is_cut(read("one.onnx")));
  EXPECT_FALSE(is_cut(again));
  (void)annotate_model(load(world, "again.onnx"), first, path("both.onnx"), "other");
  const ::onnx::ModelProto both = read("both.onnx");
  ASSERT_EQ(both.metadata_props_size(), 2);
  EXPECT_EQ(both.metadata_props(0).SerializeAsString(),
            again.metadata_props(0).SerializeAsString());
  EXPECT_EQ(both.metadata_props(1).key(), "shardrun.held.other");
  EXPECT_EQ(both.metadata_props(1).value(), read("one.onnx").metadata_props(0).value());
  // Of a configuration that the file does not have.
  ::onnx::ModelProto lost = both;
  lost.mutable_configuration()->RemoveLast();
  for (auto& node : *lost.mutable_graph()->mutable_node()) {
    auto* own = node.mutable_device_configurations();
    own->erase(
        std::remove_if(own->begin(), own->end(),
                       [](const auto& entry) { return entry.configuration_id() == "other"; }),
        own->end());
  }
  write("lost.onnx", lost);
  EXPECT_EQ(refusal(world, load(world, "lost.onnx"), on("2x2", "propagate", "required")),
            path("lost.onnx") +
                ": metadata 'shardrun.held.other' is of configuration 'other', "
                "which the model does not have; it has 'four' (4 devices)");
}

/// A configuration that is called otherwise at a node, and one that the file has lost.
TEST_F(InFiles, UnknownConfigurations) {
  World world = World::threads(2);
  const Model model = load(world, "gpt.onnx");
  (void)annotate_model(model, make_plan(world, model, on("2")), path("good.onnx"), "two");
  ::onnx::ModelProto file = read("good.onnx");
  auto& nodes = *file.mutable_graph()->mutable_node();
  const auto node = std::find_if(nodes.begin(), nodes.end(), [](const auto& one) {
    return one.device_configurations_size() > 0;
  });
  ASSERT_NE(node, nodes.end());
  node->mutable_device_configurations(0)->set_configuration_id("tow");
  write("other.onnx", file);
  const Model other = load(world, "other.onnx");
  const std::string unknown =
      str("annotations of node ", node - nodes.begin(), " '", node->name(),
          "' are of configuration 'tow', which the model does not have; it has 'two' (2 devices)");
  EXPECT_EQ(refusal(world, other, on("2", "propagate", "required")), unknown);
  EXPECT_EQ(make_plan(world, other, on("2")).impl().annotation_notes, std::vector{unknown});
  file.clear_configuration();
  write("none.onnx", file);
  const Model lost = load(world, "none.onnx");
  const std::string none = "the model has no device configuration";
  EXPECT_EQ(refusal(world, lost, on("2", "ilp", "required")), "--annotations required: " + none);
  EXPECT_EQ(make_plan(world, lost, on("2")).impl().annotation_notes,
            std::vector{"annotations are not followed: " + none});
}

}  // namespace
}  // namespace shardrun
