// Training a graph by the command: the recipe that its model carries, masks, early stopping, the
// same losses on any mesh, with and without dropout.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/exec/data/data_support.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr int kNodes = 24, kFeatures = 6, kClasses = 3;

/// Nodes of three kinds; their features lean to the kind, their neighbours are mostly of it.
std::string graph_npz(const char* validation = "val_mask", const char* test = "test_mask") {
  std::vector<float> features;
  std::vector<int64_t> labels, sources, targets;
  std::string masks[3];
  for (int i = 0; i < kNodes; ++i) {
    labels.push_back(i % kClasses);
    for (int k = 0; k < kFeatures; ++k) {
      const bool own = k % kClasses == i % kClasses;
      features.push_back(static_cast<float>((own ? 5 : 1) + (i * 7 + k * 3) % 4));
    }
    // A set: twice the same edge counts twice in a list and once in a matrix.
    for (int j : std::set<int>{i, (i + 3) % kNodes, (i + 6) % kNodes, (i * 5 + 1) % kNodes}) {
      sources.push_back(j);
      targets.push_back(i);
    }
    for (int s = 0; s < 3; ++s) masks[s] += static_cast<char>((i < 12 ? 0 : i < 18 ? 1 : 2) == s);
  }
  const auto edges = static_cast<int64_t>(sources.size());
  sources.insert(sources.end(), targets.begin(), targets.end());
  using test::bytes_of, test::npy;
  const auto row = [](int64_t n) { return "(" + std::to_string(n) + ",)"; };
  return test::npz(
      {{"features", npy("<f4", "(24, 6)", bytes_of(features))},
       {"labels", npy("<i8", row(kNodes), bytes_of(labels))},
       {"edge_index", npy("<i8", "(2, " + std::to_string(edges) + ")", bytes_of(sources))},
       {"train_mask", npy("|b1", row(kNodes), masks[0])},
       {validation, npy("|b1", row(kNodes), masks[1])},
       {test, npy("|b1", row(kNodes), masks[2])}});
}

std::vector<nlohmann::json> evals(const std::string& text) {
  std::vector<nlohmann::json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line);
    if (parsed.contains("val_loss")) out.push_back(parsed);
  }
  return out;
}

class Graphs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("graph.npz", graph_npz());
    const std::string model =
        "model gat --features 6 --hidden 3 --heads 5 --classes 3 --output-heads 2 ";
    const std::string recipe =
        "--recipe '--loss cross-entropy --optimizer adam --lr 0.02 --weight-decay 5e-4 --decay-all "
        "--normalise rows --steps 60 --eval-every 1 --patience 20' ";
    for (const std::string& made :
         {model + recipe + "-o sparse.onnx", model + recipe + "--dense -o dense.onnx",
          model + recipe + "--dropout 0.4 --attention-dropout 0.4 -o dropout.onnx",
          model + recipe + "--dropout 0.4 --attention-dropout 0.4 --dense -o dense_dropout.onnx"}) {
      const Outcome outcome = at_->shardrun(made);
      ASSERT_EQ(outcome.status, 0) << describe(outcome);
    }
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }
  static Workspace* at_;
};

Workspace* Graphs::at_ = nullptr;

constexpr const char* kData = " --data npz:graph.npz";

/// Nothing but the data is said: sizes come from the arrays, all else from the file.
TEST_F(Graphs, TheRecipeIsInTheModel) {
  const Outcome run = at_->shardrun(std::string("train sparse.onnx --metrics m.jsonl") + kData);
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("recipe of the model: --loss cross-entropy --optimizer adam --lr 0.02"),
            std::string::npos)
      << describe(run);
  EXPECT_NE(run.out.find("12 targets to train, 6 to validate, 6 to test"), std::string::npos);
  const auto lines = evals(at_->read("m.jsonl"));
  ASSERT_FALSE(lines.empty());
  for (size_t i = 0; i < lines.size(); ++i) {
    const double accuracy = lines[i].at("val_accuracy");
    EXPECT_NEAR(accuracy * 6, std::round(accuracy * 6), 1e-9) << lines[i];
    EXPECT_EQ(lines[i].contains("test_accuracy"), i + 1 == lines.size()) << lines[i];
  }
  const nlohmann::json& last = lines.back();
  const double test = last.at("test_accuracy");
  EXPECT_NEAR(test * 6, std::round(test * 6), 1e-9);
  EXPECT_GE(test, 0.6) << last;
  EXPECT_LE(last.at("best_step"), last.at("step"));
}

TEST_F(Graphs, TheCallOverridesTheRecipe) {
  const Outcome run =
      at_->shardrun(std::string("train sparse.onnx --steps 3 --lr 0.5 --metrics o.jsonl") + kData);
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("(given otherwise in the call: --lr, --steps)"), std::string::npos)
      << describe(run);
  EXPECT_EQ(evals(at_->read("o.jsonl")).size(), 3u);
  EXPECT_NE(at_->read("o.jsonl").find("\"lr\":0.5"), std::string::npos);
}

TEST_F(Graphs, PatienceEndsTheRun) {
  const Outcome run = at_->shardrun(
      std::string("train sparse.onnx --lr 0 --steps 50 --patience 4 --metrics p.jsonl") + kData);
  ASSERT_EQ(run.status, 0) << describe(run);
  // With a rate of 0 each validation is as good as the first, and not better.
  EXPECT_EQ(evals(at_->read("p.jsonl")).size(), 5u);
  const Outcome worse = at_->shardrun(
      std::string("train sparse.onnx --lr 3 --steps 400 --patience 4 --metrics w.jsonl") + kData);
  ASSERT_EQ(worse.status, 0) << describe(worse);
  const auto lines = evals(at_->read("w.jsonl"));
  EXPECT_LT(lines.size(), 400u);
  EXPECT_TRUE(lines.back().contains("test_accuracy")) << lines.back();
}

/// A recipe says how to learn, not what to read or write.
TEST_F(Graphs, RecipesDoNotNameFiles) {
  for (const std::string recipe :
       {"--metrics stolen.jsonl", "--plan p.json", "--lr 1 2", "0.5    "}) {
    const std::string write = "model gat -o bad.onnx --recipe '";
    EXPECT_EQ(at_->shardrun(write + recipe + "'").status, 2) << recipe;
    // What the command does not write, a file may hold.
    const std::string harmless = "--lr " + std::string(recipe.size() - 5, '7');
    ASSERT_EQ(at_->shardrun(write + harmless + "'").status, 0);
    std::string model = at_->read("bad.onnx");
    ASSERT_NE(model.find(harmless), std::string::npos);
    at_->write("bad.onnx", model.replace(model.find(harmless), harmless.size(), recipe));
    const Outcome run = at_->shardrun(std::string("train bad.onnx") + kData);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_NE(message(run).find("bad.onnx: metadata 'shardrun.train': "), std::string::npos)
        << describe(run);
  }
}

/// What a recipe's flag lacks is not taken from the call, and the file is named.
TEST_F(Graphs, RecipesThatDoNotFitTheirFlagsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"--freeze", "--freeze: wants a value"},
      {"--lr", "--lr: wants a value"},
      {"--decay-all graph.npz", "--decay-all: takes no value, not 'graph.npz'"},
      {"--lr fast", "--lr: 'fast' is not a number"},
      {"--steps 99999999999999999999", "--steps: '99999999999999999999' is too large"}};
  for (const auto& [recipe, why] : cases) {
    at_->shardrun(std::string("model gat -o odd.onnx --recipe '") + recipe + "'");
    // The call's own --quiet is not the value of the recipe's last flag.
    const Outcome run = at_->shardrun(std::string("train --quiet odd.onnx") + kData);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find(std::string("odd.onnx: metadata 'shardrun.train': ") + why),
              std::string::npos)
        << describe(run);
  }
  at_->shardrun("model gat -o odd.onnx --recipe '--accumulate -1'");
  const Outcome run = at_->shardrun(std::string("train odd.onnx") + kData);
  EXPECT_NE(message(run).find("(recipe of the model: --accumulate -1)"), std::string::npos)
      << describe(run);
}

/// One pass measures both; each is what a validation of its nodes alone gives.
TEST_F(Graphs, TheTestIsThatOfTheBestValidation) {
  at_->write("swapped.npz", graph_npz("test_mask", "val_mask"));
  for (const char* model : {"sparse", "dense_dropout"}) {
    const std::string job = std::string("train ") + model + ".onnx --steps 15";
    const Outcome run = at_->shardrun(job + kData + " --metrics t.jsonl"),
                  swapped = at_->shardrun(job + " --data npz:swapped.npz --metrics s.jsonl");
    ASSERT_EQ(run.status, 0) << describe(run);
    ASSERT_EQ(swapped.status, 0) << describe(swapped);
    const auto lines = evals(at_->read("t.jsonl")), others = evals(at_->read("s.jsonl"));
    const nlohmann::json& last = lines.back();
    const nlohmann::json& best = others.at(static_cast<size_t>(last.at("best_step")) - 1);
    EXPECT_EQ(last.at("test_loss"), best.at("val_loss"));
    EXPECT_EQ(last.at("test_accuracy"), best.at("val_accuracy"));
    EXPECT_NE(last.at("test_loss"),
              lines.at(last.at("best_step").get<size_t>() - 1).at("val_loss"));
  }
}

/// It is read once, and again after a validation, which has its memory meanwhile.
TEST_F(Graphs, ABatchThatIsTheSameStaysWhereItIs) {
  for (const char* model : {"sparse", "dense_dropout"}) {
    std::vector<nlohmann::json> losses;
    // How often to validate, but for the last step; batches read to train and to validate.
    for (const auto& [every, read] :
         {std::pair("0", 1 + 1), std::pair("2", 3 + 3), std::pair("1", 5 + 5)}) {
      const Outcome run =
          at_->shardrun(std::string("train ") + model + ".onnx --steps 5 --report r.json" + kData +
                        " --profile trace.json --eval-every " + every);
      ASSERT_EQ(run.status, 0) << describe(run);
      losses.push_back(nlohmann::json::parse(at_->read("r.json")).at("losses"));
      EXPECT_EQ(losses.back(), losses.front()) << model << every;
      const nlohmann::json trace = nlohmann::json::parse(at_->read("trace.json"));
      int times = 0;
      for (const nlohmann::json& e : trace.at("traceEvents")) times += e.at("name") == "read batch";
      EXPECT_EQ(times, read) << model << every;
    }
  }
}

TEST_F(Graphs, MeshesAgree) {
  for (const char* model : {"sparse", "dense", "dropout", "dense_dropout"}) {
    const std::string job = std::string(model) + ".onnx --steps 12 --plan-seconds 1" + kData;
    const TrainingRun alone = train(*at_, threads(1), job);
    ASSERT_EQ(alone.losses.size(), 12u);
    EXPECT_LT(alone.losses.back(), alone.losses.front()) << describe(alone.outcome);
    const std::string less =
        " --arena " + std::to_string(static_cast<int64_t>(0.9 * alone.allocated.at(0)));
    const Ranks two = std::string(model) == "dropout" ? mpi(2) : threads(2);
    for (const auto& [ranks, flags] : std::vector<std::pair<Ranks, std::string>>{
             {two, less},
             {threads(3), " --mesh 3" + less},
             {threads(4),
              " --mesh nodes=2,heads=2 --shard 'features=[nodes,-]'"
              " --shard '.*weight=[-,heads]'"}}) {
      const TrainingRun run = train(*at_, ranks, job + flags);
      EXPECT_LE(largest_difference(run, alone), 1e-4) << describe(run.outcome);
      ASSERT_EQ(run.evals.size(), alone.evals.size());
    }
  }
}

/// Without dropout, whose masks are those of places in the list.
TEST_F(Graphs, SortedEdgesGiveTheSame) {
  const std::string job = std::string("sparse.onnx --steps 15") + kData;
  const TrainingRun as_given = train(*at_, threads(1), job),
                    sorted = train(*at_, threads(3), job + " --sort-edges");
  EXPECT_LE(largest_difference(sorted, as_given), 1e-4) << describe(sorted.outcome);
}

/// 26 nodes in a ring, each with its neighbours; the edges in no order.
std::string ring_npz() {
  constexpr int kRing = 26;
  std::vector<float> features;
  std::vector<int64_t> labels, sources, targets;
  std::string masks[3];
  for (int i = 0; i < kRing; ++i) {
    labels.push_back(i * kClasses / kRing);
    for (int k = 0; k < kFeatures; ++k)
      features.push_back(static_cast<float>((i * 7 + k * 3) % 5 + (k == labels.back() ? 4 : 0)));
    for (int s = 0; s < 3; ++s)
      masks[s] += static_cast<char>((i % 2 == 0 ? 0 : i % 4 / 2 + 1) == s);
  }
  for (int e = 0; e < 4 * kRing; ++e) {
    const int mixed = e * 33 % (4 * kRing), target = mixed / 4;  // 33 and 104 have no common factor
    sources.push_back((target + mixed % 4 + kRing - 1) % kRing);
    targets.push_back(target);
  }
  sources.insert(sources.end(), targets.begin(), targets.end());
  using test::bytes_of, test::npy;
  return test::npz({{"features", npy("<f4", "(26, 6)", bytes_of(features))},
                    {"labels", npy("<i8", "(26,)", bytes_of(labels))},
                    {"edge_index", npy("<i8", "(2, 104)", bytes_of(sources))},
                    {"train_mask", npy("|b1", "(26,)", masks[0])},
                    {"val_mask", npy("|b1", "(26,)", masks[1])},
                    {"test_mask", npy("|b1", "(26,)", masks[2])}});
}

/// Bytes are expensive and messages are not, so that what is planned does not depend on the
/// machine.
constexpr const char* kCostlyBytes =
    R"({"name": "costly", "nodes": 1, "devices": 4, "memory_bytes": 1e9,
        "flops": {"f32": {"peak": 1e9}}, "memory_bandwidth": {"peak": 1e8},
        "kernel_latency": 1e-9,
        "within": {"bandwidth": 1e7, "latency": 1e-9, "call_latency": 1e-9},
        "between": {"bandwidth": 1e7, "latency": 1e-9}, "sources": {}})";

/// Sorted edges meet few nodes of other ranks, and the planner lets only these change ranks.
TEST_F(Graphs, SortedEdgesExchangeRows) {
  at_->write("ring.npz", ring_npz());
  at_->write("costly.json", kCostlyBytes);
  const std::string data = " --data npz:ring.npz",
                    job = "sparse.onnx --steps 6 --seed 3" + data + " --sort-edges";
  const TrainingRun alone = train(*at_, threads(1), "sparse.onnx --steps 6 --seed 3" + data);
  for (const Ranks& ranks : {threads(2), threads(3), threads(4), mpi(3)}) {
    const std::string on = " --cluster ./costly.json --mesh nodes=" + std::to_string(ranks.count),
                      plan = "plan sparse.onnx" + data + on + " --seed 3 -o rows.json";
    const Outcome unsorted = at_->shardrun(plan);
    ASSERT_EQ(unsorted.status, 0) << describe(unsorted);
    const double all = nlohmann::json::parse(at_->read("rows.json"))["train"]["seconds"];
    const Outcome sorted = at_->shardrun(plan + " --sort-edges");
    ASSERT_EQ(sorted.status, 0) << describe(sorted);
    const std::string text = at_->read("rows.json");
    EXPECT_NE(text.find("most_named"), std::string::npos) << describe(sorted);
    EXPECT_LT(nlohmann::json::parse(text)["train"]["seconds"], 0.95 * all);
    const Outcome shown = at_->shardrun("explain rows.json");
    EXPECT_NE(shown.out.find("> row_add of gather_grad"), std::string::npos) << describe(shown);
    // Bytes that are allocated are those predicted, or train() fails.
    const TrainingRun run = train(*at_, ranks, job + " --plan rows.json");
    EXPECT_LE(largest_difference(run, alone), 1e-4) << describe(run.outcome);
  }
  const Outcome same = at_->shardrun(threads(4), "verify " + job + " --cluster ./costly.json");
  EXPECT_EQ(same.status, 0) << describe(same);
}

/// Each exchange is one of a node of the plan, whatever stands around it: with bytes less
/// expensive, rows change ranks only behind the kernels, and what reads their numbers first groups
/// them.
TEST_F(Graphs, TracesPredictExchanges) {
  at_->write("ring.npz", ring_npz());
  const Outcome made = at_->shardrun(
      "model gat --features 6 --classes 3 --hidden 6 --heads 1 --output-heads 1 --dropout 0 "
      "--attention-dropout 0 -o one.onnx");
  ASSERT_EQ(made.status, 0) << describe(made);
  std::string near = kCostlyBytes;
  near.replace(near.find("1e7"), 3, "1e8");  // within a node
  for (const auto& [name, cluster] :
       {std::pair<std::string, std::string>{"costly", kCostlyBytes}, {"near", near}}) {
    at_->write(name + ".json", cluster);
    const Outcome run = at_->shardrun(threads(2),
                                      "train one.onnx --loss cross-entropy --data npz:ring.npz "
                                      "--steps 2 --sort-edges --mesh nodes=2 --cluster ./" +
                                          name + ".json --profile trace.json");
    ASSERT_EQ(run.status, 0) << describe(run);
    int routes = 0;
    const nlohmann::json trace = nlohmann::json::parse(at_->read("trace.json"));
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      if (event.value("cat", "") != "collective") continue;
      const std::string op = event.at("args").at("op");
      if (!op.starts_with("row_")) continue;
      routes += op == "row_route" ? 1 : 0;
      EXPECT_GT(event.at("args").at("predicted_us"), 0) << event;
      EXPECT_NE(event.at("args").at("in")[0].get<std::string>().find("] ["), std::string::npos)
          << event;
    }
    EXPECT_GT(routes, 0) << describe(run);
  }
}

/// Groups of rows that are found in a copy of the edge list are no value and have no Sharding.
TEST_F(Graphs, GroupsOfRowsOfACopy) {
  const Outcome made = at_->shardrun(
      "model gat --features 6 --classes 3 --hidden 6 --heads 2 --nodes 40 --edges 160 -o "
      "list.onnx");
  ASSERT_EQ(made.status, 0) << describe(made);
  for (const std::string command :
       {"plan list.onnx", "train list.onnx --steps 1 --profile t.json"}) {
    const Outcome run =
        at_->shardrun(threads(2), command + " --mesh d=2 --shard 'Gather(_1)?=[d]'");
    EXPECT_EQ(run.status, 0) << describe(run);
  }
  EXPECT_NE(at_->read("t.json").find("@[-]/groups"), std::string::npos);
}

/// Edges in another order name more rows than the plan allows for.
TEST_F(Graphs, APlanForOtherEdgesIsRefused) {
  at_->write("ring.npz", ring_npz());
  at_->write("costly.json", kCostlyBytes);
  const std::string job = "sparse.onnx --data npz:ring.npz";
  const Outcome plan = at_->shardrun(
      "plan " + job + " --cluster ./costly.json --mesh nodes=3 --sort-edges -o o.json");
  ASSERT_EQ(plan.status, 0) << describe(plan);
  const Outcome run = at_->shardrun(threads(3), "train " + job + " --steps 2 --plan o.json");
  EXPECT_EQ(run.status, 2) << describe(run);
  EXPECT_EQ(messages(run), 1) << describe(run);
  for (const char* part : {"--data npz:ring.npz: ", "rank 0: value '",
                           " rows, the plan allows for ", "in another order"})
    EXPECT_NE(message(run).find(part), std::string::npos) << describe(run);
}

TEST_F(Graphs, SparseAndDenseAreOneModel) {
  const TrainingRun sparse = train(*at_, threads(1), std::string("sparse.onnx --steps 15") + kData),
                    dense = train(*at_, threads(1), std::string("dense.onnx --steps 15") + kData);
  EXPECT_LE(largest_difference(dense, sparse), 1e-4);
}

/// GATConv takes the self loops out with NonZero, so how many edges remain is known from the data.
TEST_F(Graphs, AnExportWithSelfLoopsTrains) {
  using test::bytes_of, test::npy;
  std::vector<float> x;
  std::vector<int64_t> edges, labels;
  for (int i = 0; i < 11 * 6; ++i) x.push_back(static_cast<float>((i * 7) % 5) - 2);
  for (int i = 0; i < 34; ++i) edges.push_back(i * 3 % 11);
  for (int i = 0; i < 34; ++i) edges.push_back(i * i % 11);  // seven loops: i % 11 is 0 or 3
  for (int i = 0; i < 11; ++i) labels.push_back(i % 4);
  const std::string on(3, 1), off(3, 0), last(2, 0);
  using Files = std::vector<std::pair<std::string, std::string>>;
  const auto write = [&](const std::string& name, const std::vector<float>& features,
                         const Files& masks) {
    const std::string shape = "(" + std::to_string(features.size() / 6) + ", 6)";
    Files files = {{"x", npy("<f4", shape, bytes_of(features))},
                   {"edge_index", npy("<i8", "(2, 34)", bytes_of(edges))},
                   {"labels", npy("<i8", "(11,)", bytes_of(labels))}};
    files.insert(files.end(), masks.begin(), masks.end());
    at_->write(name, test::npz(files));
  };
  const auto mask = [](const std::string& bytes) { return npy("|b1", "(11,)", bytes); };
  write("loops.npz", x,
        {{"train_mask", mask(on + off + on + last)},
         {"val_mask", mask(off + on + off + last)},
         {"test_mask", mask(off + off + off + "\1\1")}});
  const std::string model = SHARDRUN_GOLDEN "/gat_loops.dynamo.onnx --loss cross-entropy",
                    job = model + " --data npz:loops.npz --steps 8 --lr 0.05";
  const TrainingRun alone = train(*at_, threads(1), job);
  EXPECT_NE(alone.outcome.out.find("input 'edge_index' is a constant"), std::string::npos)
      << describe(alone.outcome);
  const TrainingRun cut = train(*at_, threads(3), job + " --mesh nodes=3 --shard 'x=[nodes,-]'");
  EXPECT_LE(largest_difference(cut, alone), 1e-4) << describe(cut.outcome);
  const Outcome without = at_->shardrun("train " + model);
  EXPECT_EQ(without.status, 2) << describe(without);
  EXPECT_NE(message(without).find("depends on data"), std::string::npos) << describe(without);
  EXPECT_NE(without.err.find("--data npz:FILE, whose arrays are one batch"), std::string::npos)
      << describe(without);

  // Without masks all targets train.
  const std::string all(11, 1), none(11, 0);
  write("plain.npz", x, {});
  write("all.npz", x,
        {{"train_mask", mask(all)}, {"val_mask", mask(none)}, {"test_mask", mask(none)}});
  const std::string rest = " --steps 8 --lr 0.05 --data npz:";
  const TrainingRun plain = train(*at_, threads(1), model + rest + "plain.npz");
  EXPECT_EQ(largest_difference(plain, train(*at_, threads(1), model + rest + "all.npz")), 0)
      << describe(plain.outcome);
  x.insert(x.end(), x.begin(), x.end());
  write("more.npz", x, {});
  const Outcome more = at_->shardrun("train " + model + rest + "more.npz");
  EXPECT_EQ(more.status, 2) << describe(more);
  EXPECT_NE(message(more).find("the array for 'x' is [22, 6], but the model's input is [11, 6]"),
            std::string::npos)
      << describe(more);
}

/// MetaDist's Table 4: 0.6 billion parameters, 2.63 TFLOP. By products alone, with 1024 nodes and
/// 24576 features: 2 x 2 x 1024 x 24576^2 + 6 x 1024^2 x 24576 = 2.474e12 + 0.155e12. Attention has
/// a third of the latter forward, the rest backward.
TEST_F(Graphs, PlanCountsArithmeticAndParameters) {
  const Outcome made = at_->shardrun("model gat --preset metadist-1 --no-weights -o big.onnx");
  ASSERT_EQ(made.status, 0) << describe(made);
  const Outcome plan = at_->shardrun("plan big.onnx --ranks 1 --cluster v100-32");
  ASSERT_EQ(plan.status, 0) << describe(plan);
  for (const char* flops : {" 2.474 TFLOP", " 0.1031 TFLOP", " 51.54 GFLOP"})
    EXPECT_NE(plan.out.find(flops), std::string::npos) << describe(plan);
  EXPECT_NE(plan.out.find(" 604053504 elements in"), std::string::npos) << describe(plan);
}

TEST_F(Graphs, BadCallsAreRefused) {
  const Outcome none =
      at_->shardrun("train sparse.onnx --dim nodes=5 --dim edges=4 --validation 0");
  EXPECT_EQ(none.status, 2) << describe(none);
  EXPECT_NE(message(none).find("patience 20: waits for validations"), std::string::npos)
      << describe(none);
  const Outcome other = at_->shardrun(std::string("train sparse.onnx --dim nodes=5") + kData);
  EXPECT_EQ(other.status, 2) << describe(other);
  EXPECT_NE(message(other).find("array 'features': is [24, 6], but the model's input 'features' "
                                "is [5, 6]"),
            std::string::npos)
      << describe(other);
  at_->write("none.npz", test::npz({{"features", test::npy("<f4", "(0, 6)", "")},
                                    {"train_mask", test::npy("|b1", "(0,)", "")}}));
  const Outcome empty = at_->shardrun("train sparse.onnx --data npz:none.npz");
  EXPECT_EQ(empty.status, 2) << describe(empty);
  EXPECT_NE(
      message(empty).find("--data npz:none.npz: dim 'nodes' is 0 in the array for 'features'"),
      std::string::npos)
      << describe(empty);
}

}  // namespace
}  // namespace shardrun::test
