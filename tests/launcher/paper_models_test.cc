// TOAST's graph network and U-Net, small, through the command: they learn, on any number of ranks
// alike, and a graph in order is planned by its edges, a few images by space or channels.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/exec/data/data_support.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr int kNodes = 2048, kEdges = 4 * kNodes, kFeatures = 5, kEdgeFeatures = 3, kOutputs = 2;

/// Nodes in a ring, each the target of its neighbours and of itself, twice; the edges in no order.
std::string ring_npz() {
  std::vector<float> features, edge_features, wanted;
  std::vector<int64_t> sources, targets;
  for (int i = 0; i < kNodes; ++i) {
    for (int k = 0; k < kFeatures; ++k)
      features.push_back(static_cast<float>((i * 7 + k * 3) % 11 - 5) / 5);
    for (int k = 0; k < kOutputs; ++k)
      wanted.push_back(static_cast<float>((i * 3 + k) % 7 - 3) / 3);
  }
  for (int e = 0; e < kEdges; ++e) {
    const int mixed = e * 33 % kEdges, target = mixed / 4;
    sources.push_back((target + mixed % 4 + kNodes - 1) % kNodes);
    targets.push_back(target);
    for (int k = 0; k < kEdgeFeatures; ++k)
      edge_features.push_back(static_cast<float>((e * 5 + k) % 9 - 4) / 4);
  }
  sources.insert(sources.end(), targets.begin(), targets.end());
  using test::bytes_of, test::npy;
  const auto shape = [](int rows, int columns) {
    return "(" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
  };
  return test::npz(
      {{"features", npy("<f4", shape(kNodes, kFeatures), bytes_of(features))},
       {"edge_features", npy("<f4", shape(kEdges, kEdgeFeatures), bytes_of(edge_features))},
       {"edge_index", npy("<i8", shape(2, kEdges), bytes_of(sources))},
       {"target", npy("<f4", shape(kNodes, kOutputs), bytes_of(wanted))}});
}

class PaperModels : public testing::Test {
 protected:
  void make(const std::string& call) {
    const Outcome made = at_.shardrun(call);
    ASSERT_EQ(made.status, 0) << describe(made);
    EXPECT_NE(made.out.find(" parameters\n"), std::string::npos) << describe(made);
  }
  Workspace at_;
};

TEST_F(PaperModels, GraphNetworksLearnAlikeOnAllRanks) {
  at_.write("ring.npz", ring_npz());
  for (const char* form : {"--globals", "--no-globals"}) {
    make(
        "model gns --steps 2 --features 5 --edge-features 3 --hidden 16 --latent 16 --outputs 2 "
        "--nodes 2048 --edges 8192 -o gns.onnx " +
        std::string(form));
    const std::string job =
        "gns.onnx --data npz:ring.npz --sort-edges --steps 5 --lr 1e-3 --validation 0";
    const TrainingRun alone = train(at_, threads(1), job);
    ASSERT_EQ(alone.losses.size(), 5U) << describe(alone.outcome);
    EXPECT_LT(alone.losses.back(), 0.5 * alone.losses.front()) << describe(alone.outcome);
    for (const Ranks& ranks : {mpi(2), threads(4), threads(8)})
      EXPECT_LE(largest_difference(train(at_, ranks, job), alone), 1e-6) << form;
  }
}

/// Edges in order meet few nodes of other ranks. So the edges are cut, and the nodes at their ends,
/// and only what both sides of a cut need changes ranks.
TEST_F(PaperModels, GraphNetworksExchangeRows) {
  at_.write("ring.npz", ring_npz());
  make(
      "model gns --steps 2 --features 5 --edge-features 3 --hidden 16 --latent 16 --outputs 2 "
      "--nodes 2048 --edges 8192 -o gns.onnx");
  const std::string flags = " gns.onnx --data npz:ring.npz --sort-edges --mesh graph=";
  for (const int ranks : {4, 8}) {
    const std::string on = flags + std::to_string(ranks);
    const auto seconds = [&](const std::string& tactic) {
      const Outcome plan = at_.shardrun("plan" + on + tactic + " -o rows.json");
      EXPECT_EQ(plan.status, 0) << describe(plan);
      return nlohmann::json::parse(at_.read("rows.json"))["train"]["seconds"].get<double>();
    };
    const double edges_alone = seconds(" --tactic edge_features.0@graph");
    EXPECT_LT(seconds(""), edges_alone);
    const std::string text = at_.read("rows.json");
    EXPECT_NE(text.find("most_named"), std::string::npos) << text.substr(0, 300);
    const nlohmann::json values = nlohmann::json::parse(text)["train"]["values"];
    for (const char* made : {"%steps.0.edges.MatMul", "%steps.1.edges.MatMul"})
      EXPECT_EQ(values[made], "[{graph}, -]") << made << " " << values[made];
    EXPECT_NE(at_.shardrun("explain rows.json").out.find("> row_add of"), std::string::npos);
    const Outcome verified = at_.shardrun(
        threads(ranks), "verify gns.onnx --data npz:ring.npz --sort-edges --plan rows.json");
    EXPECT_EQ(verified.status, 0) << describe(verified);
  }
}

TEST_F(PaperModels, UNetsLearnAlikeOnAllRanks) {
  make("model unet --width 16 --image 32 --heads 32 -o unet.onnx");
  const std::string job = "unet.onnx --batch 1 --steps 5 --validation 0";
  const TrainingRun alone = train(at_, threads(1), job);
  ASSERT_EQ(alone.losses.size(), 5U) << describe(alone.outcome);
  EXPECT_LT(alone.losses.back(), alone.losses.front()) << describe(alone.outcome);
  for (const auto& [ranks, flags] : std::vector<std::pair<Ranks, std::string>>{
           {mpi(2), ""},
           {threads(4), ""},
           {threads(4), " --mesh 2x2"},
           {threads(4), " --mesh rows=4 --tactic images.2@rows --tactic auto@rows"}}) {
    const TrainingRun run = train(at_, ranks, job + flags);
    EXPECT_LE(largest_difference(run, alone), 4e-5) << describe(run.outcome);
    // With one image there are only its channels and its rows to cut.
    EXPECT_LT(run.allocated.at(0), 0.7 * static_cast<double>(alone.allocated.at(0)));
  }
}

}  // namespace
}  // namespace shardrun::test
