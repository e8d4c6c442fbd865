// Devices, pipes and files without end, named where a file is wanted: each ends in one sentence,
// soon and within a gigabyte of address space.
#include <gtest/gtest.h>

#include <filesystem>

#include "models/gpt.h"
#include "tests/launcher/command.h"
#include "tests/support/sanitizer.h"

namespace shardrun::test {
namespace {

class HostileFiles : public testing::Test {
 protected:
  HostileFiles() {
    GptOptions options;
    options.layers = options.heads = 1;
    options.hidden = 8;
    options.context = 4;
    write_gpt(options, at.path() + "/gpt.onnx");
    at.sh("mkfifo pipe");
    at.write("nested.json", std::string(1 << 20, '['));
    at.write("empty.json", "");
    at.write("rows.csv",
             "gpus,tp,dp,pp,micro_batch,micro_batches,hidden,heads,layers,sequence,iteration_ms\n");
    at.sh("truncate -s 8G sparse.json");
  }

  Outcome limited(const std::string& arguments) const {
    const std::string memory = test::kSanitized ? "" : "ulimit -v 1500000; ";
    const auto seconds = [](int n) { return std::to_string(n * test::kSlower); };
    return at.sh(memory + "ulimit -t " + seconds(20) + "; timeout " + seconds(60) +
                 " " SHARDRUN_COMMAND " " + arguments);
  }

  Workspace at;
};

TEST_F(HostileFiles, AreRefusedInOneSentence) {
  for (const std::string flag : {"--cluster ", "--plan "}) {
    for (const std::string file : {"/dev/zero", "/dev/full", "/dev/tty", "./pipe", "./sparse.json",
                                   "./nested.json", "./empty.json", "./", "/proc/self/mem"}) {
      const Outcome run = limited("train gpt.onnx --steps 1 " + flag + file);
      EXPECT_EQ(run.status, 2) << describe(run);
      EXPECT_EQ(messages(run), 1) << describe(run);
      EXPECT_NE(message(run).find(file == "./" ? "." : file), std::string::npos) << describe(run);
    }
  }
  for (const std::string call : {"explain ", "solve ", "verify gpt.onnx --plan "}) {
    for (const std::string file : {"/dev/zero", "./pipe", "./nested.json"}) {
      const Outcome run = limited(call + file);
      EXPECT_EQ(run.status, 2) << describe(run);
      EXPECT_NE(message(run).find(file), std::string::npos) << describe(run);
    }
  }
  for (const std::string data :
       {"text:FILE", "tokens:FILE", "npy:FILE,FILE", "npz:FILE", "idx:FILE,FILE", "cifar:FILE"}) {
    for (const std::string file : {"/dev/zero", "./pipe"}) {
      std::string spec = data;
      for (size_t i; (i = spec.find("FILE")) != std::string::npos;) spec.replace(i, 4, file);
      const Outcome run = limited("train gpt.onnx --steps 1 --data " + spec);
      EXPECT_EQ(run.status, 2) << describe(run);
      EXPECT_EQ(messages(run), 1) << describe(run);
    }
  }
  // Sixty seconds for what a pipe without a writer would take for ever.
  for (const std::string call :
       {"calibrate --cluster h100 --rows ", "calibrate --cluster h100 --rows rows.csv --judge ",
        "simulate gpt.onnx --ranks 2 --constants "}) {
    const std::string flag = call.substr(call.rfind("--"), call.size() - call.rfind("--") - 1);
    for (const std::string file : {"/dev/zero", "./pipe", "./sparse.json", "./", "missing"}) {
      const Outcome run = limited(call + file);
      EXPECT_EQ(run.status, 2) << describe(run);
      EXPECT_EQ(messages(run), 1) << describe(run);
      EXPECT_NE(message(run).find(flag + ": " + file + ": "), std::string::npos) << describe(run);
    }
  }
  for (const std::string file : {"/dev/zero", "./pipe", "./sparse.json"}) {
    const Outcome run = limited("train " + file);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
  }
}

/// Numbers that a flag takes, and that no machine has.
TEST_F(HostileFiles, HugeNumbersAreRefusedInOneSentence) {
  at.write("text.txt", prose(4000));
  for (const std::string call : {"train gpt.onnx --steps 1 ", "evaluate gpt.onnx "}) {
    const Outcome run = limited(call + "--data text:text.txt --batch 99999999999");
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find("bytes a rank, the limit is "), std::string::npos) << describe(run);
  }
  for (const std::string number : {"0", "-1", "nan", "inf"}) {
    const Outcome run = limited("solve empty.json --time " + number);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(message(run), "--time: '" + number + "' is not a number above 0");
  }
  EXPECT_EQ(message(limited("solve empty.json --nodes -1")),
            "--nodes: '-1' is not a number of at least 0");
  EXPECT_EQ(message(limited("simulate gpt.onnx --ranks 2 --stages 99999999999")),
            "--stages: '99999999999' is too large");
  EXPECT_EQ(message(limited("simulate gpt.onnx --ranks 2 --accumulate 2147483647")),
            "2147483647 micro-batches are too many to simulate, wanted at most 65536");
}

TEST_F(HostileFiles, PatternsOfAModelsOwnRecipe) {
  // A search that backtracks doubles its time with each group, and std::regex's stack with letters.
  std::string groups;
  for (int i = 0; i < 90; ++i) groups += "(e*)*";
  at.write("recipe", "--freeze " + groups + "Q");
  at.sh(SHARDRUN_COMMAND " model gat --recipe \"$(cat recipe)\" -o gat.onnx");
  const Outcome run = limited("plan gat.onnx --dim nodes=4 --dim edges=8");
  EXPECT_EQ(run.status, 2) << describe(run);
  EXPECT_NE(message(run).find("no parameter's name matches"), std::string::npos) << describe(run);
}

}  // namespace
}  // namespace shardrun::test
