// The wide residual networks that models/wide_resnet.h writes: their sizes, that others read them.
#include "models/wide_resnet.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "onnx-ml.pb.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using test::TemporaryFolder;
using Family = WideResNetOptions::Family;

::onnx::ModelProto read_model(const std::string& path) {
  ::onnx::ModelProto model;
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(model.ParseFromIstream(&in)) << path;
  return model;
}

WideResNetOptions tiny(Family family) {
  WideResNetOptions o;
  o.family = family;
  o.layers = family == Family::cifar ? 16 : 50;
  o.width = family == Family::cifar ? 2 : 8;
  o.image = family == Family::cifar ? 9 : 40;
  o.classes = 3;
  o.batch = 2;
  o.seed = 5;
  return o;
}

class WideResNet : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::string path = (folder / "wide-resnet.onnx").string();
};

TEST_F(WideResNet, PresetsHaveTheirNamesSizes) {
  // Those of torchvision, of the WRN paper's Table 4 (36.5 M for 28-10) and of MetaDist's Table 3.
  const std::pair<const char*, int64_t> sizes[] = {
      {"resnet-18", 11689512},   {"resnet-34", 21797672},  {"resnet-50", 25557032},
      {"wrn-50-2", 68883240},    {"wrn-101-2", 126886696}, {"wrn-28-10", 36479194},
      {"wrn-16-4", 2748890},     {"wrn-40-2", 2243546},    {"metadist-1", 625031720},
      {"metadist-8", 1230334760}};
  for (const auto& [name, parameters] : sizes) {
    WideResNetOptions o = wide_resnet_preset(name);
    o.weights = false;
    EXPECT_EQ(write_wide_resnet(o, path), parameters) << name;
  }
  EXPECT_THROW(wide_resnet_preset("wrn-1-1"), Error);
}

TEST_F(WideResNet, RefusesWhatItCannotBe) {
  WideResNetOptions o = tiny(Family::cifar);
  o.layers = 17;
  EXPECT_THROW(write_wide_resnet(o, path), Error);
  o = tiny(Family::imagenet);
  o.layers = 16;
  EXPECT_THROW(write_wide_resnet(o, path), Error);
  o.layers = 18;  // has no bottleneck to widen
  EXPECT_THROW(write_wide_resnet(o, path), Error);
  o = tiny(Family::cifar);
  o.classes = 0;
  EXPECT_THROW(write_wide_resnet(o, path), Error);
}

/// One block a stage of WRN-10: stem, 3 x 2 convolutions and 3 shortcuts, 1 + 3 x 2 norms.
TEST_F(WideResNet, HasTheBlocksOfItsDepth) {
  for (const int64_t blocks : {1, 2}) {
    WideResNetOptions o = tiny(Family::cifar);
    o.layers = 4 + 6 * blocks;
    write_wide_resnet(o, path);
    std::map<std::string, int64_t> ops;
    const ::onnx::ModelProto model = read_model(path);
    for (const auto& node : model.graph().node()) ++ops[node.op_type()];
    EXPECT_EQ(ops["Conv"], 1 + 6 * blocks + 3);
    EXPECT_EQ(ops["BatchNormalization"], 6 * blocks + 1);
    EXPECT_EQ(ops["Add"], 3 * blocks);
    EXPECT_EQ(ops["GlobalAveragePool"], 1);
  }
}

TEST_F(WideResNet, NormalisationIsInTrainingForm) {
  write_wide_resnet(tiny(Family::imagenet), path);
  const ::onnx::ModelProto model = read_model(path);
  int norms = 0;
  for (const auto& node : model.graph().node()) {
    if (node.op_type() != "BatchNormalization") continue;
    ++norms;
    EXPECT_EQ(node.output_size(), 3);
    bool training = false;
    for (const auto& a : node.attribute()) training |= a.name() == "training_mode" && a.i() == 1;
    EXPECT_TRUE(training);
  }
  EXPECT_EQ(norms, 53);
}

TEST_F(WideResNet, PassesTheCheckerAndRunsElsewhere) {
  const char* python = std::getenv("SHARDRUN_PEER_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SHARDRUN_PEER_PYTHON names no Python with onnx and onnxruntime";
  std::string paths;
  for (Family family : {Family::cifar, Family::imagenet}) {
    const std::string name = (folder / str(paths.size(), ".onnx")).string();
    write_wide_resnet(tiny(family), name);
    paths += " " + name;
  }
  WideResNetOptions described = tiny(Family::imagenet);
  described.weights = false;
  write_wide_resnet(described, path);
  paths += " --check-only " + path;
  const std::string command =
      str(python, " " SHARDRUN_SOURCE_DIR "/tests/models/runs_elsewhere.py", paths);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace shardrun
