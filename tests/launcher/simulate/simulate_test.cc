// The command: against a real run's report, and what it refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "../command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

constexpr char kModel[] =
    "model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --context 16 --no-weights -o m.onnx";

/// Bytes that a run's report counts are those of the simulated step, and so is the arena.
TEST(Simulate, CountsARunsBytes) {
  Workspace at;
  ASSERT_EQ(at.shardrun(kModel).status, 0);
  for (const char* micro_batches : {"1", "2", "4"}) {
    const std::string k = std::string(" --accumulate ") + micro_batches;
    const Outcome planned =
        at.shardrun("plan m.onnx --ranks 2 --mesh 2 --planner fsdp -o p.json" + k);
    ASSERT_EQ(planned.status, 0) << describe(planned);
    const Outcome run = at.shardrun(
        mpi(2), "train m.onnx --plan p.json --steps 1 --validation 0 --report r.json" + k);
    ASSERT_EQ(run.status, 0) << describe(run);
    const Outcome out =
        at.shardrun("simulate m.onnx --plan p.json --json s.json --trace t.json" + k);
    ASSERT_EQ(out.status, 0) << describe(out);
    const Json report = Json::parse(at.read("r.json")), simulated = Json::parse(at.read("s.json"));
    for (const Json& lane : simulated["lanes"])
      EXPECT_EQ(lane["sent_bytes"], report["sent_bytes"][lane["first_rank"].get<size_t>()]);
    EXPECT_GT(report["sent_bytes"][0], 0);
    const auto allocated = report["allocated_bytes"].get<std::vector<int64_t>>();
    EXPECT_EQ(simulated["peak_bytes"], *std::max_element(allocated.begin(), allocated.end()));
    EXPECT_FALSE(Json::parse(at.read("t.json"))["traceEvents"].empty());
  }
}

/// A recipe's schedule is of learning rates. The command's own is of stages.
TEST(Simulate, TakesModelsWithAnyRecipe) {
  Workspace at;
  ASSERT_EQ(at.shardrun("model wide-resnet --preset wrn-16-4 --no-weights -o w.onnx").status, 0);
  ASSERT_NE(at.shardrun("plan w.onnx --ranks 2").out.find("recipe of the model:"),
            std::string::npos);
  const Outcome cosine = at.shardrun(
      "model gat --dense --layers 1 --features 8 --classes 3 --nodes 12 --recipe '--schedule "
      "cosine' "
      "--no-weights -o g.onnx");
  ASSERT_EQ(cosine.status, 0) << describe(cosine);
  for (const char* model : {"w.onnx", "g.onnx"}) {
    const Outcome out = at.shardrun(std::string("simulate ") + model + " --ranks 2 --cluster h100");
    EXPECT_EQ(out.status, 0) << describe(out);
  }
}

TEST(Simulate, RefusesWithASentence) {
  Workspace at;
  ASSERT_EQ(at.shardrun(kModel).status, 0);
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    const Outcome out = at.shardrun("simulate m.onnx " + arguments);
    EXPECT_EQ(out.status, 2) << describe(out);
    EXPECT_EQ(messages(out), 1) << describe(out);
    EXPECT_NE(message(out).find(part), std::string::npos) << describe(out);
  };
  refused("", "say for how many ranks");
  const Outcome none = at.shardrun("simulate --ranks 2");
  EXPECT_EQ(none.status, 2) << describe(none);
  EXPECT_NE(message(none).find("name a model"), std::string::npos) << describe(none);
  refused("--ranks 2 --slow 1", "'1' is not RANK=FACTOR");
  refused("--ranks 2 --slow 1=fast", "'1=fast' is not RANK=FACTOR");
  refused("--ranks 2 --slow 1=1.2 --slow 1=1.3", "rank 1 is there twice");
  refused("--ranks 3 --stages 2", "3 ranks are no multiple");
  refused("--ranks 4 --stages 2 --mesh 2x2", "--mesh a=2,b=2 has 4 ranks; it is of one stage");
  // Before a plan is looked for, which nothing fits.
  for (const std::string flag :
       {"--jitter 2", "--slow 9=2", "--beside 0.5", "--input-rate 0", "--assume nobody",
        "--comm-streams two", "--stages 0", "--checkpoint-minutes 0 --mtbf 50700"})
    refused("--ranks 2 --memory 1 " + flag, flag.substr(0, flag.find(' ')));
  // What belongs to another flag is not passed over without it.
  refused("--ranks 2 --draws 5", "--jitter");
  refused("--ranks 2 --chunks 3", "--schedule");
  refused("--ranks 4 --stages 2 --schedule 1f1b --chunks 3", "--chunks 3: --schedule 1f1b has one");
  refused("--ranks 2 --checkpoint-minutes 5", "--mtbf");
  refused("--ranks 8 --stages 4 --memory 1",
          "4 parts, but the names of the model's nodes tell of 2 layers");
  const Outcome deeper = at.shardrun(
      "model gpt --layers 4 --hidden 32 --heads 2 --vocab 64 --context 16 --no-weights -o d.onnx");
  ASSERT_EQ(deeper.status, 0) << describe(deeper);
  const Outcome odd = at.shardrun(
      "simulate d.onnx --ranks 2 --stages 2 --schedule interleaved --batch 2 --accumulate 3 "
      "--memory 1");
  EXPECT_EQ(odd.status, 2) << describe(odd);
  EXPECT_NE(message(odd).find("3 micro-batches are no multiple of 2 stages"), std::string::npos)
      << describe(odd);
  refused("--ranks 2 --json same --trace same", "same");
  ASSERT_EQ(at.shardrun("plan m.onnx --mesh 8 --planner dp --cluster h100 -o p.json").status, 0);
  refused("--plan p.json --stages 2", "16 ranks");
}

/// The search does not know of what others do otherwise: a plan of a baseline that is faster then
/// is taken.
TEST(Simulate, TakesThePlanThatIsFastestAsOthersRun) {
  Workspace at;
  ASSERT_EQ(at.shardrun("model gpt --layers 4 --hidden 128 --heads 4 --vocab 257 --context 64 "
                        "--no-weights -o m.onnx")
                .status,
            0);
  const auto simulated = [&](const std::string& planner) {
    const Outcome out = at.shardrun(
        "simulate m.onnx --cluster a100-80 --ranks 4 --mesh 4 --batch 32 --accumulate 2 --dtype "
        "bf16 --assume megatron --json s.json --planner " +
        planner);
    EXPECT_EQ(out.status, 0) << describe(out);
    return std::pair(Json::parse(at.read("s.json")), out.out);
  };
  const auto [ours, said] = simulated("auto");
  const auto [searched, nothing] = simulated("ilp");
  EXPECT_EQ(nothing.find("is taken"), std::string::npos) << nothing;
  EXPECT_LT(ours["seconds"], searched["seconds"]);
  EXPECT_EQ(ours["planner"], "dp");
  EXPECT_NE(said.find("the plan of dp is taken"), std::string::npos) << said;
  for (const char* planner : {"dp", "zero1", "fsdp", "megatron"})
    EXPECT_LE(ours["seconds"], simulated(planner).first["seconds"]) << planner;
}

/// A model for each number of ranks, a row for each planner; what does not fit is one, too, and a
/// cross in the plot.
TEST(Simulate, ScalesWeakly) {
  Workspace at;
  const std::string call =
      "simulate weak-scaling --model gpt --scale tiny --planners dp,fsdp --ranks 1,4 --json s.json "
      "--plot s.svg";
  const Outcome out = at.shardrun(call);
  ASSERT_EQ(out.status, 0) << describe(out);
  const Json rows = Json::parse(at.read("s.json"))["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GT(rows[2]["flops"].get<double>(), 2 * rows[0]["flops"].get<double>());
  EXPECT_LT(rows[3]["bytes"], rows[2]["bytes"]);  // fsdp
  EXPECT_NE(out.out.find("simulated, not measured"), std::string::npos);
  const std::string between =
      std::to_string((rows[2]["bytes"].get<int64_t>() + rows[3]["bytes"].get<int64_t>()) / 2);
  const Outcome tight = at.shardrun(call + " --memory " + between);
  ASSERT_EQ(tight.status, 0) << describe(tight);
  EXPECT_TRUE(Json::parse(at.read("s.json"))["rows"][2].contains("out_of_memory"));
  EXPECT_NE(at.read("s.svg").find("out of memory"), std::string::npos);
  const Outcome three = at.shardrun("simulate weak-scaling --model gpt --ranks 3");
  EXPECT_EQ(three.status, 2) << describe(three);
  EXPECT_NE(message(three).find("1, 2, 4 and 8 ranks"), std::string::npos) << describe(three);
  // What cannot be is said before the first row.
  for (const auto& [flags, said] : {std::pair("--planners dp,nosuch", "planner 'nosuch'"),
                                    std::pair("--plot s.png", "s.png: the plot is an SVG")}) {
    const Outcome wrong = at.shardrun(std::string("simulate weak-scaling --model gpt ") + flags);
    EXPECT_EQ(wrong.status, 2) << describe(wrong);
    EXPECT_EQ(wrong.out, "");
    EXPECT_NE(message(wrong).find(said), std::string::npos) << describe(wrong);
  }
}

}  // namespace
}  // namespace shardrun::test
