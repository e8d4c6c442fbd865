// The same losses however the work is cut: ranks, meshes, planners and memory limits, by the real
// command under the real mpirun.
#include <gtest/gtest.h>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr double kTolerance = 1e-4;

/// One way to run the same training. `memory`: the limit of a rank as a fraction of what one rank
/// alone allocates; 0: none.
struct Way {
  Ranks ranks;
  const char* flags;
  double memory = 0;
};

std::string flags_of(const Way& way, const TrainingRun& alone) {
  std::string flags = std::string(" ") + way.flags;
  if (way.memory > 0) {
    flags += " --recompute never --arena " +
             std::to_string(
                 static_cast<int64_t>(way.memory * static_cast<double>(alone.allocated.at(0))));
  }
  return flags;
}

/// Is some weight or optimizer state cut?
bool is_cut(const TrainingRun& run) {
  const size_t line = run.outcome.out.find("weights and state:");
  return line != std::string::npos &&
         run.outcome.out.find('{', line) < run.outcome.out.find("bytes of the fullest", line);
}

class Training : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(6000));
    at_->write("tokens.bin", tokens(3000, 77));
    const char* models[] = {
        "model gpt --layers 2 --hidden 32 --heads 4 --vocab 256 --context 16 -o even.onnx",
        "model gpt --layers 1 --hidden 30 --heads 3 --vocab 77 --context 13 -o uneven.onnx",
        "model gpt --layers 1 --hidden 32 --heads 4 --vocab 256 --context 16 --dropout 0.1 -o "
        "dropout.onnx",
        "model gpt --layers 2 --hidden 32 --heads 4 --kv-heads 2 --mlp swiglu --mlp-width 44 "
        "--norm rms "
        "--positions rotary --no-biases --untied --vocab 256 --context 16 --no-weights -o "
        "llama.onnx",
        "model gpt --layers 1 --hidden 24 --heads 3 --head-width 10 --mlp geglu --mlp-width 40 "
        "--norm rms "
        "--positions rotary --no-biases --vocab 77 --context 13 -o gemma.onnx"};
    for (const char* model : models) {
      const Outcome made = at_->shardrun(model);
      ASSERT_EQ(made.status, 0) << describe(made);
    }
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }

  /// Runs `job` alone and in every way, and compares each step's loss.
  static void expect_equal(const std::string& job, const std::vector<Way>& ways) {
    const TrainingRun alone = train(*at_, threads(1), job);
    ASSERT_FALSE(alone.losses.empty());
    EXPECT_LT(alone.losses.back(), alone.losses.front()) << "it does not learn\n"
                                                         << describe(alone.outcome);
    for (const Way& way : ways) {
      const TrainingRun run = train(*at_, way.ranks, job + flags_of(way, alone));
      EXPECT_LE(largest_difference(run, alone), kTolerance) << describe(run.outcome);
      if (way.memory > 0) {
        EXPECT_TRUE(is_cut(run) || std::string(way.flags).find("dp") != std::string::npos)
            << describe(run.outcome);
      }
      ASSERT_EQ(run.evals.size(), alone.evals.size()) << describe(run.outcome);
      for (size_t i = 0; i < run.evals.size(); ++i) {
        EXPECT_NEAR(run.evals[i].second, alone.evals[i].second, kTolerance * alone.evals[i].second)
            << describe(run.outcome);
      }
    }
  }

  static Workspace* at_;
};

Workspace* Training::at_ = nullptr;

TEST_F(Training, MeshesAgree) {
  expect_equal("even.onnx --data text:text.txt --batch 8 --steps 50 --lr 1e-3",
               {{mpi(1), ""},
                {mpi(2), ""},
                {mpi(2), "--mesh 2", 0.6},
                {mpi(4), "--mesh 2x2", 0.6},
                {threads(8), "--mesh 8 --plan-seconds 1", 0.45},
                {threads(8), "--mesh 2x2x2 --plan-seconds 1", 0.55}});
}

TEST_F(Training, UnevenMeshesAgree) {
  expect_equal("uneven.onnx --data tokens:tokens.bin --batch 5 --steps 50 --lr 1e-3",
               {{mpi(2), "--mesh 2", 0.7},
                {mpi(4), "--mesh 4 --plan-seconds 1", 0.6},
                {threads(4), "--mesh a=2,b=2 --plan-seconds 1", 0.5},
                {threads(3), "--plan-seconds 1", 0.65},
                {threads(8), "--mesh 2x2x2 --plan-seconds 1", 0.5}});
}

TEST_F(Training, LlamaAndGemmaAgree) {
  expect_equal("llama.onnx --data text:text.txt --batch 8 --steps 20 --lr 1e-3",
               {{mpi(2), "--mesh 2", 0.6}, {threads(8), "--mesh 2x4 --plan-seconds 1", 0.42}});
  expect_equal("gemma.onnx --data tokens:tokens.bin --batch 5 --steps 20 --lr 1e-3",
               {{threads(4), "--mesh 2x2 --plan-seconds 1", 0.6},
                {threads(3), "--mesh 3 --plan-seconds 1", 0.55}});
}

TEST_F(Training, PlannersAgree) {
  expect_equal("uneven.onnx --data tokens:tokens.bin --batch 8 --steps 50 --lr 1e-3",
               {{mpi(2), "--planner dp"},
                {mpi(2), "--planner dp", 0.85},
                {threads(4), "--mesh 2x2 --planner dp", 0.8},
                {threads(2), "--planner ilp", 0.62}});
}

TEST_F(Training, DropoutAndAccumulationAgree) {
  expect_equal(
      "dropout.onnx --data text:text.txt --batch 4 --accumulate 3 --steps 50 --lr 1e-3 --clip 0.5 "
      "--weight-decay 0.1 --warmup 5 --schedule cosine",
      {{mpi(2), "", 0.75}, {threads(4), "--mesh 2x2", 0.55}});
}

/// As PyTorch's trainers of language models do; those of images and graphs do not.
TEST_F(Training, AdamwClipsAtOneUnlessAskedOtherwise) {
  const std::string job = "even.onnx --data text:text.txt --batch 4 --steps 4 --lr 1e-2";
  const auto losses = [&](const std::string& flags) {
    return train(*at_, threads(1), job + flags).loss_texts;
  };
  const TrainingRun plain = train(*at_, threads(1), job);
  EXPECT_NE(plain.outcome.out.find("clip: 1 (assumed with adamw"), std::string::npos)
      << describe(plain.outcome);
  EXPECT_EQ(plain.loss_texts, losses(" --clip 1"));
  EXPECT_NE(plain.loss_texts, losses(" --clip 0"));
  EXPECT_EQ(losses(" --optimizer sgd"), losses(" --optimizer sgd --clip 0"));
  EXPECT_NE(losses(" --optimizer sgd"), losses(" --optimizer sgd --clip 0.1"));
}

/// What counting reaches is printed before the run and with its last loss.
TEST_F(Training, TheEntropyOfATextIsPrinted) {
  const TrainingRun run =
      train(*at_, threads(1), "even.onnx --data text:text.txt --batch 4 --steps 2");
  for (const char* text : {"; counting tokens alone has a loss of ", "validation loss ",
                           "; counting tokens alone has ", ", pairs of them "})
    EXPECT_NE(run.outcome.out.find(text), std::string::npos) << text << describe(run.outcome);
}

/// Gradients that add up in summands over the micro-batches, and such that are scattered as they
/// come.
TEST_F(Training, MicroBatchesAgree) {
  expect_equal(
      "dropout.onnx --data text:text.txt --batch 4 --accumulate 4 --steps 20 --lr 1e-3 --clip 0.5",
      {{mpi(2), "--planner dp"}, {mpi(3), "--planner zero2"}, {mpi(4), "--mesh 2x2"}});
}

/// Dropout that did nothing would agree as well.
TEST_F(Training, DropoutChangesLosses) {
  const std::string job = " --data text:text.txt --batch 4 --steps 3";
  const TrainingRun with = train(*at_, threads(1), "dropout.onnx" + job),
                    without = train(*at_, threads(1), "even.onnx" + job);
  EXPECT_GT(largest_difference(with, without), 1e-4);
}

/// Normal and uniform noise, masks and stochastic depth: seven samples are cut unevenly.
TEST_F(Training, WhatIsDrawnAgrees) {
  for (const char* file : {"random.dynamo.onnx", "random.legacy.onnx"}) {
    expect_equal(std::string(SHARDRUN_GOLDEN) + "/" + file + " --steps 60 --lr 1e-2 --accumulate 2",
                 {{mpi(2), "--planner dp"}, {threads(4), "--mesh 2x2"}, {mpi(3), ""}});
  }
}

/// Micro-batches of an accumulated step are the samples of a larger batch, here in the same order.
TEST_F(Training, AccumulationIsALargerBatch) {
  const std::string job = "even.onnx --data text:text.txt --steps 20 --lr 1e-3";
  const TrainingRun four = train(*at_, threads(1), job + " --batch 2 --accumulate 4"),
                    one = train(*at_, threads(1), job + " --batch 8");
  EXPECT_LE(largest_difference(four, one), kTolerance);
}

TEST_F(Training, OtherOptimizersAgree) {
  for (const char* optimizer : {"adam", "sgd"}) {
    expect_equal(
        std::string(
            "uneven.onnx --data tokens:tokens.bin --batch 5 --steps 20 --lr 1e-2 --optimizer ") +
            optimizer,
        {{threads(4), "--mesh 2x2", 0.6}});
  }
}

TEST_F(Training, RepeatsBitForBit) {
  const std::string jobs[] = {
      "uneven.onnx --data tokens:tokens.bin --batch 5 --steps 50 --arena 330KB --mesh 2x2",
      "dropout.onnx --batch 4 --steps 20 --seed 7"};
  for (const std::string& job : jobs) {
    for (const Ranks ranks : {mpi(4), threads(4)}) {
      const TrainingRun first = train(*at_, ranks, job), second = train(*at_, ranks, job);
      EXPECT_EQ(first.loss_texts, second.loss_texts) << describe(second.outcome);
      EXPECT_FALSE(first.loss_texts.empty());
    }
  }
}

/// The communicators add in the same order.
TEST_F(Training, ThreadsAndProcessesGiveTheSameBits) {
  const std::string job = "even.onnx --data text:text.txt --batch 8 --steps 30 --arena 900KB";
  EXPECT_EQ(train(*at_, mpi(2), job).loss_texts, train(*at_, threads(2), job).loss_texts);
}

/// An MPI without shared segments: a note, the same bits. Nor by UCX, which crashes where
/// ThreadSanitizer has replaced functions that it rewrites.
TEST_F(Training, WithoutSharedMemoryRanksSendMessages) {
  const std::string job = "even.onnx --data text:text.txt --batch 8 --steps 3";
  const Outcome shared = at_->sh(Workspace::line(mpi(2), job)),
                sent = at_->sh("export OMPI_MCA_osc=^sm,ucx; " + Workspace::line(mpi(2), job));
  const std::string note = "note: ranks of this machine exchange by messages";
  EXPECT_EQ(shared.out.find(note), std::string::npos) << describe(shared);
  EXPECT_NE(sent.out.find(note), std::string::npos) << describe(sent);
  const auto last = [](const Outcome& run) {
    const size_t line = run.out.find("step 3/3  loss ");
    EXPECT_NE(line, std::string::npos) << describe(run);
    return run.out.substr(line, run.out.find("lr", line) - line);
  };
  EXPECT_EQ(last(shared), last(sent));
}

TEST_F(Training, SeedsDiffer) {
  const std::string job = "even.onnx --data text:text.txt --steps 3 --seed ";
  EXPECT_NE(train(*at_, threads(1), job + "1").loss_texts,
            train(*at_, threads(1), job + "2").loss_texts);
}

/// OMP_THREAD_LIMIT allows a rank fewer threads than it has cores, and OMP_DYNAMIC would on a busy
/// machine: kernels that were prepared for more would leave a part undone.
TEST_F(Training, ThreadsThatOpenMpDoesNotMakeAreNotCounted) {
  const std::string job = "even.onnx --data text:text.txt --steps 3";
  const std::string before = std::getenv("OMP_NUM_THREADS");
  const TrainingRun plain = train(*at_, threads(1), job);
  setenv("OMP_NUM_THREADS", "64", 1);  // as many as there are cores
  for (const auto& [name, value] : {std::pair("OMP_THREAD_LIMIT", "1"), {"OMP_DYNAMIC", "true"}}) {
    setenv(name, value, 1);
    EXPECT_EQ(train(*at_, threads(1), job).loss_texts, plain.loss_texts) << name;
    unsetenv(name);
  }
  setenv("OMP_NUM_THREADS", before.c_str(), 1);
}

TEST_F(Training, Bf16IsCloseToF32) {
  const std::string job = "even.onnx --data text:text.txt --batch 8 --steps 50 --lr 1e-3";
  const TrainingRun full = train(*at_, threads(1), job),
                    half = train(*at_, threads(1), job + " --dtype bf16");
  EXPECT_LE(largest_difference(half, full), 0.02) << describe(half.outcome);
  EXPECT_GT(largest_difference(half, full), 1e-6) << "bf16 computed as f32";
  const TrainingRun cut = train(
      *at_, mpi(2), job + " --dtype bf16 --arena " + std::to_string(half.allocated.at(0) * 7 / 10));
  EXPECT_LE(largest_difference(cut, full), 0.02) << describe(cut.outcome);
}

/// Workspaces depend on the number of threads that rank 0 plans with and every rank runs with.
TEST_F(Training, BytesAreExactWithManyThreads) {
  for (const Ranks ranks : {threads(1), threads(2), mpi(2)}) {
    const Outcome run =
        at_->sh("unset OMP_NUM_THREADS; " + Workspace::line(ranks, "even.onnx --steps 2"));
    EXPECT_EQ(run.status, 0) << describe(run);
    for (size_t line = run.out.find("predicted "); line != std::string::npos;
         line = run.out.find("predicted ", line + 1)) {
      if (run.out.compare(line, 14, "predicted step") == 0) continue;
      const std::string predicted =
          run.out.substr(line + 10, run.out.find(' ', line + 10) - line - 10);
      EXPECT_NE(run.out.find("allocated " + predicted + " B", line), std::string::npos)
          << describe(run);
    }
  }
}

TEST_F(Training, EightRanksWithNoOtherArgument) {
  const Outcome run = at_->shardrun(mpi(8), "even.onnx");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("meshes tried: ranks=8 "), std::string::npos) << describe(run);
  EXPECT_NE(run.out.find("trained 20 steps"), std::string::npos) << describe(run);
  EXPECT_NE(run.out.find("rank 7: predicted"), std::string::npos) << describe(run);
  EXPECT_EQ(run.err.find("shardrun:"), std::string::npos) << describe(run);
}

}  // namespace
}  // namespace shardrun::test
