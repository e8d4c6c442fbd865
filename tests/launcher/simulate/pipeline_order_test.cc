// Orders of a pipeline, and steps written by hand divided and run by them.
#include "simulate/pipeline_order.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "simulate/step_tasks.h"

namespace shardrun {
namespace {

constexpr auto kForward = PartRun::Pass::forward, kBackward = PartRun::Pass::backward;

TEST(Schedule, OneForwardOneBackward) {
  const std::vector<PartRun> first = {{kForward, 0, 0}, {kForward, 0, 1},  {kBackward, 0, 0},
                                      {kForward, 0, 2}, {kBackward, 0, 1}, {kBackward, 0, 2}};
  EXPECT_EQ(schedule_of({2, 1}, 0, 3), first);
  const std::vector<PartRun> last = {
      {kForward, 1, 0}, {kBackward, 1, 0}, {kForward, 1, 1}, {kBackward, 1, 1}};
  EXPECT_EQ(schedule_of({2, 1}, 1, 2), last);
}

/// Every part's two passes of every micro-batch come once, forward first, in order.
TEST(Schedule, InterleavedRunsAllOnce) {
  for (int stage = 0; stage < 4; ++stage) {
    std::map<std::pair<int, int>, int> seen;  // part, micro-batch: passes
    for (const PartRun& run : schedule_of({4, 3}, stage, 8)) {
      EXPECT_EQ(run.part % 4, stage);
      int& passes = seen[{run.part, run.micro}];
      EXPECT_EQ(passes, run.pass == kForward ? 0 : 1);
      ++passes;
    }
    EXPECT_EQ(seen.size(), 24u);
    for (const auto& [of, passes] : seen) EXPECT_EQ(passes, 2);
  }
  EXPECT_THROW(schedule_of({4, 2}, 0, 6), Error);
}

/// Layers of a forward and a backward kernel of 1 s each, on one rank; nothing is sent.
struct Layers {
  Program program;
  ProgramWork work;
  Cluster cluster;
  explicit Layers(int layers, int micro_batches) {
    program.micro_batches = micro_batches;
    const auto add = [&](int layer, StepPart part) {
      program.steps.emplace_back();
      work.steps.push_back({.seconds = 1, .launches = 1, .part = part, .layer = str("h.", layer)});
    };
    for (int l = 0; l < layers; ++l) add(l, StepPart::forward);
    for (int l = layers; l-- > 0;) add(l, StepPart::backward);
    work.program = &program;
    work.order = order_of(program, CommStreams::one);
    cluster.devices = 1 << 20;
    cluster.within = {1e9, 0, 0};
  }
  double seconds(const StepSettings& settings) {
    const std::vector<ProgramWork> works = {work};
    SimulatedStep step(works, {0}, cluster, settings);
    step.run();
    return step.simulation().makespan();
  }
};

/// P equal stages and K micro-batches of t = forward + backward take (K + P - 1) t, and with v
/// chunks K t + (P - 1) t / v (Narayanan et al., 2021, section 2.2).
TEST(Schedule, EqualStagesTakeTheFormulas) {
  for (int stages : {1, 2, 4}) {
    for (int micro_batches : {4, 8}) {
      Layers layers(8, micro_batches);
      StepSettings settings;
      settings.pipeline = {stages, 1};
      const double t = 16.0 / stages;
      EXPECT_DOUBLE_EQ(layers.seconds(settings), (micro_batches + stages - 1) * t)
          << stages << " " << micro_batches;
      if (stages == 1) continue;
      settings.pipeline = {stages, 2};
      EXPECT_DOUBLE_EQ(layers.seconds(settings), micro_batches * t + (stages - 1) * t / 2)
          << stages << " " << micro_batches;
    }
  }
}

/// A third more, where all layers are computed again.
TEST(Schedule, RecomputationIsAForwardPassMore) {
  Layers layers(8, 4);
  StepSettings settings;
  settings.assumed.recompute_layers = true;
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 4 * 24);
  settings.pipeline = {2, 1};
  EXPECT_DOUBLE_EQ(layers.seconds(settings), (4 + 2 - 1) * 12);
}

/// The host asks for one kernel after the other: 2 s each keep kernels of 1 s waiting.
TEST(Schedule, AnEagerHostHoldsUpKernels) {
  Layers layers(8, 1);
  StepSettings settings;
  settings.launch_seconds = 2;
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 2 + 16);
  settings.assumed.eager = true;
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 16 * 2 + 1);
}

/// A stage sets to zero what its own backward steps add to: half of the layers' gradients, and all
/// of one that both stages add to.
TEST(Schedule, AStageZeroesItsOwnGradients) {
  Layers layers(8, 2);
  for (BufferId b = 0; b < 8; ++b) layers.work.zeroed.push_back({b, 0.25});
  layers.work.zeroed.push_back({8, 4});
  for (int l = 0; l < 8; ++l) layers.program.steps[15 - l].in = {l};
  for (int s : {8, 15}) layers.program.steps[s].in.push_back(8);
  StepSettings settings;
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 2 * 16) << "a rank that reads nothing has no host";
  settings.read_rate = 1e9;
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 8 * 0.25 + 4 + 2 * 16);
  settings.pipeline = {2, 1};
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 4 * 0.25 + 4 + (2 + 2 - 1) * 8);
}

/// Factors are on products, and on the rest of kernels.
TEST(Schedule, FactorsMultiplyTheirParts) {
  Layers layers(8, 1);
  for (StepWork& step : layers.work.steps) step.products = 0.25;
  StepSettings settings;
  settings.factors = {.products = 2, .memory = 3};
  EXPECT_DOUBLE_EQ(layers.seconds(settings), 16 * (0.5 + 2.25));
}

}  // namespace
}  // namespace shardrun
