// A residual network on images learns alike however its images are cut: by samples, by channels,
// and in space with halos, on two ranks and on four.
#include <gtest/gtest.h>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr int kImages = 20, kSize = 12, kClasses = 4;

/// MNIST's format: a magic number that says bytes and how many dims, the dims, the bytes.
std::string idx(const std::vector<int>& dims, const std::string& bytes) {
  std::string out{0, 0, 8, static_cast<char>(dims.size())};
  for (int dim : dims) out += {0, 0, static_cast<char>(dim >> 8), static_cast<char>(dim)};
  return out + bytes;
}

/// A bright quarter says the class; the rest is noise.
void write_images(const Workspace& at) {
  std::string pixels, labels;
  uint32_t noise = 1;
  for (int i = 0; i < kImages; ++i) {
    const int label = i * 7 % kClasses;
    labels += static_cast<char>(label);
    for (int y = 0; y < kSize; ++y) {
      for (int x = 0; x < kSize; ++x) {
        noise = noise * 1664525 + 1013904223;
        const bool bright = 2 * (2 * y / kSize) + 2 * x / kSize == label;
        pixels += static_cast<char>((noise >> 25) + (bright ? 100 : 0));
      }
    }
  }
  at.write("images", idx({kImages, kSize, kSize}, pixels));
  at.write("labels", idx({kImages}, labels));
}

struct Cut {
  Ranks ranks;
  const char* mesh;
  const char* sharding;
};

/// Statistics of each rank's own shard would differ in the first step already, and most in space,
/// where parts are not alike. The validation sees the running ones. Where rounding tips an
/// activation over zero, a gradient of a network as small as this one changes by a hundredth. The
/// rate is low, and most is asked of the first steps: of a build without FMA one run of seven
/// tipped behind the eighth, and was off by 1.1e-4 in the last.
TEST(ImageMeshes, Agree) {
  const Workspace at;
  write_images(at);
  const Outcome made = at.shardrun(
      "model wide-resnet --family cifar --layers 10 --width 1 --channels 1 --image 12 --classes 4 "
      "--recipe '--loss cross-entropy --batch 16 --optimizer sgd --nesterov --lr 1e-3 --warmup 9 "
      "--weight-decay 5e-4 --augment crop=1 --normalise data --validation 0.2 --steps 20' "
      "-o image.onnx");
  ASSERT_EQ(made.status, 0) << describe(made);
  const std::string job = "image.onnx --data idx:images,labels";
  const TrainingRun alone = train(at, threads(1), job);
  ASSERT_EQ(alone.losses.size(), 20U) << describe(alone.outcome);
  ASSERT_EQ(alone.evals.size(), 1U) << describe(alone.outcome);
  EXPECT_GT(largest_difference(train(at, threads(1), job + " --lr 1e-9"), alone), 1e-2)
      << "learning changes too little to be compared\n"
      << describe(alone.outcome);
  const Cut cuts[] = {{mpi(2), "a=2", "[a,-,-,-]"},        {threads(4), "a=4", "[a,-,-,-]"},
                      {mpi(2), "a=2", "[-,a,-,-]"},        {threads(4), "a=4", "[-,a,-,-]"},
                      {mpi(2), "a=2", "[-,-,a,-]"},        {threads(3), "a=3", "[-,-,-,a]"},
                      {threads(4), "a=2,b=2", "[-,-,a,b]"}};
  for (const Cut& cut : cuts) {
    const TrainingRun run =
        train(at, cut.ranks,
              job + " --mesh " + cut.mesh +
                  " --shard '.*(Conv|Relu|Add|conv_data_grad)[_0-9]*=" + cut.sharding + "'");
    ASSERT_EQ(run.losses.size(), alone.losses.size()) << describe(run.outcome);
    for (size_t step = 0; step < run.losses.size(); ++step) {
      const double loss = alone.losses[step];
      EXPECT_NEAR(run.losses[step], loss, (step < 10 ? 1e-5 : 1e-3) * loss)
          << "step " << step << '\n'
          << describe(run.outcome);
    }
    ASSERT_EQ(run.evals.size(), 1U) << describe(run.outcome);
    EXPECT_NEAR(run.evals[0].second, alone.evals[0].second, 1e-3 * alone.evals[0].second)
        << describe(run.outcome);
  }
}

}  // namespace
}  // namespace shardrun::test
