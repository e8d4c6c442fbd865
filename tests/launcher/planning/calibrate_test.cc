// Measuring a device whose memory the host cannot touch, and the clusters of GPUs that were not
// measured.
#include "measure/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/round_up.h"
#include "graph/op_def.h"
#include "graph/ops/window.h"
#include "graph/program.h"
#include "kernels/cpu/cpu.h"
#include "planner/cost/cluster_file.h"
#include "planner/cost/kernel_cost.h"
#include "program/ops/group_rows.h"
#include "ranks/backend.h"
#include "ranks/gpu_cluster.h"
#include "tests/launcher/ranks/far_rank.h"
#include "tests/support/forwarding_communicator.h"

namespace shardrun {
namespace {

const Backend& far_backend() {
  static const KernelList far = test::far_kernels(cpu_kernels()),
                          reference = test::far_kernels(reference_kernels());
  static const std::array<const KernelList*, 2> lists = {&far, &reference};
  static const Backend backend = [] {
    Backend made{};
    made.name = "far";
    made.devices = [] { return 2; };
    made.kernels = lists;
    return made;
  }();
  return backend;
}
const bool chosen = (use_backend(far_backend()), true);

/// Products and attention are measured over grids of sizes; what is fused, as what
/// it is made of; a reshape takes no time.
TEST(Calibrate, EveryOpIsMeasured) {
  std::set<std::string> measured;
  for (const CalibrationOp& op : calibration_ops()) {
    measured.insert(op.op);
    const CalibrationCall call = op.call(DType::f32, op.sizes.back());
    const KernelWork work = work_of(call.node, call.in, infer_types(call.node, call.in));
    EXPECT_NEAR((op.by_flops ? work.flops : work.bytes) / op.sizes.back(), 1, 0.1) << op.op;
  }
  for (const OpDef* def : all_ops()) {
    const bool elsewhere =
        def->name == "matmul" || def->name.starts_with("attention") || def->name == "reshape";
    EXPECT_TRUE(elsewhere || def->cost == CostClass::fused || measured.erase(def->name) == 1)
        << def->name;
  }
  EXPECT_EQ(measured, std::set<std::string>{});
}

/// Results of the types that steps have: a weight's gradient is f32.
TEST(Calibrate, ProductsMakeWhatStepsMake) {
  const auto made = [](DType dtype, const std::string& layout) {
    const CalibrationCall call = matmul_call(dtype, layout, {16, 32, 64});
    return infer_types(call.node, call.in)[0];
  };
  EXPECT_EQ(made(DType::bf16, "tn"), (TensorType{DType::f32, {16, 32}}));
  EXPECT_EQ(made(DType::bf16, "nn"), (TensorType{DType::bf16, {16, 32}}));
  EXPECT_EQ(made(DType::bf16, "nt"), (TensorType{DType::bf16, {16, 32}}));
  EXPECT_EQ(made(DType::f32, "tn"), (TensorType{DType::f32, {16, 32}}));
}

/// Batch norms as networks of images have them: channels last, with the relu behind.
TEST(Calibrate, NormsAreThoseOfImages) {
  int norms = 0;
  for (const CalibrationOp& op : calibration_ops()) {
    if (!op.op.starts_with("batch_") || op.op == "batch_statistics") continue;
    const CalibrationCall call = op.call(DType::bf16, 0x1p22);
    EXPECT_TRUE(channels_last(call.node)) << op.op;
    EXPECT_EQ(call.node.attrs.i("relu", 0), op.op == "batch_moments" ? 0 : 1) << op.op;
    EXPECT_EQ(call.in[0].dtype, DType::bf16) << op.op;
    ++norms;
  }
  EXPECT_EQ(norms, 4);
}

TEST(Calibrate, ADeviceIsAskedForManyRunsAndWaitedForOnce) {
  const auto device = std::make_shared<test::FarDevice>();
  RankTeam team(device, 1);
  CalibrationCall add;
  add.node.op = add.node.name = "add";
  add.in.assign(2, {DType::f32, {1024, 1024}});
  const double seconds = measure_call(team, add);
  EXPECT_GT(seconds, 0);
  EXPECT_GT(device->recordings, 0);
  // What is measured grows with the device: at least as much as for a core.
  EXPECT_GE(team.extent().rotation, Extent().rotation);
  EXPECT_GT(team.extent().flops(DType::f32), 0);
  EXPECT_GT(team.extent().flops(DType::bf16), 0);
  EXPECT_EQ(team.extent().times, std::exp2(std::round(std::log2(team.extent().times))));
}

/// Operands are made on the host and lie on the device: numbers, and indices within their bounds.
TEST(Calibrate, OperandsLieOnTheDevice) {
  RankTeam team(std::make_shared<test::FarDevice>(), 1);
  EXPECT_GT(measure_call(team, matmul_call(DType::bf16, "nt", {512, 1024, 512})), 0);
  int calls = 0;
  for (const CalibrationOp& op : calibration_ops()) {
    if (op.op != "gather" && op.op != "adamw" && op.op != "gather_grad" &&
        op.op != "segment_softmax")
      continue;
    EXPECT_GT(measure_call(team, op.call(DType::f32, 0x1p22)), 0) << op.op;
    ++calls;
  }
  EXPECT_EQ(calls, 4);
}

/// Rows that are given by groups lie in those that their numbers say.
TEST(Calibrate, GroupsAreThoseOfTheNumbers) {
  constexpr int64_t kRows = 600000, kPlaces = 1000;  // more than are made at random
  CalibrationCall call;
  call.node.op = call.node.name = "segment_max";
  call.node.attrs = {{"size", kPlaces}, {"rearranged", int64_t{1}}};
  call.in = {{DType::f32, {kRows, 1}},
             {DType::i64, {kRows}},
             {DType::i32, {RowGroups::elements(kPlaces, kRows)}}};
  test::FarDevice device;
  RankTeam::Scratch scratch(device);
  work_of_call(call, 1, scratch).run(0);
  const char* at = scratch.bytes(1) + round_up(4 * kRows, kArenaAlignment);
  std::vector<int64_t> numbers(kRows);
  device.copy_out(numbers.data(), at, 8 * kRows);
  at += round_up(8 * kRows, kArenaAlignment);
  std::vector<int32_t> first(static_cast<size_t>(RowGroups::elements(kPlaces, kRows)));
  device.copy_out(first.data(), at, byte_size(call.in[2]));
  const int32_t* order = first.data() + kPlaces + 2;
  ASSERT_EQ(first[kPlaces], kRows);
  for (size_t place = 0; place < kPlaces; ++place) {
    ASSERT_LE(first[place], first[place + 1]);
    for (int32_t k = first[place]; k < first[place + 1]; ++k)
      ASSERT_EQ(numbers[static_cast<size_t>(order[k])], place) << "row " << order[k];
  }
}

/// As in a step: over parameters and moments, which no cache holds.
TEST(Calibrate, UpdatesWriteWhatTheyRead) {
  int updates = 0;
  for (const CalibrationOp& op : calibration_ops()) {
    const CalibrationCall call = op.call(DType::f32, op.by_flops ? 1e7 : 0x1p22);
    EXPECT_EQ(call.from_memory, op.op == "adamw" || op.op == "sgd") << op.op;
    const std::vector<int> places = op.op == "adamw"      ? std::vector<int>{0, 2, 3}
                                    : op.op == "sgd"      ? std::vector<int>{0, 2}
                                    : op.op == "add_rows" ? std::vector<int>{0}
                                                          : std::vector<int>{};
    EXPECT_EQ(call.places, places) << op.op;
    updates += call.from_memory;
  }
  EXPECT_EQ(updates, 2);
}

/// What libraries take is neither scratch memory, however large, nor what is free again.
TEST(Calibrate, SeesWhatIsTakenBesidesOperands) {
  const auto device = std::make_shared<test::FarDevice>();
  RankTeam team(device, 1);
  CalibrationCall add;
  add.node.op = add.node.name = "add";
  add.in.assign(2, {DType::f32, {1024, 1024}});
  measure_call(team, add);
  EXPECT_EQ(team.taken(), 0);
  device->taken = 5000;
  measure_call(team, add);
  device->taken = 3000;
  measure_call(team, add);
  EXPECT_EQ(team.taken(), 5000);
  device->note_bytes = 10;  // of 4096 launches
  EXPECT_EQ(measure_libraries(team), 3000 + 4096 * 10);
  EXPECT_EQ(with_margin(1 << 20), (1 << 20) + (128 << 20));
  EXPECT_EQ(with_margin(1 << 30), (1 << 30) + (512 << 20));
}

/// Ranks' communicator whose groups take 1000 bytes, and more when a kind of call is new to them.
class HungryCommunicator final : public test::ForwardingCommunicator {
 public:
  HungryCommunicator(std::unique_ptr<Communicator> over, test::FarDevice& device, int64_t own)

      : ForwardingCommunicator(std::move(over)), device_(device) {
    take(own);
  }
  ~HungryCommunicator() override { take(-taken_); }
  Communicator& host() override { return over_.host(); }
  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    first(0, 1);
    over_.all_gather(send, recv, counts, dtype);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    first(1, 20);
    over_.reduce_scatter(send, recv, counts, dtype, op, staging);
  }
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    first(2, 300);
    if (count > 100'000) first(3, 4000);
    over_.all_reduce(data, count, dtype, op, staging);
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    first(4, 50000);
    over_.all_to_all(send, send_counts, recv, recv_counts, dtype);
  }

 private:
  std::unique_ptr<Communicator> around(std::unique_ptr<Communicator> part) override {
    return std::make_unique<HungryCommunicator>(std::move(part), device_, 1000);
  }
  void take(int64_t bytes) { device_.taken += bytes, taken_ += bytes; }
  void first(size_t kind, int64_t bytes) {
    if (!called_[kind]) take(bytes);
    called_[kind] = true;
  }
  test::FarDevice& device_;
  int64_t taken_ = 0;
  std::array<bool, 5> called_{};
};

/// Of four ranks: those of all, of pairs of neighbours and of pairs that are two apart, at once.
TEST(Calibrate, SeesWhatCommunicatorsTake) {
  auto hosts = make_local_communicators(4);
  std::vector<int64_t> found(4), left(4);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      test::FarDevice device;
      {
        HungryCommunicator world(
            make_peer_communicator(*hosts[rank], std::make_shared<test::FarAccess>(device)), device,
            rank == 2 ? 7 : 0);
        if (rank == 2) device.taken += 9;  // before anything is measured
        found[rank] = measure_communicators(world, device);
        if (rank == 2) device.taken -= 9;
      }
      left[rank] = device.taken;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<int64_t>(4, 3 * (1000 + 1 + 20 + 300 + 4000 + 50000)));
  EXPECT_EQ(left, std::vector<int64_t>(4, 0));
}

/// Of six ranks, a rank's place among three neighbours is another than among three that are two
/// apart, and what it sends is, where rows and columns do not part evenly.
TEST(Calibrate, RanksHavePlacesInEachGroup) {
  auto hosts = make_local_communicators(6);
  std::vector<int64_t> found(6, -1);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 6; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        test::FarRank on(*hosts[rank]);
        found[rank] = measure_communicators(on.comm(), on.device());
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
        hosts[rank]->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<int64_t>(6, 0));
}

/// Without time, nothing is measured and nothing is made up.
TEST(Calibrate, EndsAtItsDeadline) {
  RankTeam team(std::make_shared<test::FarDevice>(), 1);
  Watch watch([] { return Reference{}; }, now_seconds, 0);
  const MeasuredKernels kernels = measure_kernels(team, watch, now_seconds() - 1)();
  EXPECT_TRUE(kernels.grids.empty());
  EXPECT_TRUE(kernels.ops.empty());
}

/// What is timed has been waited for: a GPU does collectives in a second order of work.
TEST(Calibrate, WaitsForCollectivesOfASecondStream) {
  auto hosts = make_local_communicators(2);
  std::vector<size_t> left(2, 1), found(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      test::FarDevice device(std::make_unique<test::FarDevice>(nullptr, true)), at_once;
      test::LazyCommunicator comm(
          make_peer_communicator(*hosts[rank], std::make_shared<test::FarAccess>(at_once)),
          *device.side());
      Watch watch = watch_ranks(comm, device, 0);
      found[rank] = measure_collectives(comm, device, "mpi", watch, watch.now() + 0.2).size();
      left[rank] = device.side()->asked();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(left, std::vector<size_t>(2, 0));
  EXPECT_GE(found[0], 1U);
}

TEST(Calibrate, CollectivesBetweenDevices) {
  auto hosts = make_local_communicators(2);
  std::vector<std::vector<MeasuredCollective>> found(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      test::FarRank on(*hosts[rank]);
      Watch watch = watch_ranks(on.comm(), on.device(), 0);
      const double now = watch.now(), deadline = rank == 0 ? now + 1 : now;  // rank 0's counts
      found[rank] = measure_collectives(on.comm(), on.device(), "mpi", watch, deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found[0], found[1]);  // all ranks decide alike
  if (found[0].empty()) GTEST_SKIP() << "no time to measure";
  for (const MeasuredCollective& c : found[0]) {
    EXPECT_EQ(c.ranks, 2);
    EXPECT_EQ(c.group, 2);
    for (const auto& [bytes, seconds] : c.curve.points) EXPECT_GT(seconds, 0);
  }
}

TEST(GpuCluster, KnownGpusAreTakenByName) {
  GpuFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 150'000'000'000;
  const Cluster two = gpu_cluster(gpu, 2), built_in = builtin_cluster("h200");
  EXPECT_EQ(two.flops, built_in.flops);
  EXPECT_EQ(two.within, built_in.within);
  EXPECT_EQ(two.devices, 2);
  EXPECT_EQ(two.memory_bytes, gpu.memory_bytes);
  EXPECT_TRUE(two.oversubscribes);  // several ranks on one GPU
  EXPECT_NE(two.about.find("2 GPUs, NVIDIA H200"), std::string::npos) << two.about;
  gpu.name = "NVIDIA A100-SXM4-80GB";
  EXPECT_EQ(gpu_cluster(gpu, 1).flops, builtin_cluster("a100-80").flops);
  gpu.name = "NVIDIA A100-SXM4-40GB";
  EXPECT_EQ(gpu_cluster(gpu, 1).memory_bandwidth, builtin_cluster("a100-40").memory_bandwidth);
}

/// 108 multiprocessors at 1.41 GHz of compute capability 8.0 are an A100's 19.5 and 312 TFLOP/s,
/// and take as many tiles at a time.
TEST(GpuCluster, OthersByTheirProperties) {
  GpuFacts gpu;
  gpu.name = "NVIDIA Unheard-of";
  gpu.major = 8;
  gpu.multiprocessors = 108;
  gpu.clock = 1.41e9;
  gpu.memory_bandwidth = 2e12;
  const Cluster cluster = gpu_cluster(gpu, 1);
  EXPECT_NEAR(cluster.flops.at(DType::f32).peak, 19.5e12, 0.1e12);
  EXPECT_NEAR(cluster.flops.at(DType::bf16).peak, 312e12, 1e12);
  EXPECT_EQ(cluster.memory_bandwidth.peak, 2e12);
  EXPECT_EQ(cluster.tiles.multiprocessors, 108);
  EXPECT_EQ(cluster.tiles.shapes, builtin_cluster("a100-80").tiles.shapes);
  EXPECT_EQ(cluster.tiles.exponential_flops, builtin_cluster("a100-80").tiles.exponential_flops);
  EXPECT_EQ(parse_cluster(cluster_json(cluster), "itself"), cluster);
}

TEST(GpuCluster, WithoutAGpuItSaysWhatItAssumes) {
  const Cluster cluster = assumed_gpu_cluster(12);
  EXPECT_EQ(cluster.nodes, 2);
  EXPECT_EQ(cluster.about.rfind("assumed, for this machine has no GPU; --cluster names another", 0),
            0u);
  EXPECT_EQ(cluster.for_ranks(12, "threads", 0).nodes, 2);
  EXPECT_EQ(assumed_gpu_cluster(8).name, "h100");
}

}  // namespace
}  // namespace shardrun
