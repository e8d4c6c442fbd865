// What docs/determinism.md promises of a run's bits, and how far apart other runs are.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

struct State {
  TrainingRun run;
  nlohmann::json tensors;  // of the last checkpoint, with the checksums of all bytes
};

class SameBits : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(20000));
    for (const char* model :
         {"gpt --layers 2 --hidden 32 --heads 2 --vocab 256 --context 16 --dropout 0.1 -o gpt.onnx",
          "wide-resnet --family cifar --layers 10 --width 1 --channels 3 --image 16 -o wrn.onnx"}) {
      const Outcome made = at_->shardrun(std::string("model ") + model);
      ASSERT_EQ(made.status, 0) << describe(made);
    }
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }
  static State trained(Ranks ranks, const std::string& model, const std::string& flags) {
    const std::string data = model == "gpt" ? " --data text:text.txt" : "";
    at_->sh("rm -rf c");
    State out;
    out.run = train(
        *at_, ranks,
        model + ".onnx" + data + " --batch 8 --steps 5 --validation 0 --checkpoint c " + flags);
    if (out.run.outcome.status == 0)
      out.tensors = nlohmann::json::parse(at_->read("c/step-00000005/manifest.json"))["tensors"];
    EXPECT_FALSE(out.tensors.empty());
    return out;
  }
  static void expect_same(const State& a, const State& b) {
    EXPECT_EQ(a.run.loss_texts, b.run.loss_texts) << describe(a.run.outcome);
    EXPECT_EQ(a.tensors, b.tensors) << describe(a.run.outcome);
  }
  /// May a rank have two threads here? Else only one core is ours.
  static bool two_threads() { return at_->shardrun("gpt.onnx --steps 1 --threads 2").status == 0; }
  static inline Workspace* at_ = nullptr;
};

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

TEST_F(SameBits, OfTheSameCommand) {
  for (const char* model : {"gpt", "wrn"}) {
    for (const char* dtype : {"--dtype f32", "--dtype bf16"}) {
      SCOPED_TRACE(std::string(model) + " " + dtype);
      expect_same(trained(threads(2), model, dtype), trained(threads(2), model, dtype));
    }
  }
}

TEST_F(SameBits, OfThreadsAndProcesses) {
  ASSERT_EQ(at_->shardrun("plan gpt.onnx --batch 8 --ranks 2 --threads 1 -o plan.json").status, 0);
  const std::string flags = "--threads 1 --plan plan.json";
  expect_same(trained(threads(2), "gpt", flags), trained(mpi(2), "gpt", flags));
}

TEST_F(SameBits, OfOneThreadAndTwo) {
  if (!two_threads()) GTEST_SKIP() << "one core";
  // oneDNN may divide a sum among threads: that of a convolution's gradient, and without AVX-512
  // that of a product.
  for (const std::string model : {"gpt", "wrn"}) {
    const State one = trained(threads(1), model, "--threads 1"),
                two = trained(threads(1), model, "--threads 2");
    if (model == "gpt" && has_avx512()) expect_same(one, two);
    std::printf("%s by one thread and two: losses differ by %.1e\n", model.c_str(),
                largest_difference(two.run, one.run));
    EXPECT_LT(largest_difference(two.run, one.run), 1e-5);
  }
}

/// oneDNN as on a processor that has AVX2 at most: not the same bits as with AVX-512, but the same
/// each time, by threads and by processes, and losses that agree to rounding.
TEST_F(SameBits, OfNarrowerVectorsAreNotPromised) {
  if (!has_avx512()) GTEST_SKIP() << "this processor has no AVX-512, with which to compare AVX2";
  bool differ = false;
  for (const char* model : {"gpt", "wrn"}) {
    SCOPED_TRACE(model);
    const State wide = trained(threads(1), model, "");
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
    const State narrow = trained(threads(1), model, "");
    expect_same(narrow, trained(mpi(1), model, ""));
    unsetenv("ONEDNN_MAX_CPU_ISA");
    differ = differ || narrow.tensors != wide.tensors;
    std::printf("%s by oneDNN with AVX2 at most: losses differ by %.1e\n", model,
                largest_difference(narrow.run, wide.run));
    EXPECT_LT(largest_difference(narrow.run, wide.run), 1e-5);
  }
  EXPECT_TRUE(differ) << "the limit had no effect, so nothing was compared";
}

/// The whole of libshardrun compiled for AVX2, in place of this processor's.
TEST_F(SameBits, OfABuildForAvx2AreNotPromised) {
#ifndef SHARDRUN_AVX2_FOLDER
  GTEST_SKIP() << "libshardrun was not built for AVX2, too (CMAKE_FLAGS=-DSHARDRUN_AVX2=ON)";
#else
  if (!has_avx512()) GTEST_SKIP() << "this processor has no AVX-512, with which to compare AVX2";
  bool differ = false;
  for (const char* model : {"gpt", "wrn"}) {
    for (const auto& [dtype, most] : {std::pair("f32", 1e-5), std::pair("bf16", 1e-3)}) {
      const std::string flags = std::string("--threads 1 --dtype ") + dtype;
      const State wide = trained(threads(1), model, flags);
      setenv("LD_LIBRARY_PATH", SHARDRUN_AVX2_FOLDER, 1);
      const State ours = trained(threads(1), model, flags);
      setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
      const State both = trained(threads(1), model, flags);
      expect_same(both, trained(mpi(1), model, flags));
      unsetenv("ONEDNN_MAX_CPU_ISA");
      unsetenv("LD_LIBRARY_PATH");
      differ = differ || ours.tensors != wide.tensors;
      const double by_ours = largest_difference(ours.run, wide.run),
                   by_both = largest_difference(both.run, wide.run);
      std::printf("%s %s: losses differ by %.1e by our kernels for AVX2, by %.1e with oneDNN's\n",
                  model, dtype, by_ours, by_both);
      EXPECT_LT(by_ours, most) << model << " " << dtype;
      EXPECT_LT(by_both, most) << model << " " << dtype;
    }
  }
  EXPECT_TRUE(differ) << "this processor's library was loaded, so nothing was compared";
#endif
}

}  // namespace
}  // namespace shardrun::test
