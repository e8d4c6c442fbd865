// --global-batch and --accumulate auto: how many micro-batches a step falls into, by the rules of
// arithmetic, by the search, and by the command.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "plan/micro_batches.h"
#include "shardrun/bench.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

ModelOptions asked(std::optional<int64_t> global, std::optional<int> accumulate,
                   std::optional<int64_t> batch) {
  ModelOptions out;
  out.global_batch = global;
  out.accumulate = accumulate;
  out.batch = batch;
  return out;
}

TEST(GlobalBatch, EachTwoGiveTheThird) {
  EXPECT_EQ(asked_batch(asked(24, 3, {})), 8);
  EXPECT_EQ(asked_batch(asked(24, {}, {})), 24);
  EXPECT_EQ(asked_batch(asked(24, {}, 4)), 4);
  EXPECT_EQ(asked_batch(asked({}, 3, {})), std::nullopt);
  EXPECT_EQ(count_micro_batches(asked(24, {}, 4), 4), 6);
  EXPECT_EQ(count_micro_batches(asked(24, kAutoMicroBatches, {}), 12), 2);
  EXPECT_EQ(count_micro_batches(asked({}, 3, 4), 4), 3);
  EXPECT_EQ(count_micro_batches(asked({}, {}, {}), 0), 1);
}

void expect_contradiction(const ModelOptions& options, int64_t samples, const char* sentence) {
  try {
    asked_batch(options);
    count_micro_batches(options, samples);
    ADD_FAILURE() << "nothing was found wrong; wanted: " << sentence;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
  }
}

TEST(GlobalBatch, ContradictionsAreRefused) {
  expect_contradiction(asked(24, 5, {}), 8, "take a global batch of 20 or 25");
  expect_contradiction(asked(24, {}, 7), 7, "take a global batch of 21 or 28");
  expect_contradiction(asked(24, 2, 4), 4, "2 micro-batches of 4 are 8 samples");
  expect_contradiction(asked(24, {}, {}), 16, "the model, which takes 16 at once");
  expect_contradiction(asked(24, {}, {}), 0, "no input of samples");
  expect_contradiction(asked(-8, {}, {}), 8, "--global-batch is -8");
  expect_contradiction(asked(0, 1, 8), 8, "--global-batch is 0");
  expect_contradiction(asked({}, kAutoMicroBatches, 8), 8, "as --global-batch 64");
  expect_contradiction(asked(24, kAutoMicroBatches, {}), 8, "only plan, train and verify");
  expect_contradiction(asked({}, -1, 8), 8, "accumulate is -1");
  expect_contradiction(asked(int64_t{1} << 40, {}, 1), 1, "too many");
}

TEST(GlobalBatch, TacticsSayTurns) {
  EXPECT_EQ(turns_of({"batch@data", "inner@model"}), std::nullopt);
  EXPECT_EQ(turns_of({"batch@data", "batch@turns=4"}), 4);
  EXPECT_EQ(turns_of({"batch@turns=auto"}), kAutoMicroBatches);
  EXPECT_EQ(mesh_tactics({"batch@data", "batch@turns=4", "inner@model"}),
            (std::vector<std::string>{"batch@data", "inner@model"}));
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"weights@turns=4"}, "'weights' does not go by turns"},
      {{"batch@turns=0"}, "'0' turns, wanted 1 or more, or auto"},
      {{"batch@turns="}, "'' turns"},
      {{"batch@turns=4x"}, "'4x' turns"},
      {{"batch@turns=2", "batch@turns=2"}, "leave out one"}};
  for (const auto& [tactics, sentence] : wrong) {
    try {
      (void)turns_of(tactics);
      ADD_FAILURE() << "nothing was found wrong; wanted: " << sentence;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("--tactic '"), std::string::npos) << e.what();
    }
  }
}

TEST(GlobalBatch, CandidatesDivideTheSamples) {
  EXPECT_EQ(candidate_micro_batches(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(candidate_micro_batches(12), (std::vector<int64_t>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(candidate_micro_batches(13), (std::vector<int64_t>{1, 13}));
  for (const int64_t samples : {5040, 65536, 2162160}) {
    const std::vector<int64_t> all = candidate_micro_batches(samples);
    EXPECT_LE(all.size(), 12u);
    EXPECT_GE(all.size(), 8u);
    EXPECT_EQ(all.front(), 1);
    EXPECT_EQ(all.back(), samples);
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
    for (const int64_t count : all) EXPECT_EQ(samples % count, 0);
  }
}

/// The choice with what each candidate takes; infinity: it does not fit.
std::optional<size_t> best_of(const std::vector<double>& seconds, size_t* tried = nullptr) {
  MicroBatchChoice choice(seconds.size());
  size_t count = 0;
  while (const std::optional<size_t> next = choice.next()) {
    const double at = seconds.at(*next);
    choice.tell(*next, std::isinf(at) ? std::nullopt : std::optional(at));
    if (++count > seconds.size()) return std::nullopt;  // none is tried twice
  }
  if (tried != nullptr) *tried = count;
  return choice.best();
}

TEST(GlobalBatch, TheChoiceIsTheFastestThatFits) {
  constexpr double kNo = std::numeric_limits<double>::infinity();
  EXPECT_EQ(best_of({5, 6, 7, 8, 9, 10}), 0u);
  EXPECT_EQ(best_of({kNo, kNo, kNo, 8, 9, 10}), 3u);
  EXPECT_EQ(best_of({kNo, kNo, 9, 8, 9, 10}), 3u);  // just enough memory is paid for
  EXPECT_EQ(best_of({kNo, 9, 9.5, 8, 9, 10}), 3u);
  EXPECT_EQ(best_of({kNo, kNo, kNo, kNo, kNo, 10}), 5u);
  EXPECT_EQ(best_of({kNo, kNo, kNo, kNo, kNo, kNo}), std::nullopt);
  EXPECT_EQ(best_of({7, 7, 7}), 0u);
  EXPECT_EQ(best_of({kNo}), std::nullopt);
  size_t tried = 0;
  EXPECT_EQ(best_of({5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, &tried), 0u);
  EXPECT_EQ(tried, 3u);
}

class GlobalBatchCommand : public testing::Test {
 protected:
  void SetUp() override {
    GptModel model;
    model.layers = 1;
    model.hidden = 64;
    model.heads = 4;
    model.vocab = 256;
    model.context = 64;
    write_gpt(model, at_.path() + "/gpt.onnx");
    at_.write("text.txt", prose(20000));
  }

  double milliseconds(const Outcome& outcome) const {
    const size_t at = outcome.out.find("predicted step ");
    return at == std::string::npos ? -1 : std::stod(outcome.out.substr(at + 15));
  }
  Outcome plan(const std::string& flags) const {
    return at_.shardrun("plan gpt.onnx --mesh 2 --cluster a100-80 " + flags);
  }

  /// Flags with a limit of memory that one micro-batch does not meet, and several do.
  std::string scarce() const {
    const Outcome refused = plan("--global-batch 8 --accumulate 1 --recompute never --memory 4KiB");
    const std::string before = "sure to be found needs ";
    const size_t at = refused.err.find(before);
    EXPECT_NE(at, std::string::npos) << describe(refused);
    const int64_t least = std::stoll(refused.err.substr(at + before.size()));
    return " --recompute never --memory " + std::to_string(least * 95 / 100) + " ";
  }

  Workspace at_;
};

/// What it picks is what is the fastest of all numbers, each planned by hand.
TEST_F(GlobalBatchCommand, PicksTheFastestWithinMemory) {
  for (const std::string& memory : {std::string(), scarce()}) {
    const Outcome chosen = plan("--global-batch 8 --accumulate auto" + memory);
    ASSERT_EQ(chosen.status, 0) << describe(chosen);
    EXPECT_NE(chosen.out.find("micro-batches tried: 1 x 8"), std::string::npos) << describe(chosen);
    double best = std::numeric_limits<double>::infinity();
    int fits = 0;
    for (const int count : {1, 2, 4, 8}) {
      const Outcome one = plan("--global-batch 8 --accumulate " + std::to_string(count) + memory);
      if (one.status != 0) continue;
      ++fits;
      best = std::min(best, milliseconds(one));
    }
    EXPECT_NEAR(milliseconds(chosen), best, 0.02 * best) << describe(chosen);
    EXPECT_EQ(fits == 4, memory.empty()) << fits;
    EXPECT_GE(fits, 1);
  }
}

TEST_F(GlobalBatchCommand, NoNumberFits) {
  const Outcome none = plan("--global-batch 4 --accumulate auto --memory 500KiB");
  EXPECT_EQ(none.status, 2) << describe(none);
  EXPECT_NE(message(none).find("fit in no number of micro-batches; in 4: "), std::string::npos)
      << describe(none);
}

/// Under mpirun every rank takes the same number, and learns what one rank does with it. Without
/// memory to spare that is more than one.
TEST_F(GlobalBatchCommand, RanksAgreeOnIt) {
  const std::string job = "gpt.onnx --data text:text.txt --steps 4 --global-batch 12 ";
  const TrainingRun found =
      train(at_, mpi(2), job + "--accumulate auto --arena 2MiB --recompute never");
  const std::string& out = found.outcome.out;
  const size_t at = out.find("micro-batches: ");
  ASSERT_NE(at, std::string::npos) << describe(found.outcome);
  const int count = std::stoi(out.substr(at + 15));
  EXPECT_GT(count, 1);
  const TrainingRun alone = train(at_, threads(1), job + "--accumulate " + std::to_string(count));
  EXPECT_LT(largest_difference(found, alone), 1e-5);
}

/// A plan's file has the number; the same call with it searches no more.
TEST_F(GlobalBatchCommand, APlanFileHasIt) {
  const Outcome written =
      at_.shardrun("plan gpt.onnx --ranks 2 --global-batch 12 --accumulate auto -o plan.json");
  ASSERT_EQ(written.status, 0) << describe(written);
  const std::string job = "gpt.onnx --data text:text.txt --steps 2 --plan plan.json --ranks 2 ";
  EXPECT_EQ(at_.shardrun(job + "--global-batch 12 --accumulate auto").status, 0);
  const Outcome other = at_.shardrun(job + "--global-batch 24 --accumulate auto");
  EXPECT_EQ(other.status, 2) << describe(other);
}

/// PartIR's sequential loop over the batch is --accumulate: the same plan, losses and bytes.
TEST_F(GlobalBatchCommand, TurnsAreMicroBatches) {
  const std::string job = "gpt.onnx --data text:text.txt --steps 5 --mesh d=2 --batch 4 ";
  for (const Ranks ranks : {threads(2), mpi(2)}) {
    const TrainingRun turns = train(at_, ranks, job + "--tactic batch@d --tactic batch@turns=4"),
                      accumulated = train(at_, ranks, job + "--tactic batch@d --accumulate 4");
    EXPECT_EQ(turns.loss_texts, accumulated.loss_texts);
    EXPECT_EQ(turns.loss_texts.size(), 5u);
    EXPECT_EQ(turns.predicted, accumulated.predicted);
    EXPECT_EQ(turns.allocated, accumulated.allocated);
  }
  // Without another tactic the mesh is left to the search, as it is with --accumulate.
  const TrainingRun free = train(at_, threads(2), job + "--tactic batch@turns=4"),
                    same = train(at_, threads(2), job + "--accumulate 4");
  EXPECT_EQ(free.loss_texts, same.loss_texts);
  EXPECT_EQ(free.predicted, same.predicted);
}

/// Each tactic's row is of a step as it is then; the plan finds the number of turns, too.
TEST_F(GlobalBatchCommand, TurnsInTheTableOfTactics) {
  const Outcome table =
      plan("--planner propagate --batch 4 --tactic batch@a --tactic batch@turns=4 --ranks 2");
  ASSERT_EQ(table.status, 0) << describe(table);
  const auto step = [&](const std::string& row) {
    const size_t at = table.out.find("\n" + row + " ");
    return at == std::string::npos ? -1.0 : std::stod(table.out.substr(at + row.size() + 2));
  };
  EXPECT_GT(step("batch@a"), 0) << describe(table);
  EXPECT_GT(step("batch@turns=4"), 2 * step("batch@a")) << describe(table);
  const std::string flags = "--global-batch 8" + scarce();
  const Outcome found = plan(flags + "--tactic batch@turns=auto"),
                asked = plan(flags + "--accumulate auto");
  ASSERT_EQ(found.status, 0) << describe(found);
  EXPECT_NE(found.out.find("micro-batches tried: 1 x 8 does not fit"), std::string::npos)
      << describe(found);
  EXPECT_EQ(milliseconds(found), milliseconds(asked));
  // A file keeps the tactic: the plan is made again under it.
  ASSERT_EQ(plan("--batch 4 --tactic batch@a --tactic batch@turns=4 -o turns.json").status, 0);
  const Outcome why = at_.shardrun("explain turns.json --why wte.weight");
  EXPECT_EQ(why.status, 0) << describe(why);
}

TEST_F(GlobalBatchCommand, WrongCallsAreRefused) {
  const auto refused = [&](const std::string& flags, const std::string& sentence) {
    const Outcome outcome = plan(flags);
    EXPECT_EQ(outcome.status, 2) << describe(outcome);
    EXPECT_NE(message(outcome).find(sentence), std::string::npos) << describe(outcome);
  };
  refused("--accumulate auto", "as --global-batch 64");
  refused("--accumulate some", "--accumulate: 'some' is not a positive whole number");
  refused("--accumulate 0", "--accumulate: '0' is not a positive whole number");
  refused("--accumulate 99999999999", "--accumulate");
  refused("--global-batch 10 --batch 4", "take a global batch of 8 or 12");
  refused("--global-batch 8 --batch 4 --accumulate 4", "leave out one of the three");
  refused("--tactic batch@turns=4 --accumulate 2", "leave out one of the two");
  refused("--tactic state@turns=4", "'state' does not go by turns");
  refused("--tactic batch@turns=auto", "as --global-batch 64");
}

}  // namespace
}  // namespace shardrun::test
