// What `shardrun calibrate` writes of memory that libraries take, by devices that the host cannot
// touch.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "kernels/cpu/cpu.h"
#include "measure/calibrate.h"
#include "planner/cost/cluster_file.h"
#include "ranks/backend.h"
#include "shardrun/calibrate.h"
#include "tests/launcher/ranks/far_rank.h"

namespace shardrun {
namespace {

bool shared = false;  // do ranks have one device?

class OneOfSeveral final : public RankDevice {
 public:
  explicit OneOfSeveral(Communicator& host) : rank_(host.rank()), far_(host) {}
  Device& device() override { return far_.device(); }
  Communicator& comm() override { return far_.comm(); }
  DeviceCapacity capacity() const override {
    DeviceCapacity capacity = far_.capacity();
    if (!shared) capacity.id += std::to_string(rank_);
    return capacity;
  }

 private:
  int rank_;
  test::FarRank far_;
};

const Backend& far_backend() {
  static const KernelList far = test::far_kernels(cpu_kernels()),
                          reference = test::far_kernels(reference_kernels());
  static const std::array<const KernelList*, 2> lists = {&far, &reference};
  static const Backend made = [] {
    Backend backend = cpu_backend();
    backend.name = "far";
    backend.kernels = lists;
    backend.devices = [] { return 2; };
    backend.cluster = [](int64_t) { return builtin_cluster("h100"); };
    backend.measured_name = "far";
    backend.open = [](Communicator& host) -> std::unique_ptr<RankDevice> {
      return std::make_unique<OneOfSeveral>(host);
    };
    return backend;
  }();
  return made;
}

constexpr double kNoTime = 1e-9;  // for a single kernel

Cluster calibrated(const std::string& path, double seconds) {
  World world = World::threads(1);
  CalibrateRequest request;
  request.output = path;
  request.seconds = seconds;
  calibrate(world, request);
  return read_cluster_file(path);
}

TEST(CalibrateFile, SaysWhatLibrariesTake) {
  use_backend(far_backend());
  const std::string path =
      (std::filesystem::temp_directory_path() / str("calibrate_", getpid(), ".json")).string();
  const std::string library = "library_bytes", communicator = "communicator_bytes";

  shared = true;  // what a communicator takes of a device that others use cannot be known
  Cluster one = calibrated(path, 5);
  if (one.sources.count(library) == 0) one = calibrated(path, 40);  // the machine stood still
  EXPECT_EQ(one.library_bytes, with_margin(0));
  EXPECT_EQ(one.sources.at(library),
            "shardrun calibrate: kernels and a noted step took 0 bytes, and half as much again, at "
            "least 128 MiB");
  EXPECT_EQ(one.sources.count(communicator), 0U);
  EXPECT_EQ(one.communicator_bytes, Cluster().communicator_bytes);

  shared = false;
  const Cluster several = calibrated(path, kNoTime);
  EXPECT_EQ(several.library_bytes, Cluster().library_bytes);  // no kernel was measured
  EXPECT_EQ(several.communicator_bytes, with_margin(0));
  EXPECT_EQ(several.sources.at(communicator),
            "shardrun calibrate: communicators of 2 ranks took 0 bytes, and half as much again, at "
            "least 128 MiB");

  shared = true;  // what was measured stays
  const Cluster again = calibrated(path, kNoTime);
  EXPECT_EQ(again.communicator_bytes, with_margin(0));
  EXPECT_EQ(again.sources.count(communicator), 1U);
  std::filesystem::remove(path);
  use_backend(cpu_backend());
}

/// Whoever waits hears of each part when it begins, however little of it is measured.
TEST(CalibrateFile, SaysWhatItMeasures) {
  use_backend(far_backend());
  const std::string path =
      (std::filesystem::temp_directory_path() / str("progress_", getpid(), ".json")).string();
  std::vector<std::string> parts;
  World world = World::threads(1);
  CalibrateRequest request;
  request.output = path;
  request.seconds = kNoTime;
  request.on_progress = [&](const std::string& part, const std::string& what) {
    if (what.empty()) parts.push_back(part);
    EXPECT_EQ(part, parts.back()) << what;
  };
  calibrate(world, request);
  EXPECT_EQ(parts, (std::vector<std::string>{"kernels of " + test::FarDevice().name(),
                                             "collectives between 2 ranks"}));
  std::filesystem::remove(path);
  use_backend(cpu_backend());
}

}  // namespace
}  // namespace shardrun
