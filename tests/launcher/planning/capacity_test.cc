// The limit of a plan is what the ranks' devices have, whatever was asked for.
#include "ranks/capacity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "ranks/backend.h"
#include "ranks/world.h"

namespace shardrun {
namespace {

Cluster cluster() {
  Cluster c;
  c.library_bytes = 100, c.communicator_bytes = 30;
  return c;
}

TEST(DeviceCapacity, IsSharedByTheRanksOfADevice) {
  const std::vector<DeviceCapacity> capacities = {{"cuda:0 (X)", "a", 1000, true},
                                                  {"cuda:1 (X)", "b", 900, true},
                                                  {"cuda:0 (X)", "a", 1000, true}};
  const ArenaLimit capacity = least_capacity(capacities, cluster());
  EXPECT_EQ(capacity.bytes, 1000 / 2 - 100);  // they reach each other's memory
  EXPECT_EQ(capacity.why,
            "cuda:0 (X) has 1000 bytes free for 2 ranks, of which libraries take 100 of each");
  const std::vector<DeviceCapacity> own = {{"cuda:0 (X)", "a", 1000, true},
                                           {"cuda:1 (X)", "b", 900, true}};
  EXPECT_EQ(least_capacity(own, cluster()).bytes, 900 - 130);
  EXPECT_EQ(least_capacity(own, cluster()).why,
            "cuda:1 (X) has 900 bytes free for 1 rank, of which libraries take 130 of each");
  const std::vector<DeviceCapacity> alone = {{"cuda:1 (X)", "b", 900, true}};
  EXPECT_EQ(least_capacity(alone, cluster()).bytes, 900 - 100);  // connected with nobody
  const std::vector<DeviceCapacity> host(3, {"machine m", "m", 900, false});
  EXPECT_EQ(least_capacity(host, cluster()).bytes, 300);
  EXPECT_EQ(least_capacity(host, cluster()).why, "machine m has 900 bytes free for 3 ranks");
}

TEST(DeviceCapacity, IsRefusedWhereLibrariesFillIt) {
  const std::vector<DeviceCapacity> capacities(8, {"cuda:0 (X)", "a", 800, true});
  try {
    least_capacity(capacities, cluster());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory);
    EXPECT_STREQ(e.what(),
                 "cuda:0 (X) has 800 bytes free for 8 ranks, of which libraries take 100 "
                 "of each: nothing is left for weights");
  }
}

/// Ranks on small GPUs, of which two have the same.
int64_t free_bytes = 0;
class SmallRank final : public RankDevice {
 public:
  explicit SmallRank(Communicator& host) : host_(host) {}
  Device& device() override { return host_device(); }
  Communicator& comm() override { return host_; }
  DeviceCapacity capacity() const override {
    const int gpu = host_.rank() / 2;
    return {str("cuda:", gpu, " (X)"), str("gpu ", gpu), free_bytes / (1 + gpu), false};
  }

 private:
  Communicator& host_;
};

TEST(DeviceCapacity, LimitsPlansWhateverWasAskedFor) {
  Backend small = cpu_backend();
  small.open = [](Communicator& host) -> std::unique_ptr<RankDevice> {
    return std::make_unique<SmallRank>(host);
  };
  use_backend(small);
  const std::string path =
      (std::filesystem::temp_directory_path() / str("capacity_", getpid(), ".onnx")).string();
  GptModel gpt;
  gpt.layers = 1, gpt.hidden = 32, gpt.heads = 2, gpt.vocab = 64, gpt.context = 8;
  write_gpt(gpt, path);
  World world = World::threads(4);
  const Model model = load_model(world, path, {});
  std::filesystem::remove(path);
  const auto most = [&](int64_t asked) {
    PlanRequest request;
    request.memory_bytes = asked;
    request.mesh = "4";
    request.with_evaluation = false;
    const std::vector<int64_t> bytes = make_plan(world, model, request).predicted_bytes();
    return *std::max_element(bytes.begin(), bytes.end());
  };
  constexpr int64_t kPlenty = int64_t{1} << 40;
  free_bytes = kPlenty;
  const int64_t wanted = most(kPlenty);
  // Ranks 2 and 3 share what half of it is, and the plan gets by with that.
  free_bytes = 4 * (wanted - 64);
  EXPECT_LE(most(kPlenty), wanted - 64);
  free_bytes = 40000;
  for (const int64_t asked : {kPlenty, int64_t{0}}) {
    try {
      most(asked);
      FAIL();
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::memory);
      const std::string what = e.what(), begin = "cuda:1 (X) has 20000 bytes free for 2 ranks",
                        asks = "; --memory asks for 1099511627776";
      EXPECT_EQ(what.substr(0, begin.size()), begin);
      EXPECT_EQ(what.substr(begin.size(), asks.size()) == asks, asked > 0) << what;
      EXPECT_NE(what.find(" bytes a rank, the limit is 10000 ("), std::string::npos) << what;
      EXPECT_NE(what.find(" MiB of 0.01; what persists alone"), std::string::npos) << what;
    }
  }
  try {
    most(9000);  // no more is asked for than there is
    FAIL();
  } catch (const Failure& e) {
    EXPECT_EQ(std::string(e.what()).find("cuda"), std::string::npos) << e.what();
  }
  use_backend(cpu_backend());
}

}  // namespace
}  // namespace shardrun
