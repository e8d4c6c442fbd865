// Wrong calls, bad files and dying ranks: one sentence, the right exit status, no hang.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>

#include "models/onnx_writer.h"
#include "tests/launcher/command.h"
#include "tests/support/npy.h"
#include "tests/support/sanitizer.h"

namespace shardrun::test {
namespace {

class Failures : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    ASSERT_EQ(
        at_->shardrun(
               "model gpt --layers 1 --hidden 16 --heads 2 --vocab 256 --context 8 -o gpt.onnx")
            .status,
        0);
    ASSERT_EQ(
        at_->shardrun(
               "model gpt --layers 1 --hidden 16 --heads 2 --vocab 50 --context 8 -o small.onnx")
            .status,
        0);
    const std::string model = at_->read("gpt.onnx");
    at_->write("cut.onnx", model.substr(0, model.size() / 2));
    at_->write("empty.onnx", "");
    at_->write("junk.onnx", std::string(5000, 'j'));
    std::string unsupported = model;  // of the same length: still a valid file
    for (size_t i = unsupported.find("Gelu"); i != std::string::npos;
         i = unsupported.find("Gelu", i + 4)) {
      unsupported.replace(i, 4, "Gelx");
    }
    at_->write("unsupported.onnx", unsupported);
    at_->write("text.txt", prose(3000));
    at_->write("short.txt", "ab");
    at_->write("empty.txt", "");
    at_->write("odd.bin", "abc");
    at_->write("tokens.bin", tokens(500, 60));
    at_->write("x.npy", "\x93NUMPY not really");
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }

  /// Status, one message with all of `wanted`, and no step trained; as threads, and under mpirun
  /// (which takes two seconds to end) where not only the same check is met once more.
  static void expect_refused(const std::string& arguments, const std::vector<std::string>& wanted,
                             bool under_mpi = false, int status = 2) {
    for (const Ranks ranks : {threads(2), mpi(2)}) {
      if (ranks.mpi && !under_mpi) continue;
      const Outcome run = at_->shardrun(ranks, arguments);
      EXPECT_EQ(run.status, status) << describe(run);
      EXPECT_EQ(messages(run), 1) << describe(run);
      for (const std::string& text : wanted) {
        EXPECT_NE(message(run).find(text), std::string::npos) << "wanted '" << text << "'\n"
                                                              << describe(run);
      }
      if (status == 2) {
        EXPECT_EQ(run.out.find("step 1/"), std::string::npos) << describe(run);
      }
    }
  }

  /// It trains to its end, and then says that `path` could not be written.
  static void expect_written_all_but(const std::string& arguments, const std::string& path) {
    const Outcome run = at_->shardrun(arguments);
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find(path + ": cannot be written: "), std::string::npos)
        << describe(run);
    EXPECT_NE(run.out.find("trained 2 steps"), std::string::npos) << describe(run);
  }

  static Workspace* at_;
};

Workspace* Failures::at_ = nullptr;

TEST_F(Failures, NumbersThatAreNone) {
  std::string model = at_->read("gpt.onnx");
  const auto sixteen = [](const std::string& bytes) {
    std::string all;
    for (int i = 0; i < 16; ++i) all += bytes;
    return all;
  };
  const size_t ones = model.find(sixteen({"\0\0\x80\x3f", 4}));  // a norm's scale
  ASSERT_NE(ones, std::string::npos);
  at_->write("nan.onnx", model.replace(ones, 64, sixteen({"\0\0\xc0\x7f", 4})));
  const std::string data = " --data text:text.txt --batch 2 --steps 4 ";
  expect_refused("nan.onnx" + data,
                 {"step 1: the loss is ", "nothing was updated: look at the weights"}, false, 1);
  expect_refused("gpt.onnx --optimizer sgd --lr 1e30" + data, {"the loss is ", "lower --lr"}, false,
                 1);
}

TEST_F(Failures, BadModels) {
  expect_refused("none.onnx", {"none.onnx", "No such file"}, true);
  expect_refused("empty.onnx", {"empty.onnx", "empty"});
  expect_refused("cut.onnx", {"cut.onnx", "not an ONNX model"}, true);
  expect_refused("junk.onnx", {"junk.onnx", "not an ONNX model"});
  expect_refused(".", {".", "not a regular file"});
}

TEST_F(Failures, UnsupportedOperators) {
  expect_refused("unsupported.onnx", {"unsupported.onnx", "Gelx", "node", "opset", "supported"},
                 true);
}

TEST_F(Failures, BadData) {
  expect_refused("gpt.onnx --data text:none.txt", {"none.txt", "No such file"}, true);
  expect_refused("gpt.onnx --data text:empty.txt", {"empty.txt", "empty"});
  expect_refused("gpt.onnx --data text:short.txt", {"short.txt", "2 tokens", "9"});
  expect_refused("gpt.onnx --data text:.", {"not a regular file"});
  expect_refused("gpt.onnx --data text:", {"text:"});
  expect_refused("gpt.onnx --data words:text.txt", {"words:text.txt", "wanted text:"});
  expect_refused("gpt.onnx --data tokens:odd.bin", {"odd.bin", "3 bytes"});
  expect_refused("small.onnx --data text:text.txt", {"text.txt", "token 1", "vocabulary of 50"});
  expect_refused("small.onnx --data tokens:tokens.bin", {"tokens.bin", "vocabulary of 50"}, true);
  expect_refused("gpt.onnx --data npy:x.npy,x.npy", {"x.npy"});
}

TEST_F(Failures, LibrariesOfOpsThatThrowAnything) {
  at_->sh("mkfifo pipe");
  expect_refused("gpt.onnx --ops pipe", {"pipe: is not a regular file, wanted a library of ops"});
  expect_refused("gpt.onnx --ops gpt.onnx", {"gpt.onnx: is not a shared library"});
  expect_refused("gpt.onnx --ops " SHARDRUN_THROWING_OPS,
                 {SHARDRUN_THROWING_OPS, "shardrun_ops() throws what is no std::exception"}, true);
}

TEST_F(Failures, BadMeshesAndPlanners) {
  expect_refused("gpt.onnx --mesh 2xx", {"mesh", "2xx"});
  expect_refused("gpt.onnx --mesh 4", {"mesh", "4 ranks", "has 2", "mpirun -np 4", "mesh of 2"},
                 true);
  expect_refused("gpt.onnx --mesh a=1", {"mesh", "1 ranks", "has 2"});
  expect_refused("gpt.onnx --mesh 99999999999x99999999999", {"mesh", "2^24"});
  expect_refused("gpt.onnx --mesh 0x2", {"mesh", "0"});
  expect_refused("gpt.onnx --planner best", {"planner", "best", "ilp", "dp"});
  expect_refused("gpt.onnx --memory lots", {"--memory", "lots"}, true);
  expect_refused("gpt.onnx --memory -5", {"--memory", "-5"});
  expect_refused("gpt.onnx --plan none.json", {"none.json"});
  expect_refused("gpt.onnx --plan text.txt", {"text.txt", "plan"}, true);
  expect_refused("gpt.onnx --plan-seconds nan", {"--plan-seconds"});
}

TEST_F(Failures, BadFlags) {
  expect_refused("gpt.onnx --lr nan", {"learning rate", "nan"}, true);
  expect_refused("gpt.onnx --lr -0.1", {"learning rate", "-0.1"});
  expect_refused("gpt.onnx --lr 1e39", {"learning rate", "1e+39", "wanted 0 to 3.40282e+38"});
  expect_refused("gpt.onnx --lr x", {"--lr", "x"}, true);
  expect_refused("gpt.onnx --steps 0", {"steps", "0"});
  expect_refused("gpt.onnx --batch 0", {"--batch", "0"});
  expect_refused("gpt.onnx --batch 4 --dim batch=8", {"batch"});
  expect_refused("gpt.onnx --dim foo=3", {"foo", "batch"});
  expect_refused("gpt.onnx --dim batch=-1", {"batch", "-1"});
  expect_refused("gpt.onnx --accumulate 0", {"accumulate", "0"});
  expect_refused("gpt.onnx --schedule steps", {"schedule", "steps", "cosine"});
  expect_refused("gpt.onnx --schedule cosine --warmup 20 --steps 20", {"warm-up", "20"});
  expect_refused("gpt.onnx --optimizer lion", {"optimizer", "lion", "adamw"});
  expect_refused("gpt.onnx --dtype f16", {"dtype", "f16", "bf16"});
  expect_refused("gpt.onnx --loss hinge", {"loss", "hinge", "mse"});
  expect_refused("gpt.onnx --freeze '['", {"["});
  expect_refused("gpt.onnx --freeze '.*'", {"no parameter"});
  expect_refused("gpt.onnx --freeze wtf", {"--freeze 'wtf'", "no parameter's name matches"});
  expect_refused("gpt.onnx --train wtf", {"--train 'wtf'", "no parameter's name matches"});
  expect_refused("gpt.onnx --beta1 1.5", {"beta1", "1.5"});
  expect_refused("gpt.onnx --clip -1", {"clip", "-1"});
  expect_refused("gpt.onnx --validation 1", {"validation", "1"});
  expect_refused("gpt.onnx --data text:text.txt --validation 0.9999999",
                 {"--data text:text.txt", "--validation leaves 1 of 3000 tokens", "lower it"});
  expect_refused("gpt.onnx --memory 0.0000001", {"--memory", "0.0000001", "16GiB"});
  expect_refused("gpt.onnx --dim batch=4 --dim batch=8", {"--dim batch", "is given twice"}, true);
  expect_refused("gpt.onnx --metrics no/folder/m.jsonl", {"no/folder/m.jsonl", "No such file"},
                 true);
  expect_refused("gpt.onnx --metrics .", {"--metrics: .", "is a folder"});
  expect_refused("gpt.onnx --metrics twice.json --report ./twice.json",
                 {"--report", "--metrics writes ./twice.json, too"});
  expect_refused("gpt.onnx --threads 0", {"--threads", "0", "1 or more"});
  expect_refused("gpt.onnx --threads x", {"--threads", "x"});
  expect_refused("gpt.onnx --threads 1000000", {"--threads 1000000", "core", "ask for"}, true);
  expect_refused("gpt.onnx --no-such-flag", {"'--no-such-flag'; ", "shardrun train --help"});
  expect_refused("gpt.onnx --setps 3 --chekpoint=c",
                 {"does not take '--setps 3 --chekpoint=c', but --steps, --checkpoint; "});
  expect_refused("plan gpt.onnx --rank 2",
                 {"'shardrun plan' does not take '--rank 2', but --ranks"});
  expect_refused("gpt.onnx --lr 1 --lr 2", {"--lr: is given 2 times; give it once"});
  expect_refused("pln gpt.onnx", {"neither a command nor a file 'pln', but a command 'plan'"},
                 true);
  expect_refused("plan gpt.onnx --lr 0.05 --clip=1 --steps=3",
                 {"'shardrun plan' does not take '--lr 0.05 --steps=3'",
                  "(--lr, --steps goes with 'shardrun train')"});
  expect_refused("model itx", {"'shardrun model' wants one of gpt,", "got 'itx'"});
  expect_refused("bench", {"'shardrun bench' wants one of ", "sample, got '--ranks'"});
  expect_refused("simulate --batch 3 weak-scaling --model gpt",
                 {"simulate weak-scaling: --batch before 'weak-scaling' does nothing"});
}

/// What a parser might take for 0, for the largest number, or for a flag that was left out.
TEST_F(Failures, EmptyAndWrappedValues) {
  expect_refused("gpt.onnx --batch 99999999999999999999",
                 {"--batch", "'99999999999999999999' is too large"}, true);
  expect_refused("gpt.onnx --steps -99999999999999999999", {"--steps", "too large"});
  expect_refused("gpt.onnx --seed 18446744073709551616", {"--seed", "too large"});
  expect_refused("gpt.onnx --threads 99999999999", {"--threads: '99999999999' is too large"}, true);
  expect_refused("gpt.onnx --seed -1", {"--seed", "-1", "at least 0"});
  expect_refused("gpt.onnx --lr 1e999", {"--lr", "too large"});
  for (const char* flag : {"--batch", "--steps", "--lr", "--seed", "--threads", "--timeout"})
    expect_refused(std::string("gpt.onnx ") + flag + " ''", {flag, "''"});
  for (const char* flag : {"--memory", "--plan", "--data", "--metrics", "--cluster", "--mesh"})
    expect_refused(std::string("gpt.onnx ") + flag + " ''", {flag, "empty"});
  const Outcome fine = at_->shardrun("gpt.onnx --steps +2 --lr 1E-3 --seed 18446744073709551615");
  EXPECT_EQ(fine.status, 0) << describe(fine);
}

/// Ranks that were given different things would compute with them, or wait for each other.
TEST_F(Failures, RanksThatAreGivenDifferentThings) {
  at_->write("other.txt", prose(2000));
  const auto refused = [](const std::string& first, const std::string& second,
                          const std::vector<std::string>& wanted) {
    const std::string command = Workspace::line(mpi(1), first);
    const std::string other = Workspace::line(mpi(1), second);
    const Outcome run = at_->sh(command + other.substr(other.find(" -np ")).insert(0, " :"));
    EXPECT_NE(run.status, 0) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_EQ(run.out.find("step 1/"), std::string::npos) << describe(run);
    for (const std::string& text : wanted)
      EXPECT_NE(message(run).find(text), std::string::npos) << text << "\n" << describe(run);
  };
  const std::string job = "gpt.onnx --steps 3";
  refused(job + " --lr 1e-3", job + " --lr 1e-2", {"rank 1 has lr 0.01, rank 0 has 0.001"});
  refused(job, "gpt.onnx --steps 4", {"rank 1 has steps 4, rank 0 has 3"});
  refused(job, job + " --seed 7", {"rank 1 has seed 7, rank 0 has 0"});
  refused(job, job + " --clip 2", {"rank 1 has clip 2"});
  refused(job, job + " --mesh 2", {"rank 1 has mesh '2', rank 0 has 'auto'"});
  refused(job, job + " --profile p.json", {"rank 1 has a profile true"});
  refused(job, "small.onnx --steps 3", {"rank 1 has a model whose step"});
  refused("gpt.onnx --data text:text.txt", "gpt.onnx --data text:other.txt",
          {"rank 1 has data", "2000 tokens", "3000 tokens"});
  std::string text = at_->read("text.txt");  // as long
  at_->write("same_length.txt", text.replace(1500, 5, "other"));
  refused("gpt.onnx --data text:text.txt", "gpt.onnx --data text:same_length.txt",
          {"rank 1 has data whose contents have the hash"});
  ASSERT_EQ(at_->shardrun("model gpt --layers 1 --hidden 16 --heads 2 --vocab 256 --context 8 "
                          "--seed 1 -o weights.onnx")
                .status,
            0);
  refused(job, "weights.onnx --steps 3", {"rank 1 has weights whose contents have the hash"});
  refused(job, "verify gpt.onnx", {"rank 1", "rank 0 calls something else"});
  refused(job, job + " --no-such-flag", {"--no-such-flag"});
}

TEST_F(Failures, OneProcessAnswersForAll) {
  const Outcome version = at_->sh(Workspace::line(mpi(2), "--version"));
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(std::count(version.out.begin(), version.out.end(), '\n'), 1) << describe(version);
  const Outcome plan = at_->shardrun(mpi(2), "plan gpt.onnx --ranks 4");
  EXPECT_EQ(plan.status, 0) << describe(plan);
  EXPECT_EQ(plan.out.find("plan: mesh", plan.out.find("plan: mesh") + 1), std::string::npos)
      << describe(plan);
  const Outcome both = at_->shardrun(mpi(2), "gpt.onnx --ranks 4");
  EXPECT_EQ(both.status, 2) << describe(both);
  EXPECT_EQ(messages(both), 1) << describe(both);
  const Outcome nothing = at_->shardrun(mpi(2), "");
  EXPECT_EQ(nothing.status, 2) << describe(nothing);
  EXPECT_EQ(messages(nothing), 1) << describe(nothing);
}

TEST_F(Failures, OutputsThatCannotBeWritten) {
  for (const char* call :
       {"model gpt --preset tiny -o no/folder/gpt.onnx", "model gpt --preset tiny -o .",
        "model gpt --preset tiny -o /dev/full", "plan gpt.onnx --ranks 2 -o no/folder/p.json",
        "plan gpt.onnx --ranks 2 -o /dev/full"}) {
    const Outcome run = at_->shardrun(call);
    EXPECT_NE(run.status, 0) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    const std::string path = std::string(call).substr(std::string(call).find("-o ") + 3);
    EXPECT_NE(message(run).find(path), std::string::npos) << describe(run);
  }
  for (const char* call :
       {"model gpt --preset huge -o x.onnx", "model gpt --hidden 30 --heads 4 -o x.onnx",
        "model gpt --layers 0 -o x.onnx", "model gpt --vocab -1 -o x.onnx",
        "model gpt --dropout 1 -o x.onnx", "model cnn -o x.onnx", "model gpt",
        "model gat --recipe '--ranks 3' -o x.onnx", "model gat --recipe 'lr 1' -o x.onnx"}) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_FALSE(at_->exists("x.onnx")) << describe(run);
  }
}

/// Before anything that takes long: nothing is planned or measured for a file that cannot be
/// written.
TEST_F(Failures, OutputsAreLookedAtFirst) {
  for (const char* call :
       {"gpt.onnx --metrics no/folder/f", "gpt.onnx --report no/folder/f",
        "gpt.onnx --profile no/folder/f", "plan gpt.onnx --ranks 2 -o no/folder/f",
        "calibrate -o no/folder/f", "bench ops --json no/folder/f",
        "bench step gpt.onnx --json no/folder/f", "bench collectives --json no/folder/f",
        "bench weak-scaling --model gpt --json no/folder/f", "model gpt -o no/folder/f"}) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find("no/folder/f: cannot be written: No such file"), std::string::npos)
        << describe(run);
    EXPECT_EQ(run.out, "") << "it did something first\n" << describe(run);
  }
}

/// A slip of the hand costs no model and no data.
TEST_F(Failures, OutputsThatAreInputs) {
  ASSERT_EQ(at_->shardrun("plan gpt.onnx --ranks 2 -o own.json").status, 0);
  at_->sh("ln -sf gpt.onnx link.onnx");
  for (const char* file : {"gpt.onnx", "text.txt", "own.json"}) {
    const std::string before = at_->read(file);
    const std::string call = "gpt.onnx --data text:text.txt --plan own.json --steps 1 ";
    for (const char* flag : {"--metrics", "--report", "--profile"})
      expect_refused(call + flag + " ./" + file, {flag, "is what", "read from"});
    EXPECT_EQ(at_->read(file), before);
  }
  const std::string before = at_->read("gpt.onnx");
  for (const char* call : {"plan gpt.onnx --ranks 2 -o gpt.onnx", "gpt.onnx --report link.onnx",
                           "bench step gpt.onnx --json gpt.onnx"}) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(at_->read("gpt.onnx"), before) << describe(run);
  }
}

/// Found by one rank in its program. Its part of the model is printed with the rank, once.
TEST_F(Failures, ErrorsOfARankNameItOnce) {
  OnnxWriter writer("wrong", {});
  writer.input("x", 1, {"batch", "4"});
  writer.input("y", 7, {"batch"});
  const std::string logits = writer.node("MatMul", {"x", writer.normal("w", {4, 3}, 0.1)});
  writer.output(writer.node("SoftmaxCrossEntropyLoss",
                            {logits, writer.node("Add", {"y", writer.integer(5)})}, {}, "loss"),
                1, {});
  writer.write(at_->path() + "/wrong.onnx");
  at_->write("wrong_x.npy", npy({16, 4}, std::vector<float>(16 * 4)));
  at_->write("wrong_y.npy", npy({16}, std::vector<int64_t>(16)));
  const std::string call =
      "wrong.onnx --planner dp --mesh 2 --data npy:x=wrong_x.npy,y=wrong_y.npy";
  expect_refused(call, {"label 5", "is outside [0, 3)", "node '"});
  for (const Ranks ranks : {threads(2), mpi(2)}) {
    const Outcome run = at_->shardrun(ranks, call);
    const std::string text = message(run);
    EXPECT_NE(text.find("rank "), std::string::npos) << describe(run);
    EXPECT_EQ(text.find("rank "), text.rfind("rank ")) << describe(run);
  }
}

/// Nor the weights of a model that lie next to it, even where they are damaged and the report of
/// that would be the output.
TEST_F(Failures, OutputsThatAreWeights) {
  OnnxWriter writer("external", {.external_above = 0});
  writer.input("x", 1, {"batch", "64"});
  writer.output(writer.node("MatMul", {"x", writer.normal("w", {64, 64}, 0.1)}, {}, "y"), 1,
                {"batch", "64"});
  writer.write(at_->path() + "/external.onnx");
  const std::string weights = at_->read("external.onnx.data");
  ASSERT_EQ(weights.size(), size_t{64 * 64 * 4});
  at_->sh("ln -sf external.onnx.data other.data");
  const auto kept = [&](const std::string& call, const std::string& bytes) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_NE(message(run).find("is what the model is read from"), std::string::npos)
        << describe(run);
    EXPECT_TRUE(at_->read("external.onnx.data") == bytes) << describe(run);
  };
  for (const char* call : {"external.onnx --loss mse --metrics external.onnx.data",
                           "external.onnx --loss mse --report other.data",
                           "external.onnx --loss mse --profile ./external.onnx.data",
                           "plan external.onnx --loss mse -o other.data",
                           "bench step external.onnx --loss mse --json external.onnx.data"}) {
    kept(call, weights);
  }
  at_->write("external.onnx.data", "cut");
  kept("external.onnx --loss mse --report external.onnx.data", "cut");
}

/// Found by every rank at once, while running.
TEST_F(Failures, LossesThatOverflow) {
  expect_refused("gpt.onnx --lr 1e30", {"step 2", "loss", "--lr"}, true, 1);
}

TEST_F(Failures, FullDisks) {
  for (const Ranks ranks : {threads(2), mpi(2)}) {  // what is measured is not what is learnt
    const Outcome run =
        at_->shardrun(ranks, "gpt.onnx --steps 3 --metrics /dev/full --report full.json");
    EXPECT_EQ(run.status, 0) << describe(run);
    EXPECT_NE(run.out.find("note: metrics file /dev/full: cannot write: No space left on device"),
              std::string::npos)
        << describe(run);
    EXPECT_NE(run.out.find("note: metrics file /dev/full: lacks "), std::string::npos)
        << describe(run);
    EXPECT_NE(run.out.find("trained 3 steps"), std::string::npos) << describe(run);
    EXPECT_NE(at_->read("full.json").find("lacks "), std::string::npos) << at_->read("full.json");
  }
  for (const char* flag : {"--report", "--profile"})
    expect_written_all_but("gpt.onnx --steps 2 " + std::string(flag) + " /dev/full", "/dev/full");
  for (const std::string arguments : {"train gpt.onnx --steps 1", "plan gpt.onnx", "--help"}) {
    const Outcome run = at_->sh(Workspace::line({}, arguments) + " >/dev/full");
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_NE(message(run).find("could not all be written"), std::string::npos) << describe(run);
  }
}

/// Pipes without a reader are given up, and those with one get all.
TEST_F(Failures, Pipes) {
  at_->sh("mkfifo pipe");
  const Outcome metrics = at_->sh("timeout 60 " + Workspace::line({}, "gpt.onnx --metrics pipe"));
  EXPECT_EQ(metrics.status, 2) << describe(metrics);
  EXPECT_NE(message(metrics).find("pipe: cannot open: nobody reads this pipe"), std::string::npos)
      << describe(metrics);
  for (const char* flag : {"--report", "--profile"})
    expect_written_all_but("gpt.onnx --steps 2 " + std::string(flag) + " pipe", "pipe");
  for (const char* call : {"plan gpt.onnx -o pipe"}) {
    const Outcome run = at_->sh("timeout 60 " + Workspace::line({}, call));
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find("pipe: cannot be written: nobody reads this pipe"),
              std::string::npos)
        << describe(run);
    const Outcome both = at_->sh("cat pipe >got & " + Workspace::line({}, call) + "; wait");
    EXPECT_EQ(both.status, 0) << describe(both);
    EXPECT_GT(at_->read("got").size(), 1000u) << describe(both);
  }
  const Outcome read = at_->sh("cat pipe >got & " +
                               Workspace::line({}, "gpt.onnx --steps 5 --metrics pipe") + "; wait");
  EXPECT_EQ(read.status, 0) << describe(read);
  const std::string got = at_->read("got");
  EXPECT_GE(std::count(got.begin(), got.end(), '\n'), 5) << got;
  const Outcome left =
      at_->sh("head -n 1 pipe >got & " + Workspace::line({}, "gpt.onnx --steps 50 --metrics pipe") +
              "; s=$?; wait; exit $s");
  EXPECT_EQ(left.status, 0) << describe(left);
  EXPECT_NE(left.out.find("note: metrics file pipe: cannot write: "), std::string::npos)
      << describe(left);
}

/// `ulimit -f`, whose signal would leave half a file behind.
TEST_F(Failures, FilesThatMayNotGrow) {
  for (const std::string arguments : {"plan gpt.onnx -o out", "train gpt.onnx --profile out"}) {
    const Outcome run = at_->sh("mkdir -p only; cd only; cp ../gpt.onnx .; ulimit -f 4; " +
                                Workspace::line({}, arguments) + "; s=$?; ls; exit $s");
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_NE(message(run).find("out: cannot be written: File too large"), std::string::npos)
        << describe(run);
    EXPECT_EQ(run.out.find("new"), std::string::npos) << describe(run);
  }
}

/// Of closed streams the numbers must not go to the files that the command opens.
TEST_F(Failures, ClosedStreams) {
  const Outcome run = at_->sh(
      Workspace::line({}, "train gpt.onnx --steps 2 --metrics closed.jsonl") + " <&- >&- 2>&-");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_EQ(at_->read("closed.jsonl").rfind("{\"step\":1,", 0), 0u) << at_->read("closed.jsonl");
  EXPECT_EQ(at_->read("closed.jsonl").find("trained"), std::string::npos);
}

/// Memory that the system refuses is said: a file of a terabyte without blocks, and 3 GB for it.
TEST_F(Failures, NoMemory) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  const Outcome run =
      at_->sh("truncate -s 1T huge.json; ulimit -v 3000000; " SHARDRUN_COMMAND " solve huge.json");
  EXPECT_EQ(run.status, 1) << describe(run);
  EXPECT_EQ(message(run).find("out of memory: 'ulimit -v' allows this process 3072000000 bytes, of "
                              "which it maps "),
            0u)
      << describe(run);
}

TEST_F(Failures, LinksWithoutAnEnd) {
  for (const std::string call :
       {"train gpt.onnx --weights loop", "train gpt.onnx --resume loop", "export loop -o w.onnx"}) {
    const Outcome run = at_->sh("ln -sfn loop loop; " SHARDRUN_COMMAND " " + call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(message(run), "loop: cannot be looked at: Too many levels of symbolic links");
  }
}

/// The kernel's messages are a regular file, whose reader waits.
TEST_F(Failures, FilesThatKeepTheirReaderWaiting) {
  if (::access("/proc/kmsg", R_OK) != 0) GTEST_SKIP() << "/proc/kmsg cannot be read here";
  const Outcome run = at_->sh("timeout 20 " SHARDRUN_COMMAND " solve /proc/kmsg");
  EXPECT_EQ(run.status, 2) << describe(run);
  EXPECT_NE(message(run).find("/proc/kmsg: "), std::string::npos) << describe(run);
}

/// Starts a long run, does `harm` once it trains (with $pid of the process started), and wants it
/// ended.
Outcome harmed(const Workspace& at, Ranks ranks, const std::string& harm) {
  at.write("victim.txt", prose(200000));
  at.write("m.jsonl", "");
  return at.sh(
      Workspace::line(
          ranks,
          "gpt.onnx --data text:victim.txt --validation 0 --steps 100000000 --metrics m.jsonl") +
      " & pid=$!\nuntil test -s m.jsonl || ! kill -0 $pid; do sleep 0.1; done\n" + harm +
      "\nwait $pid\nexit $?\n");
}

TEST_F(Failures, TextThatShrinksUnderARun) {
  for (const Ranks ranks : {threads(2), mpi(2)}) {
    const Outcome run = harmed(*at_, ranks, "echo short > victim.txt");
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find("victim.txt: ends at byte"), std::string::npos) << describe(run);
  }
}

TEST_F(Failures, ARankThatIsKilledEndsTheJob) {
  const Outcome run = harmed(*at_, mpi(3),
                             "for s in /proc/[0-9]*/stat; do\n"
                             "  read -r p name state parent rest < $s || continue\n"
                             "  if [ \"$parent\" = $pid ]; then victim=$p; fi\n"
                             "done 2>/dev/null\n"
                             "test -n \"$victim\" || { kill $pid; echo nobody to kill; }\n"
                             "kill -9 $victim");
  EXPECT_NE(run.status, 0) << describe(run);
  EXPECT_EQ(run.out.find("nobody to kill"), std::string::npos) << describe(run);
}

TEST_F(Failures, ThreadsThatCannotBeStarted) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  for (const std::string command : {"", "verify "}) {
    const Outcome run = at_->sh("ulimit -v 900000\n" +
                                Workspace::line(threads(150), command + "gpt.onnx --planner dp"));
    EXPECT_EQ(run.status, 1) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find("no thread could be started in addition to "), std::string::npos)
        << describe(run);
  }
}

/// A process that may have few addresses: plans take no more than there are, or are refused for
/// that, and ranks that cannot share memory exchange by messages. None waits for one that MPI found
/// no addresses in.
TEST_F(Failures, AddressesThatAreScarce) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  ASSERT_EQ(at_->sh(SHARDRUN_COMMAND " model gpt --preset tiny --no-weights -o tiny.onnx").status,
            0);
  const std::string bytes = "bytes of the fullest rank (0): ";
  int by_messages = 0, refused = 0;
  std::set<std::string> arenas;
  for (int kib = 250'000; kib <= 700'000; kib += 30'000) {
    const Outcome run =
        at_->sh("ulimit -v " + std::to_string(kib) + "\n" +
                Workspace::line(mpi(2), "tiny.onnx --batch 64 --steps 1 --timeout 10"));
    const std::string all = describe(run);
    EXPECT_NE(run.status, 124) << kib << ": " << all;
    EXPECT_EQ(all.find("could not be allocated"), std::string::npos) << kib << ": " << all;
    by_messages += all.find("ranks of this machine exchange by messages") != std::string::npos;
    refused += run.status != 0 && all.find("a process whose addresses 'ulimit -v' limits to " +
                                           std::to_string(int64_t{kib} << 10)) != std::string::npos;
    const size_t arena = all.find(bytes);
    if (run.status == 0 && arena != std::string::npos)
      arenas.insert(all.substr(arena, all.find('(', arena + bytes.size()) - arena));
  }
  EXPECT_GT(by_messages, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(arenas.size(), 1u);  // smaller ones for fewer addresses
}

TEST_F(Failures, StartTimeoutsThatAreNone) {
  for (const std::string value : {"soon", "12abc", "-1", "nan", "''"}) {
    const Outcome run = at_->sh("export SHARDRUN_START_TIMEOUT=" + value + "\n" +
                                Workspace::line(mpi(2), "gpt.onnx --steps 1"));
    EXPECT_NE(run.status, 0) << describe(run);
    EXPECT_NE(message(run).find("SHARDRUN_START_TIMEOUT is '"), std::string::npos) << describe(run);
  }
}

TEST_F(Failures, InterruptsEndTheJob) {
  for (const Ranks ranks : {threads(2), mpi(2)}) {
    const Outcome run = harmed(*at_, ranks, "kill -TERM $pid");
    EXPECT_NE(run.status, 0) << describe(run);
  }
}

}  // namespace
}  // namespace shardrun::test
