// A planned step simulated: what must hold whatever the figures are.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardrun/bench.h"
#include "shardrun/simulate.h"

namespace shardrun {
namespace {

using Json = nlohmann::json;

class SimulatedSteps : public testing::Test {
 protected:
  void SetUp() override {
    GptModel gpt;
    gpt.layers = 4, gpt.hidden = 128, gpt.heads = 4, gpt.vocab = 256, gpt.context = 64;
    gpt.weights = false;
    write_gpt(gpt, path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  struct Outcome {
    SimulateReport report;
    Json json;
    int64_t plan_bytes = 0;
    double plan_seconds = 0;    // of the plan's kernels and collectives, one after the other
    std::vector<int64_t> sent;  // by rank, as a run's report has it
  };

  /// On `cluster` with `planner` on `mesh`, K micro-batches. Equal plans are made once.
  const ModelAndPlan& planned(const std::string& cluster, const std::string& planner,
                              const std::string& mesh, int micro_batches, int stages) {
    const std::string key =
        cluster + planner + mesh + std::to_string(micro_batches) + "," + std::to_string(stages);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    ModelOptions options;
    options.batch = 8, options.accumulate = micro_batches, options.dtype = "bf16";
    Model model = load_model(world_, path_, options);
    PlanRequest wanted;
    wanted.mesh = mesh, wanted.planner = planner, wanted.cluster = cluster;
    wanted.ranks = mesh_ranks(mesh) * stages;
    wanted.with_evaluation = false;
    SimulateRequest simulated;
    simulated.stages = stages;
    wanted = request_of_stage(world_, wanted, simulated);
    TrainingPlan plan = make_plan(world_, model, wanted);
    return plans_.emplace(key, ModelAndPlan{std::move(model), std::move(plan), ""}).first->second;
  }

  Outcome simulated(const std::string& cluster, const std::string& planner, const std::string& mesh,
                    int micro_batches, const SimulateRequest& request) {
    const auto& [model, plan, tried] =
        planned(cluster, planner, mesh, micro_batches, request.stages);
    Outcome out;
    out.report = simulate(world_, model, plan, request);
    out.json = Json::parse(out.report.json);
    const std::vector<int64_t> bytes = plan.predicted_bytes();
    out.plan_bytes = *std::max_element(bytes.begin(), bytes.end());
    const Json train = Json::parse(plan.json())["train"];
    out.plan_seconds = train["compute_seconds"].get<double>() + train["comm_seconds"].get<double>();
    out.sent = plan_figures(world_, model, plan).sent_bytes;
    return out;
  }

  static SimulateRequest bare() {
    SimulateRequest request;
    request.host = false;
    return request;
  }

  World world_ = World::threads(1);
  std::map<std::string, ModelAndPlan> plans_;
  std::string path_ = (std::filesystem::temp_directory_path() /
                       ("simulated_steps_" + std::to_string(::getpid()) + ".onnx"))
                          .string();
};

/// One stream, no host and no overlap: the sum of the steps' prices, which is the planner's. With
/// streams, between the busiest of them and that sum. And the bytes are those of the plan and of a
/// run's report.
TEST_F(SimulatedSteps, AreTheSumOfPricesWithoutOverlap) {
  for (const char* planner : {"dp", "fsdp", "megatron"}) {
    for (int micro_batches : {1, 2, 4}) {
      SimulateRequest request = bare();
      request.comm_streams = "none";
      const Outcome serial = simulated("a100-80", planner, "4", micro_batches, request);
      const double sum = serial.report.steps_seconds;
      EXPECT_NEAR(serial.report.seconds, sum, 1e-9 * sum) << planner << micro_batches;
      EXPECT_NEAR(serial.report.seconds, serial.plan_seconds, 1e-9 * sum)
          << planner << micro_batches;
      EXPECT_EQ(serial.report.peak_bytes, serial.plan_bytes);
      for (const char* streams : {"one", "axes"}) {
        request.comm_streams = streams;
        const Outcome out = simulated("a100-80", planner, "4", micro_batches, request);
        EXPECT_GE(out.report.seconds,
                  out.json["busiest_stream_seconds"].get<double>() * (1 - 1e-12));
        EXPECT_LE(out.report.seconds, sum * (1 + 1e-12)) << planner << micro_batches << streams;
        EXPECT_NEAR(out.json["serial_seconds"], sum, 1e-9 * sum);
        int64_t ranks = 0;
        for (const Json& lane : out.json["lanes"]) {
          EXPECT_EQ(lane["sent_bytes"], out.sent.at(lane["first_rank"])) << planner;
          double all = 0;
          for (const auto& [name, value] : lane.items())
            if (name.ends_with("_seconds")) all += value.get<double>();
          EXPECT_NEAR(all, out.report.seconds, 1e-9 * sum);
          ranks += lane["ranks"].get<int64_t>();
        }
        EXPECT_EQ(ranks, 4);
      }
    }
  }
}

/// Without the host, a step takes what the plan says: with what is hidden behind kernels, with
/// micro-batches, and where dims are not cut evenly.
TEST_F(SimulatedSteps, TakeWhatThePlanSays) {
  for (const char* cluster : {"a100-80", "host"}) {
    for (const char* planner : {"auto", "zero2"}) {
      for (const char* mesh : {"4", "3"}) {
        const Outcome out = simulated(cluster, planner, mesh, 2, bare());
        const double seconds = out.report.planned_seconds;
        EXPECT_NEAR(out.report.seconds, seconds, 1e-9 * seconds) << cluster << planner << mesh;
      }
    }
  }
  const Outcome hidden = simulated("a100-80", "dp", "4", 2, bare());
  EXPECT_LT(hidden.report.seconds, hidden.report.steps_seconds);
}

/// Where shards differ, the plan has the time of the rank that takes longest, which is not the
/// first here. What the step takes longer is what ranks wait for each other.
TEST_F(SimulatedSteps, OfUnequalShardsThePlanHasTheSlowestRank) {
  for (const auto& [planner, mesh, most] :
       {std::tuple("dp", "3", 1.01), std::tuple("zero1", "5", 1.03), std::tuple("zero1", "7", 1.03),
        std::tuple("zero2", "7", 1.03)}) {
    const Outcome out = simulated("a100-80", planner, mesh, 1, bare());
    EXPECT_GT(out.json["lanes"].size(), 1u);
    EXPECT_LE(out.report.planned_seconds, out.report.seconds * (1 + 1e-9)) << planner << mesh;
    EXPECT_LT(out.report.seconds, most * out.report.planned_seconds) << planner << mesh;
  }
}

TEST_F(SimulatedSteps, TraceHasTheStepsBytes) {
  const Outcome out = simulated("a100-80", "zero2", "4", 2, SimulateRequest());
  const Json trace = Json::parse(out.report.trace);
  std::map<int64_t, int64_t> sent;
  std::set<std::string> names;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") names.insert(event["name"].get<std::string>());
    if (event["ph"] == "X" && event["args"].contains("bytes_sent"))
      sent[event["pid"]] += event["args"]["bytes_sent"].get<int64_t>();
  }
  ASSERT_FALSE(sent.empty());
  for (const auto& [rank, bytes] : sent) EXPECT_EQ(bytes, out.sent.at(static_cast<size_t>(rank)));
  for (const char* name : {"read batch", "zero gradients", "launch"})
    EXPECT_EQ(names.count(name), 1u) << name;
}

/// Activations and their gradients, too.
TEST_F(SimulatedSteps, TraceHasTheBytesBetweenStages) {
  for (const char* schedule : {"1f1b", "interleaved"}) {
    SimulateRequest request;
    request.stages = 2, request.schedule = schedule;
    const Outcome out = simulated("a100-80", "dp", "2", 4, request);
    std::map<int64_t, int64_t> sent, between;
    const Json trace = Json::parse(out.report.trace);
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || !event["args"].contains("bytes_sent")) continue;
      const auto bytes = event["args"]["bytes_sent"].get<int64_t>();
      sent[event["pid"]] += bytes;
      if (event["name"] == "send to another stage") between[event["pid"]] += bytes;
    }
    for (const Json& lane : out.json["lanes"]) {
      EXPECT_EQ(lane["sent_bytes"], sent[lane["first_rank"]]) << schedule;
      EXPECT_GT(between[lane["first_rank"]], 0) << schedule;
    }
  }
}

/// In data parallelism all wait for a rank that is 1.2 times slower, and for nothing else.
TEST_F(SimulatedSteps, WaitForASlowRank) {
  const Outcome even = simulated("a100-80", "dp", "4", 2, SimulateRequest());
  SimulateRequest request;
  request.slow = {{2, 1.2}};
  const Outcome slow = simulated("a100-80", "dp", "4", 2, request);
  EXPECT_GT(slow.report.seconds, even.report.seconds);
  EXPECT_LE(slow.report.seconds, 1.2 * even.report.seconds);
  ASSERT_EQ(slow.json["lanes"].size(), even.json["lanes"].size() + 1);
  for (const Json& lane : slow.json["lanes"])
    EXPECT_EQ(lane["waiting_seconds"].get<double>() > 1e-6, lane["first_rank"] != 2) << lane;
  // Where only the batch is cut, one that is exactly 1 changes nothing.
  request.slow = {{2, 1.0}};
  EXPECT_DOUBLE_EQ(simulated("a100-80", "dp", "4", 2, request).report.seconds, even.report.seconds);
}

TEST_F(SimulatedSteps, JitterIsSeeded) {
  SimulateRequest request;
  request.jitter = 0.1, request.draws = 20, request.seed = 3;
  const Outcome one = simulated("a100-80", "dp", "4", 1, request);
  const Json jitter = one.json["jitter"];
  EXPECT_GT(jitter["p50_seconds"].get<double>(), one.report.seconds);  // the slowest of four
  EXPECT_GT(jitter["p95_seconds"].get<double>(), jitter["p50_seconds"].get<double>());
  EXPECT_EQ(simulated("a100-80", "dp", "4", 1, request).json["jitter"], jitter);
  request.seed = 4;
  EXPECT_NE(simulated("a100-80", "dp", "4", 1, request).json["jitter"], jitter);
}

/// More stages and the same ranks a stage: a stage has fewer layers, and waits for others.
/// Where training waits for no checkpoint, the more of them the better.
TEST_F(SimulatedSteps, ABestIntervalIsOfCheckpointsThatTakeTime) {
  SimulateRequest request;
  request.mtbf_hours = 50'000;
  const Json free = simulated("a100-80", "dp", "4", 1, request).json["goodput"];
  EXPECT_FALSE(free.contains("best_checkpoint_seconds")) << free;
  request.checkpoint_stall_seconds = 8;
  const Json stalls = simulated("a100-80", "dp", "4", 1, request).json["goodput"];
  EXPECT_NEAR(stalls.at("best_checkpoint_seconds"), std::sqrt(2 * 8 * 50'000 * 3600.0 / 4), 1);
}

TEST_F(SimulatedSteps, StagesAreSharedOut) {
  const double alone = simulated("a100-80", "dp", "2", 8, SimulateRequest()).report.seconds;
  for (const char* schedule : {"1f1b", "interleaved"}) {
    SimulateRequest request;
    request.stages = 2, request.schedule = schedule;
    const Outcome out = simulated("a100-80", "dp", "2", 8, request);
    EXPECT_LT(out.report.seconds, alone) << schedule;
    EXPECT_GT(out.report.seconds, alone / 2) << schedule;
    EXPECT_EQ(out.json["ranks"], 4);
    EXPECT_EQ(out.report.peak_bytes, 0);
    EXPECT_NE(out.report.text.find("cannot run pipeline stages"), std::string::npos);
  }
}

TEST_F(SimulatedSteps, OthersRunsTakeLonger) {
  const Outcome ours = simulated("a100-80", "megatron", "4", 1, bare());
  SimulateRequest request = bare();
  request.assume = "megatron";
  const Outcome theirs = simulated("a100-80", "megatron", "4", 1, request);
  EXPECT_GT(theirs.report.seconds, 1.2 * ours.report.seconds);
  request.host = true,
  request.constants.dispatch_us = 1000;  // the host alone takes that many launches
  const Outcome eager = simulated("a100-80", "megatron", "4", 1, request);
  EXPECT_GT(eager.report.seconds, 0.1);
}

/// No kernel of such a run stands beside a collective, unless --comm-streams says so.
TEST_F(SimulatedSteps, OthersKernelsWaitForCollectives) {
  SimulateRequest request = bare();
  request.assume = "megatron";
  const auto seconds_with = [&](const std::string& streams) {
    request.comm_streams = streams;
    return simulated("a100-80", "megatron", "4", 1, request).report.seconds;
  };
  EXPECT_DOUBLE_EQ(seconds_with(""), seconds_with("none"));
  EXPECT_LT(seconds_with("one"), 0.99 * seconds_with(""));
}

/// Of ranks that hold the same activations each sends its part to the next stage, and gathers the
/// others' there: the bytes are the same, but fewer of them go from node to node.
TEST_F(SimulatedSteps, OthersSendActivationsInParts) {
  SimulateRequest request = bare();
  request.stages = 2;
  const auto sends = [&](const std::string& assume) {
    request.assume = assume;
    const Outcome out = simulated("a100-80:2", "megatron", "4", 4, request);
    std::vector<int64_t> bytes;
    const Json trace = Json::parse(out.report.trace);
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["name"] == "send to another stage" && event["pid"] == 0)
        bytes.push_back(event["args"]["bytes_sent"]);
    }
    return bytes;
  };
  const std::vector<int64_t> whole = sends(""), parts = sends("megatron");
  ASSERT_EQ(whole.size(), 4u);  // one for each micro-batch
  ASSERT_EQ(parts.size(), 8u);  // and what is gathered
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(parts[2 * i], whole[i] / 4);
    EXPECT_EQ(parts[2 * i] + parts[2 * i + 1], whole[i]);
  }
}

/// Sums of gradients go through one of four cards where groups have several ranks in each of two
/// nodes: not within a node, nor of one rank in each.
TEST_F(SimulatedSteps, OthersSumGradientsThroughOneCard) {
  const auto longer = [&](const std::string& cluster, const std::string& mesh,
                          const std::string& assume) {
    SimulateRequest request = bare();
    request.assume = assume;
    const double once = simulated(cluster, "dp+megatron", mesh, 1, request).report.seconds;
    request.constants.mixed = 2;
    return simulated(cluster, "dp+megatron", mesh, 1, request).report.seconds - once;
  };
  EXPECT_GT(longer("a100-80:2", "data=8,model=2", "megatron"), 0);
  EXPECT_EQ(longer("a100-80:2", "data=8,model=2", ""), 0);
  EXPECT_EQ(longer("a100-80", "data=4,model=2", "megatron"), 0);
  EXPECT_EQ(longer("a100-80:2", "data=2,model=8", "megatron"), 0);
}

/// The host of such a run asks for one pass after the other, and begins none before all kernels of
/// the pass before have ended. Ours asks ahead.
TEST_F(SimulatedSteps, OthersHostWaitsForThePassBefore) {
  SimulateRequest request;
  request.assume = "megatron";
  request.constants.dispatch_us = 1;  // less than any kernel takes
  const int micro_batches = 3;
  const Outcome out = simulated("a100-80", "auto", "1", micro_batches, request);
  struct Span {
    double begin, end;
  };
  std::vector<Span> launches, kernels;
  const Json trace = Json::parse(out.report.trace);
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || !event["args"].contains("micro_batch")) continue;
    const Span span = {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
    if (event["name"] == "launch") launches.push_back(span);
    if (event["cat"] == "kernel") kernels.push_back(span);
  }
  constexpr double kRounded = 1e-2;  // microseconds
  int passes = 1;
  ASSERT_FALSE(launches.empty());
  for (size_t l = 1; l < launches.size(); ++l) {
    const double now = launches[l].begin;
    if (now <= launches[l - 1].end + kRounded) continue;
    ++passes;
    for (const Span& kernel : kernels)
      EXPECT_TRUE(kernel.begin >= now - kRounded || kernel.end <= now + kRounded) << now;
  }
  EXPECT_EQ(passes, 2 * micro_batches);
}

/// Events of ops by the time that they take, simulated as others run them, on one device whose
/// figures are round.
class OthersKernels : public testing::Test {
 protected:
  static constexpr double kLatency = 1e-6, kVocabulary = 256, kTokens = 64, kHidden = 128;

  void SetUp() override {
    figures_ = {{"name", "round"},
                {"nodes", 1},
                {"devices", 1},
                {"memory_bytes", 1e12},
                {"kernel_latency", kLatency},
                {"within", {{"bandwidth", 1e9}, {"latency", 0}}},
                {"collectives", "apart"}};
  }
  void TearDown() override {
    std::filesystem::remove(path_ + ".onnx");
    std::filesystem::remove(path_ + ".json");
  }

  void write(int heads, double vocabulary = kVocabulary) {
    GptModel gpt;
    gpt.layers = 1, gpt.hidden = static_cast<int>(kHidden), gpt.heads = heads;
    gpt.vocab = static_cast<int>(vocabulary), gpt.context = static_cast<int>(kTokens);
    gpt.weights = false;
    write_gpt(gpt, path_ + ".onnx");
  }

  /// Of each event whose op begins with `op`, seconds in order. FLOPs and bytes take `rate` and
  /// `bandwidth`.
  std::vector<double> seconds(const std::string& op, int batch, double rate, double bandwidth) {
    figures_["flops"] = {{"f32", {{"peak", rate}}}, {"bf16", {{"peak", rate}}}};
    figures_["memory_bandwidth"] = {{"peak", bandwidth}};
    std::ofstream(path_ + ".json") << figures_;
    ModelOptions options;
    options.batch = batch, options.dtype = "bf16";
    const Model model = load_model(world_, path_ + ".onnx", options);
    PlanRequest wanted;
    wanted.mesh = "1", wanted.ranks = 1, wanted.cluster = path_ + ".json";
    wanted.with_evaluation = false;
    const TrainingPlan plan = make_plan(world_, model, wanted);
    SimulateRequest request;
    request.assume = "megatron", request.host = false;
    const Json trace = Json::parse(simulate(world_, model, plan, request).trace);
    std::vector<double> found;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["args"].value("op", "").starts_with(op))
        found.push_back(event["dur"].get<double>() * 1e-6);
    }
    return found;
  }

  World world_ = World::threads(1);
  Json figures_;
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("others_kernels_" + std::to_string(::getpid())))
          .string();
};

/// Passes over the scores, which products make along with their arithmetic: eight forward, ten
/// backward, in two bytes. Three kernels are no products.
TEST_F(OthersKernels, AttentionTakesItsProductsAndPassesOverScores) {
  write(4);
  const double scores = 8 * 4 * kTokens * kTokens, flops = 2 * scores * kHidden / 4;
  const auto expect = [&](double rate, double bandwidth, double ahead, double back) {
    const std::vector<double> found = seconds("attention", 8, rate, bandwidth);
    ASSERT_EQ(found.size(), 3u);  // the forward pass runs again before the backward pass
    for (size_t a : {0, 1}) EXPECT_NEAR(found[a], ahead + 5 * kLatency, 2e-9);
    EXPECT_NEAR(found[2], back + 7 * kLatency, 2e-9);
  };
  const double pass = 2 * scores / 1e9;
  expect(1e18, 1e9, 8 * pass, 10 * pass);
  expect(1e9, 1e18, 2 * flops / 1e9, 4 * flops / 1e9);
  expect(1e10, 1e9, 2 * flops / 1e10 + 6 * pass, 4 * flops / 1e10 + 6 * pass);
}

/// 32 tiles are two waves of 20, of which the second is not full. Queries with keys fill theirs,
/// and so does the gradient of probabilities. A result of 32 columns fills half of each.
TEST_F(OthersKernels, ProductsOfAttentionHaveTiles) {
  write(4);
  figures_["tiles"] = {{"multiprocessors", 20},
                       {"shapes", Json::array({Json::array({64, 64})})},
                       {"cache_bandwidth", {{"peak", 1e18}}},
                       {"latency", 0}};
  const double flops = 2.0 * 8 * kTokens * kTokens * kHidden;  // of one product
  const std::vector<double> found = seconds("attention", 8, 1e9, 1e18);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_NEAR(found[0], (1.25 + 2.5) * flops / 1e9 + 5 * kLatency, 2e-9);
  EXPECT_NEAR(found[2], (1.25 + 3 * 2.5) * flops / 1e9 + 7 * kLatency, 2e-9);
}

/// q, k and v are read as they lie, and their gradients written side by side. Behind attention one
/// is copied, in the forward pass and when it runs again.
TEST_F(OthersKernels, ViewsOfAttentionTakeNoTime) {
  write(4);
  std::vector<double> taken;
  for (const char* op : {"transpose", "split"}) {
    for (double one : seconds(op, 8, 1e18, 1e9)) {
      if (one > 0) taken.push_back(one);
    }
  }
  ASSERT_EQ(taken.size(), 2u);
  const double bytes = 2 * 2.0 * 8 * kTokens * kHidden;  // read and written, of two bytes each
  for (double one : taken) EXPECT_NEAR(one, bytes / 1e9 + kLatency, 2e-9);
}

/// 38 bytes forward and 14 backward for each logit.
TEST_F(OthersKernels, TheLossPassesOverTheLogitsInF32) {
  write(4);
  double all = 0;
  for (double one : seconds("cross_entropy", 8, 1e18, 1e9)) all += one;
  EXPECT_NEAR(all, 52.0 * 8 * kTokens * kVocabulary / 1e9 + 8 * kLatency, 4e-9);
}

/// The head's three products have rows of as many elements as there are tokens. 255 are no multiple
/// of 16 bytes, so these products take 3.14 times as long as by their FLOPs.
TEST_F(OthersKernels, ProductsOfUnalignedRowsTakeLonger) {
  double all[2] = {0, 0};
  for (int unaligned : {0, 1}) {
    write(4, kVocabulary - unaligned);
    for (double one : seconds("matmul", 8, 1e9, 1e18)) all[unaligned] += one;
  }
  const double head = 3 * 2.0 * 8 * kTokens * kHidden * kVocabulary / 1e9;
  const double longer = 3.14 * (kVocabulary - 1) / kVocabulary;
  EXPECT_NEAR((all[1] - all[0]) / ((longer - 1) * head), 1, 1e-6);
}

/// Of steps with many micro-batches the first are simulated, and the rest is as many times what the
/// last of these took. That is the whole simulated step.
TEST_F(SimulatedSteps, OfManyMicroBatchesRepeatThemselves) {
  const int many = 24;
  for (const char* assume : {"", "megatron"}) {
    for (int stages : {1, 2, 4}) {
      SimulateRequest request;
      request.stages = stages, request.assume = assume;
      for (double dispatch : {0.1, 30.0}) {                 // kernels take longer, or the host
        if (request.assume.empty() && dispatch > 1) break;  // which then asks once
        request.constants.dispatch_us = dispatch;
        const double whole = simulated("a100-80", "dp", "2", many, request).report.seconds;
        const ModelAndPlan& of = planned("a100-80", "dp", "2", many, stages);
        Resimulation again(world_, of.model, of.plan, request);
        EXPECT_NEAR(again.seconds(request.constants, many), whole, 1e-9 * whole)
            << assume << stages << " " << dispatch;
      }
    }
  }
}

TEST_F(SimulatedSteps, RefuseWhatCannotBe) {
  const auto refused = [&](const std::function<void(SimulateRequest&)>& change, int micro_batches,
                           const std::string& part) {
    SimulateRequest request;
    change(request);
    try {
      simulated("a100-80", "dp", "2", micro_batches, request);
      ADD_FAILURE() << part;
    } catch (const Failure& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_EQ(e.status(), 2) << e.what();
    }
  };
  refused([](auto& r) { r.stages = 8; }, 1, "wanted 16");  // of a node of 8
  refused([](auto& r) { r.stages = 0; }, 1, "--stages is 0");
  refused([](auto& r) { r.stages = 2, r.schedule = "gpipe"; }, 1,
          "--schedule 'gpipe' is not one of 1f1b, interleaved");
  refused([](auto& r) { r.comm_streams = "two"; }, 1,
          "--comm-streams 'two' is not one of none, one, axes");
  refused([](auto& r) { r.schedule = "interleaved"; }, 1, "give --stages 2");
  refused([](auto& r) { r.stages = 2, r.schedule = "interleaved"; }, 3, "3 micro-batches");
  refused([](auto& r) { r.stages = 2, r.schedule = "interleaved", r.chunks = 3; }, 2, "4 layers");
  refused([](auto& r) { r.stages = 2, r.chunks = 3; }, 2, "--chunks 3: --schedule 1f1b has one");
  refused([](auto& r) { r.slow = {{2, 1.2}}; }, 1, "no such rank");
  refused([](auto& r) { r.slow = {{1, 0.5}}; }, 1, "factor of 1 or more");
  refused([](auto& r) { r.assume = "deepspeed"; }, 1, "'deepspeed', wanted megatron");
  refused([](auto& r) { r.jitter = -1; }, 1, "--jitter");
  refused([](auto& r) { r.overlap_slowdown = 0.5; }, 1, "--beside");
  refused([](auto& r) { r.mtbf_hours = -1; }, 1, "--mtbf is -1, wanted 1e-06 to 1e+09");
  refused([](auto& r) { r.overlap_slowdown = 1e308; }, 1, "--beside is 1e+308, wanted 1 to 1e6");
  refused([](auto& r) { r.input_gb_s = 1e-320; }, 1,
          "--input-rate is 9.99989e-321, wanted 1e-6 to");
  refused([](auto& r) { r.constants.dispatch_us = 1e308; }, 1, "--dispatch-us is 1e+308, wanted 0");
  refused([](auto& r) { r.draws = 2'000'000'000; }, 1, "--draws is 2e+09, wanted 2 to 1000000");
}

/// Models and clusters that nobody measured: more to do takes longer, faster links do not.
TEST(UnseenModels, AreMonotone) {
  struct Unseen {
    int hidden = 1536, layers = 6, micro_batches = 4;
    std::string links = "1x";
  };
  World world = World::threads(1);
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("unseen_models_" + std::to_string(::getpid()) + ".onnx"))
                               .string();
  const auto seconds = [&](const Unseen& of) {
    GptModel gpt;
    gpt.layers = of.layers, gpt.hidden = of.hidden, gpt.heads = 16, gpt.vocab = 50304;
    gpt.context = 1024, gpt.weights = false;
    write_gpt(gpt, path);
    ModelOptions options;
    options.batch = 4, options.accumulate = of.micro_batches, options.dtype = "bf16";
    const Model model = load_model(world, path, options);
    PlanRequest request;
    request.mesh = "data=2,model=2", request.planner = "dp+megatron";
    request.cluster = "a100-80,within=" + of.links;
    request.ranks = 4, request.with_evaluation = false;
    const TrainingPlan plan = make_plan(world, model, request);
    SimulateRequest theirs;
    theirs.assume = "megatron", theirs.constants.dispatch_us = 5;
    return std::array{simulate(world, model, plan, SimulateRequest()).seconds,
                      simulate(world, model, plan, theirs).seconds};
  };
  const std::array<double, 2> one = seconds({});
  const auto about = [&](const Unseen& less, const Unseen& more, const std::string& what) {
    const std::array<double, 2> below = seconds(less), above = seconds(more);
    for (size_t how : {0, 1}) {
      EXPECT_LT(below[how], one[how]) << what << how;
      EXPECT_GT(above[how], one[how]) << what << how;
    }
  };
  about({.hidden = 1024}, {.hidden = 2048}, "hidden");
  about({.layers = 4}, {.layers = 8}, "layers");
  about({.micro_batches = 2}, {.micro_batches = 8}, "micro-batches");
  about({.links = "2x"}, {.links = "0.5x"}, "links");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace shardrun
