// The command: beside a real run's report, and what it refuses.
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
  refused("--ranks 2 --slow 1", "'1' is not RANK=FACTOR");
  refused("--ranks 2 --slow 1=fast", "'1=fast' is not RANK=FACTOR");
  refused("--ranks 2 --slow 1=1.2 --slow 1=1.3", "rank 1 is there twice");
  refused("--ranks 3 --stages 2", "3 ranks are no multiple");
  refused("--ranks 8 --stages 4", "4 parts, but the names of the model's nodes tell of 2 layers");
  refused("--ranks 2 --json same --trace same", "same");
  ASSERT_EQ(at.shardrun("plan m.onnx --mesh 8 --planner dp --cluster h100 -o p.json").status, 0);
  refused("--plan p.json --stages 2", "16 ranks");
}

}  // namespace
}  // namespace shardrun::test
