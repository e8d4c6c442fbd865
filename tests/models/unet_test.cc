// The U-Nets that models/unet.h writes: their sizes and blocks, both forms of their weights, that
// others read them.
#include "models/unet.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "graph/onnx/import.h"
#include "graph/passes/recognise/recognise.h"
#include "kernels/reference/interpreter.h"
#include "onnx-ml.pb.h"
#include "tests/graph/onnx/build.h"
#include "tests/models/same_weights.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;

UNetOptions tiny() {
  UNetOptions o;
  o.width = 4;
  o.blocks = 1;
  o.heads = 2;
  o.groups = 2;
  o.image = 8;
  o.batch = 2;
  o.seed = 5;
  return o;
}

Graph import(const std::string& path, ImportReport* report = nullptr) {
  ImportOptions options;
  options.evaluate = run_reference;
  return OnnxFile(path).import(options, report);
}

class UNet : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::string path = (folder / "unet.onnx").string();
};

/// Products of convolutions in units of width^2, with 9 for a 3x3: a block from i to o channels has
/// 9 i o + 9 o o, and i o where they differ.
TEST_F(UNet, PresetHasItsNamesSize) {
  UNetOptions o = unet_preset("toast");
  o.weights = false;
  const auto block = [](int64_t in, int64_t out) {
    return 9 * in * out + 9 * out * out + (in == out ? 0 : in * out);
  };
  const int64_t down =
      3 * block(1, 1) + 9 + block(1, 2) + 2 * block(2, 2) + 9 * 4 + block(2, 4) + 2 * block(4, 4);
  const int64_t middle = 2 * block(4, 4) + 4 * 4 * (3 + 1);
  const int64_t up = 3 * block(8, 4) + block(6, 4) + 9 * 16 + block(6, 2) + 2 * block(4, 2) +
                     block(3, 2) + 9 * 4 + block(3, 1) + 3 * block(2, 1);
  EXPECT_EQ(down + middle + up, 4305);
  const int64_t products = (down + middle + up) * o.width * o.width;
  const int64_t count = write_unet(o, path);
  EXPECT_GT(count, products);
  EXPECT_LT(count, products + products / 1000);  // biases, norms, the first and last convolution
  EXPECT_NEAR(static_cast<double>(count), 3.6e9, 0.03e9);
  EXPECT_THROW(unet_preset("tiny"), Error);
}

TEST_F(UNet, HasTheBlocksOfItsLevels) {
  for (const int64_t blocks : {1, 3}) {
    UNetOptions o = tiny();
    o.blocks = blocks;
    write_unet(o, path);
    std::map<std::string, int64_t> ops;
    ::onnx::ModelProto model;
    std::ifstream in(path, std::ios::binary);
    ASSERT_TRUE(model.ParseFromIstream(&in));
    for (const auto& node : model.graph().node()) ++ops[node.op_type()];
    const int64_t down = 3 * blocks, up = 3 * (blocks + 1);  // 9 and 12 of 3 blocks
    // Shortcuts: where a level's first block widens, and in every block that is given a kept
    // result.
    EXPECT_EQ(ops["Conv"], 2 * (down + up + 2) + 2 + up + 2 + 2 + 2 + 2);
    EXPECT_EQ(ops["GroupNormalization"], 2 * (down + up + 2) + 2);
    EXPECT_EQ(ops["Concat"], up);
    EXPECT_EQ(ops["Resize"], 2);
    EXPECT_EQ(ops["Softmax"], 1);
  }
}

TEST_F(UNet, DescribedWeightsAreTheStoredOnes) {
  UNetOptions o = tiny();
  const int64_t count = write_unet(o, path);
  const std::string described = (folder / "described.onnx").string();
  o.weights = false;
  EXPECT_EQ(write_unet(o, described), count);
  ImportReport a, b;
  const Graph stored = import(path, &a), made = import(described, &b);
  EXPECT_EQ(test::expect_same_weights(stored, a, made, b, o.seed), count);
}

TEST_F(UNet, AttentionIsRecognised) {
  write_unet(tiny(), path);
  Graph graph = import(path);
  EXPECT_EQ(recognise(graph).attention, 1);
}

TEST_F(UNet, RefusesWhatItCannotBe) {
  const auto refused = [&](auto&& change) {
    UNetOptions o = tiny();
    change(o);
    EXPECT_THROW(write_unet(o, path), Error);
  };
  refused([](UNetOptions& o) { o.image = 10; });  // is halved twice
  refused([](UNetOptions& o) { o.groups = 3; });
  refused([](UNetOptions& o) { o.heads = 5; });
  refused([](UNetOptions& o) { o.blocks = 0; });
  refused([](UNetOptions& o) { o.levels = 70; });
}

TEST_F(UNet, PassesTheCheckerAndRunsElsewhere) {
  const char* python = std::getenv("SHARDRUN_PEER_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SHARDRUN_PEER_PYTHON names no Python with onnx and onnxruntime";
  write_unet(tiny(), path);
  const std::string command =
      str(python, " " SHARDRUN_SOURCE_DIR "/tests/models/runs_elsewhere.py ", path);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace shardrun
