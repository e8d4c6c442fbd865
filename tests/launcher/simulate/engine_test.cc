// The engine alone: order, meetings, shared links, where time goes.
#include "simulate/engine.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "simulate/goodput.h"
#include "simulate/rank_lanes.h"

namespace shardrun {
namespace {

constexpr auto kKernel = TaskKind::kernel;
constexpr auto kComm = TaskKind::communication;

int add(Simulation& sim, const SimTask& task, std::vector<int> after = {}) {
  return sim.add(task, after);
}

TEST(Simulation, StreamsOverlapAndWaitWhereAsked) {
  Simulation sim;
  const int kernels = sim.add_stream(0), links = sim.add_stream(0);
  const int a = add(sim, {kernels, kKernel, 1});
  const int b = add(sim, {links, kComm, 3}, {a});  // 1 to 4
  add(sim, {kernels, kKernel, 1});                 // 1 to 2
  add(sim, {kernels, kKernel, 1}, {b});            // 4 to 5
  sim.run();
  EXPECT_DOUBLE_EQ(sim.makespan(), 5);
  EXPECT_DOUBLE_EQ(sim.busiest_stream(), 3);
  EXPECT_DOUBLE_EQ(sim.serial_sum(), 6);
  const LaneTimes times = sim.times(0);
  EXPECT_DOUBLE_EQ(times.compute, 3);
  EXPECT_DOUBLE_EQ(times.exposed, 2);
  EXPECT_DOUBLE_EQ(times.waiting + times.host + times.bubble, 0);
}

/// A collective begins when its last member arrives, and takes as long as the longest.
TEST(Simulation, MeetingsWaitForTheLast) {
  Simulation sim;
  const int early = sim.add_stream(0), late = sim.add_stream(1), meeting = sim.add_meeting();
  add(sim, {early, kKernel, 1});
  add(sim, {late, kKernel, 4});
  const int mine = add(sim, {early, kComm, 2, meeting});
  add(sim, {late, kComm, 3, meeting});
  sim.run();
  EXPECT_DOUBLE_EQ(sim.spans()[static_cast<size_t>(mine)].ready, 1);
  EXPECT_DOUBLE_EQ(sim.spans()[static_cast<size_t>(mine)].begin, 4);
  EXPECT_DOUBLE_EQ(sim.makespan(), 7);
  EXPECT_DOUBLE_EQ(sim.times(0).waiting, 3);
  EXPECT_DOUBLE_EQ(sim.times(1).waiting, 0);
}

/// Two messages of 4 s at half the bandwidth each, until one that began 2 s earlier is done: it has
/// 2 s left at 2, which take 4; the other has 2 s left at 6, alone.
TEST(Simulation, LinksAreShared) {
  Simulation sim;
  const int a = sim.add_stream(0), b = sim.add_stream(0), c = sim.add_stream(0);
  const int first = add(sim, {a, kComm, 4, -1, TaskLink::between_nodes});
  const int wait = add(sim, {c, TaskKind::host, 2});
  const int second = add(sim, {b, kComm, 4, -1, TaskLink::between_nodes}, {wait});
  const int other = add(sim, {c, kComm, 4, -1, TaskLink::within_node});  // another link
  sim.run();
  EXPECT_DOUBLE_EQ(sim.spans()[static_cast<size_t>(first)].end, 6);
  EXPECT_DOUBLE_EQ(sim.spans()[static_cast<size_t>(second)].end, 8);
  EXPECT_DOUBLE_EQ(sim.spans()[static_cast<size_t>(other)].end, 6);
}

/// 3 s of a kernel, 2 of them during communication at half speed: 1 s is left at 2 and 2 at the
/// end.
TEST(Simulation, KernelsAreSlowerDuringCommunication) {
  Simulation sim(2);
  const int kernels = sim.add_stream(0), links = sim.add_stream(0);
  add(sim, {kernels, kKernel, 3});
  add(sim, {links, kComm, 2});
  sim.run();
  EXPECT_DOUBLE_EQ(sim.makespan(), 4);
}

TEST(Simulation, WhatWaitsForEverIsRefused) {
  Simulation sim;
  const int a = sim.add_stream(0), b = sim.add_stream(1);
  const int first = sim.add_meeting(), second = sim.add_meeting();
  add(sim, {a, kComm, 1, first});
  add(sim, {a, kComm, 1, second});
  add(sim, {b, kComm, 1, second});
  add(sim, {b, kComm, 1, first});
  EXPECT_THROW(sim.run(), Error);
}

TEST(RankLanes, AreTheExampleOfTheHeader) {
  const Mesh mesh = Mesh::parse("data=2,model=4");
  std::vector<int> colours(8, 0);
  colours[5] = 1;
  const RankLanes lanes = rank_lanes(mesh, colours, {{0}, {1}});
  ASSERT_EQ(lanes.lanes.size(), 4u);
  EXPECT_EQ(lanes.of_rank, (std::vector<int>{0, 1, 0, 0, 2, 3, 2, 2}));
  EXPECT_EQ(lanes.lanes[0].groups.at({0}), (std::vector<int>{0, 2}));
  EXPECT_EQ(lanes.lanes[1].groups.at({1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(lanes.lanes[0].ranks, 3);
  EXPECT_EQ(rank_lanes(mesh, std::vector<int>(8, 0), {{0}, {1}}).lanes.size(), 1u);
  // Nobody meets: only the colour counts.
  EXPECT_EQ(rank_lanes(mesh, colours, {}).lanes.size(), 2u);
}

/// Llama 3: 419 failures in 54 days of 16,384 GPUs; a checkpoint every half an hour, ten minutes to
/// come back. Of 1,024 such GPUs 99.2 % of the time trains.
TEST(Goodput, IsLlamas) {
  const double mtbf = 16384.0 * 54 * 24 * 3600 / 419;
  const Goodput out = goodput({mtbf, 30 * 60, 0, 10 * 60}, 1024);
  EXPECT_NEAR(out.fraction, 0.992, 5e-4);
  EXPECT_NEAR(out.seconds_to_failure / 3600, 49.5, 0.1);
  EXPECT_LT(goodput({mtbf, 30 * 60, 60, 10 * 60}, 1024).fraction, out.fraction);
  EXPECT_LT(goodput({mtbf, 30 * 60, 0, 10 * 60}, 16384).fraction, out.fraction);
  for (const Failures& f : {Failures{0, 1800, 0, 600},
                            {mtbf, 1800, 0, -1},
                            {1e-320, 1800, 0, 600},
                            {1e300, 1e-300, 0, 600},
                            {mtbf, 1800, 1e300, 600}})
    EXPECT_THROW(goodput(f, 8), Error) << f.mtbf;
  for (const double least : {3.6e-3, 3.6e12}) {
    const Goodput far = goodput({least, least, 3.6e12, 3.6e12}, 1 << 20);
    EXPECT_TRUE(far.fraction >= 0 && far.fraction <= 1) << least;
  }
}

}  // namespace
}  // namespace shardrun
