// Verification and automatic meshes through the public header: a GPT, planned for real.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

/// Two layers; 3 divides neither heads, hidden, vocabulary nor context.
std::string gpt(double dropout = 0, int64_t vocab = 257) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("verify_test_" + std::to_string(::getpid()) + ".onnx"))
                               .string();
  GptModel model;
  model.layers = 2;
  model.hidden = 64;
  model.heads = 4;
  model.vocab = vocab;
  model.context = 32;
  model.dropout = dropout;
  write_gpt(model, path);
  return path;
}

struct Case {
  const char* mesh;
  int ranks;
  const char* planner = "auto";
  const char* dtype = "f32";
  int accumulate = 1;
  double dropout = 0, clip = 0;
};

TEST(Verify, PlansOfAGptAgreeWithOneRank) {
  for (const Case& c :
       {Case{"2", 2}, Case{"3", 3}, Case{"2x2", 4}, Case{"2x3", 6, "ilp"}, Case{"2x2x2", 8},
        Case{"2", 2, "dp"}, Case{"3", 3, "dp", "f32", 2, 0.1, 0.5}, Case{"2x2", 4, "auto", "bf16"},
        Case{"4", 4, "auto", "f32", 3, 0.1, 1.0}}) {
    World world = World::threads(c.ranks);
    ModelOptions options;
    options.batch = 7;
    options.dtype = c.dtype;
    options.accumulate = c.accumulate;
    options.clip = c.clip;
    options.seed = 5;
    const std::string path = gpt(c.dropout);
    const Model model = load_model(world, path, options);
    PlanRequest request;
    request.mesh = c.mesh;
    request.planner = c.planner;
    const TrainingPlan plan = make_plan(world, model, request);
    const VerifyReport report = verify(world, model, plan, {});
    std::filesystem::remove(path);
    EXPECT_TRUE(report.verified) << c.mesh << " " << c.planner << " " << c.dtype << ": "
                                 << report.mismatch;
    EXPECT_GT(report.values, 200) << c.mesh;
    // Where data alone are cut, the embedding that is the head too has its gradients joined.
    if (std::string(c.planner) == "dp") {
      EXPECT_GT(report.fused, 0) << c.mesh;
    }
    EXPECT_GE(report.comparisons, report.values) << c.mesh;
    EXPECT_GT(report.largest, 0) << c.mesh;
    EXPECT_LT(report.largest, std::string(c.dtype) == "bf16" ? 0.0625 : 2e-5) << c.mesh;
  }
}

/// Of five steps, which also are verified. `part`: what the plan's file says of a value, as it
/// lies.
std::vector<double> losses(const std::string& path, int ranks, PlanRequest request,
                           const std::string& part, const ModelOptions& options) {
  World world = World::threads(ranks);
  const Model model = load_model(world, path, options);
  const TrainingPlan plan = make_plan(world, model, request);
  if (ranks > 1) {
    EXPECT_NE(plan.json().find("\"" + part), std::string::npos) << part;
    EXPECT_TRUE(verify(world, model, plan, {}).verified) << ranks;
  }
  TrainOptions how;
  how.steps = 5;
  how.lr = 3e-4;
  return train(world, model, plan, how).losses;
}

void expect_one_ranks_losses(const std::string& path, const ModelOptions& options,
                             PlanRequest request, const std::string& part, double tolerance) {
  const std::vector<double> alone = losses(path, 1, {}, part, options);
  ASSERT_EQ(alone.size(), 5u);
  for (const int ranks : {2, 3, 4}) {
    request.mesh = "r=" + std::to_string(ranks);
    const std::vector<double> cut = losses(path, ranks, request, part, options);
    ASSERT_EQ(cut.size(), alone.size());
    for (size_t s = 0; s < cut.size(); ++s)
      EXPECT_NEAR(cut[s], alone[s], tolerance * alone[s]) << ranks << " ranks, step " << s;
  }
}

/// The logits stay cut along a vocabulary that no number of ranks divides.
TEST(Verify, ALossOfACutVocabularyIsOneRanks) {
  const std::string path = gpt(0, 2003);
  for (const char* dtype : {"f32", "bf16"}) {
    SCOPED_TRACE(dtype);
    ModelOptions options;
    options.batch = 4;
    options.dtype = dtype;
    PlanRequest request;
    request.planner = "megatron";
    expect_one_ranks_losses(path, options, request,
                            "%loss/each/sums\": \"[-, -, -] partial(sum: r)",
                            std::string(dtype) == "f32" ? 1e-6 : 1e-3);
  }
  std::filesystem::remove(path);
}

/// --cut-keys, with dropout.
TEST(Verify, AttentionOfCutKeysIsOneRanks) {
  const std::string path = gpt(0.1);
  ModelOptions options;
  options.batch = 3;
  options.cut_keys = true;
  PlanRequest request;
  request.planner = "ilp";
  request.shard = {"%.*/attention/sums:1=[-,-,-] partial(sum: r)",
                   "%.*/attention/top=[-,-,-] partial(max: r)"};
  expect_one_ranks_losses(path, options, request,
                          "%h.0.MatMul_2/attention/sums:1\": \"[-, -, -] partial(sum: r)", 2e-6);
  std::filesystem::remove(path);
}

/// A GPT on disk, planned for four ranks.
class Explained : public testing::Test {
 protected:
  Explained() : world_(World::threads(4)), path_(gpt()), model_(load()), plan_(planned("2x2")) {}
  ~Explained() override { std::filesystem::remove(path_); }

  Model load(double clip = 0) {
    ModelOptions options;
    options.batch = 8;
    options.optimizer = "adam";
    options.clip = clip;
    return load_model(world_, path_, options);
  }
  TrainingPlan planned(const std::string& mesh) {
    PlanRequest request;
    request.mesh = mesh;
    request.with_evaluation = false;
    return make_plan(world_, model_, request);
  }
  std::string save(const TrainingPlan& plan) {
    const std::string file = path_ + ".json";
    std::ofstream(file) << plan.json();
    return file;
  }

  World world_;
  std::string path_;
  Model model_;
  TrainingPlan plan_;
};

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(Explained, DetailsNameTimeBytesAndCollectives) {
  const std::string text = plan_details(model_, plan_);
  for (const char* part :
       {"time of a step", "compute ", "matmul ", "communication ", "bytes of rank 0 at the peak",
        "parameters ", "optimizer state ", "activations ", "most expensive collectives:", " -> ",
        "wanted by ", "instead "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_LE(occurrences(text, "wanted by "), 5);
  // One rank has nothing to communicate.
  World alone = World::threads(1);
  const TrainingPlan whole = make_plan(alone, model_, {});
  EXPECT_EQ(plan_details(model_, whole).find("most expensive"), std::string::npos);
  // train's few lines stay a few.
  EXPECT_LE(occurrences(plan_.summary(), "\n"), 8);
}

TEST_F(Explained, TheTableHasEveryParameterOnceOrFolded) {
  const std::string text = explain_plan(model_, plan_);
  EXPECT_NE(text.find("outside layers"), std::string::npos) << text;
  EXPECT_NE(text.find("h.0"), std::string::npos);
  EXPECT_NE(text.find("h.1"), std::string::npos);
  EXPECT_EQ(occurrences(text, "  wte.weight  "), 1);
  // Each layer's own when the layers differ, once when they are alike or nearly so.
  const int tables = occurrences(text, "  mlp.c_fc.weight  ");
  const bool alike = text.find("2 layers h.0, h.1: each") != std::string::npos;
  const bool nearly = text.find(", as h.0 but for") != std::string::npos;
  EXPECT_EQ(tables, alike || nearly ? 1 : 2) << text;
}

TEST_F(Explained, WhyNamesTheNextBest) {
  const std::string text = explain_why(model_, plan_, "h.0.mlp.c_fc.weight", {});
  EXPECT_NE(text.find("value 'h.0.mlp.c_fc.weight' lies as ["), std::string::npos) << text;
  const size_t at = text.find("lies as ") + 8, next = text.find("next best: ");
  ASSERT_NE(next, std::string::npos) << text;
  const std::string has = text.substr(at, text.find(": parameter", at) - at);
  const std::string other = text.substr(next + 11, text.find(", step", next) - next - 11);
  EXPECT_NE(has, other) << text;
  EXPECT_NE(explain_why(model_, plan_, "update/lr", {}).find("next best: none"), std::string::npos);
  try {
    explain_why(model_, plan_, "nothing", {});
    FAIL() << "a value that is not there was explained";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::call);
    EXPECT_NE(std::string(e.what()).find("'nothing'"), std::string::npos) << e.what();
  }
}

TEST_F(Explained, TacticsOneByOne) {
  World world = World::threads(1);
  PlanRequest request;
  request.mesh = "data=2,model=2";
  request.ranks = 4;
  request.tactics = {"batch@data", "inner@model"};
  const std::string text = explain_tactics(world, model_, request);
  for (const char* part :
       {"tactic ", "all_reduce", "unresolved", "\n(none)", "\nbatch@data", "\ninner@model"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  request.planner = "dp";
  EXPECT_THROW((void)make_plan(world, model_, request), Failure);
  request.planner = "auto";
  request.mesh = "auto";
  try {
    (void)make_plan(world, model_, request);
    FAIL();
  } catch (const Failure& e) {
    EXPECT_NE(std::string(e.what()).find("--tactic 'batch@data': names an axis of the mesh"),
              std::string::npos)
        << e.what();
  }
}

/// What is planned under all tactics is shown, also where the last would be refused without the
/// first: the batch would reach its value.
TEST_F(Explained, TacticsThatNeedEachOther) {
  World world = World::threads(1);
  PlanRequest request;
  request.mesh = "m=2";
  request.ranks = 2;
  request.tactics = {"tokens.0@m", "%h.0.MatMul_4.2@m"};
  EXPECT_THROW((void)explain_tactics(world, model_, request), Failure);
  request.tactics.insert(request.tactics.begin(), "h.0.mlp.c_fc.weight.1@m");
  const std::string text = explain_tactics(world, model_, request);
  const size_t row = text.find("\nh.0.mlp.c_fc.weight.1@m");
  ASSERT_NE(row, std::string::npos) << text;
  EXPECT_LT(text.find("impossible\n", row), text.find("\ntokens.0@m")) << text;
  EXPECT_EQ(text.find("impossible"), text.rfind("impossible")) << text;
}

/// Requests that meet at the embedding's gradient or before: every way has a price and a tactic.
TEST_F(Explained, ConflictsArePriced) {
  World world = World::threads(1);
  PlanRequest request;
  request.mesh = "m=2";
  request.ranks = 2;
  request.planner = "propagate";
  request.shard = {"%h.0.LayerNormalization_1:0=[m,-,-]", "h.0.mlp.c_fc.weight=[-,m]",
                   "%h.0.Add_3=[-,-,-]"};
  const std::string text = explain_tactics(world, model_, request);
  EXPECT_NE(text.find("unresolved: 'h.0.MatMul_4' (matmul) can be cut in 2 ways along axis m"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--tactic 'h.0.MatMul_4:"), std::string::npos) << text;
  request.shard.clear();
  request.mesh = "auto";
  EXPECT_NE(explain_tactics(world, model_, request).find("\n(none)"), std::string::npos);
}

TEST_F(Explained, RulesAndColours) {
  const std::string rules = explain_rules(model_), colours = explain_colours(model_);
  EXPECT_NE(rules.find("  0  parallel   [S0, -] -> [S0]"), std::string::npos) << rules;
  EXPECT_NE(rules.find("reduction  [S2, S0] -> [P(sum)]"), std::string::npos) << rules;
  EXPECT_NE(colours.find("tokens.0"), std::string::npos) << colours;
  EXPECT_NE(colours.find("2 resolutions of attention_grad"), std::string::npos) << colours;
}

TEST_F(Explained, DifferenceOfTwoPlans) {
  EXPECT_NE(explain_difference(model_, plan_, plan_).find("\n0 of "), std::string::npos);
  const std::string text = explain_difference(model_, plan_, planned("4"));
  EXPECT_NE(text.find("this:  mesh a=2,b=2"), std::string::npos) << text;
  EXPECT_NE(text.find("other: mesh a=4"), std::string::npos) << text;
  EXPECT_EQ(text.find("\n0 of "), std::string::npos);
}

TEST_F(Explained, APlanFileFindsItsModelAndRefusesOthers) {
  const std::string file = save(plan_);
  const PlannedModel planned = read_planned_model(file);
  EXPECT_EQ(planned.path, path_);
  EXPECT_EQ(planned.ranks, 4);
  EXPECT_EQ(planned.options.optimizer, "adam");
  EXPECT_EQ(planned.options.batch, 8);
  PlanRequest request;
  request.plan_file = file;
  const Model again = load_model(world_, planned.path, planned.options);
  EXPECT_EQ(make_plan(world_, again, request).json(), plan_.json());
  const auto refused = [&](World& world, const Model& model, const std::string& field) {
    try {
      make_plan(world, model, request);
      FAIL() << "accepted; wanted a refusal naming " << field;
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call);
      EXPECT_NE(std::string(e.what()).find(field), std::string::npos) << e.what();
    }
  };
  refused(world_, load(/*clip=*/1), "field 'model_hash'");
  World two = World::threads(2);
  refused(two, again, "field 'mesh'");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace shardrun
