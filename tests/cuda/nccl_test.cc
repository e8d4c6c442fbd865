// NCCL's communicators without a GPU: what is asked of the library, and how waits for it end.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "collectives/nccl/nccl_communicator.h"
#include "tests/collectives/checked_cases.h"
#include "tests/collectives/ranks.h"
#include "tests/cuda/stand_in_nccl.h"

namespace shardrun::cuda {
namespace {

/// Memory of the host, and a stream that is done, or never will be: a wait for it tells its watches
/// of a second in each hundredth.
class NoGpu final : public CudaDevice {
 public:
  bool stuck = false;

  std::string name() const override { return "no GPU"; }
  bool is_host() const override { return false; }
  void* stream() const override { return nullptr; }
  cudaStream_t cuda_stream() const override { return nullptr; }
  int ordinal() const override { return 0; }
  CudaDevice* side() override { return nullptr; }
  std::string uuid() const override { return ""; }
  void use() const override {}
  std::shared_ptr<char> allocate(int64_t bytes) override { return host_device().allocate(bytes); }
  int64_t free_bytes() const override { return 0; }
  void copy_in(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy_out(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    host_device().copy(to, from, bytes);
  }
  void zero(void* to, int64_t bytes) override { host_device().zero(to, bytes); }
  void fill(void*, int64_t, const void*, int64_t) override {}
  void copy_box(const void*, const Box&, void*, const Box&, const Box&, int64_t) override {}
  void add_box(const void*, const Box&, void*, const Box&, const Box&, DType) override {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>&) override { return nullptr; }

  std::shared_ptr<void> add_watch(Watch watch) override {
    auto kept = std::make_shared<Watch>(std::move(watch));
    watches_.push_back(kept);
    return kept;
  }
  void synchronize() override {
    constexpr double kMost = 6000;
    for (double waited = 1; stuck && waited < kMost; ++waited) {
      usleep(10000);
      for (const auto& watch : watches_) {
        if (const auto alive = watch.lock()) (*alive)(waited);
      }
    }
    SR_REQUIRE(!stuck, internal, "nobody ended the wait");
  }

 private:
  std::vector<std::weak_ptr<Watch>> watches_;
};

class Nccl : public testing::Test {
 protected:
  /// Under the name by which the real one is looked for, which then is found here.
  void SetUp() override {
    void* const library = dlopen(SHARDRUN_STAND_IN_NCCL, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto get = reinterpret_cast<test::GetStandInNccl>(dlsym(library, test::kStandInNccl));
    ASSERT_NE(get, nullptr);
    nccl_ = get();
    nccl_->made.clear(), nccl_->calls.clear();
    nccl_->aborted = 0, nccl_->state = ncclSuccess;
  }
  test::StandInNccl* nccl_ = nullptr;
};

/// What the rank's wait for the stream ends with; "" if it does not.
std::string end_of_wait(NoGpu& device) {
  try {
    device.synchronize();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// Of all ranks there is one only where it is called itself: programs call their mesh's groups.
TEST_F(Nccl, HasACommunicatorForEachGroup) {
  for (const bool all : {false, true}) {
    nccl_->made.clear();
    test::run_ranks(4, [&](Communicator& host) {
      NoGpu device;
      const auto world = make_nccl_communicator(host, device);
      const auto part = world->split({{0, 2}, {3, 1}});
      EXPECT_EQ(part->rank(), host.rank() == 0 || host.rank() == 3 ? 0 : 1);
      EXPECT_EQ(part->size(), 2);
      float x = 0;
      for (int call = 0; all && call < 2; ++call)
        world->all_reduce(&x, 1, DType::f32, Reduction::sum, nullptr);
    });
    std::map<int, std::multiset<int>> ranks;  // by id
    for (const auto& made : nccl_->made) {
      ranks[made.id].insert(made.rank);
      EXPECT_TRUE(made.size == 2 || all);
    }
    EXPECT_EQ(ranks.size(), all ? 3u : 2u);
    for (const auto& [id, members] : ranks)
      EXPECT_EQ(members, members.size() == 4 ? std::multiset<int>({0, 1, 2, 3})
                                             : std::multiset<int>({0, 1}));
    EXPECT_EQ(nccl_->aborted, 0);
  }
}

TEST_F(Nccl, MovesUnevenPartsInOneGroupOfMessages) {
  test::run_ranks(3, [](Communicator& host) {
    NoGpu device;
    const auto comm = make_nccl_communicator(host, device);
    const int me = comm->rank();
    // 3, 1 and 0 numbers, then to each rank as many as its number.
    const std::vector<int64_t> counts = {3, 1, 0};
    const std::vector<int32_t> own(static_cast<size_t>(counts[static_cast<size_t>(me)]), 10 + me);
    std::vector<int32_t> whole(4);
    comm->all_gather(own.data(), whole.data(), counts, DType::i32);
    EXPECT_EQ(whole, (std::vector<int32_t>{10, 10, 10, 11}));
    const std::vector<int32_t> sent = {100 * me + 1, 100 * me + 2, 100 * me + 2};
    const std::vector<int64_t> to = {0, 1, 2}, from(3, me);
    std::vector<int32_t> got(static_cast<size_t>(3 * me)), want;
    for (int r = 0; r < 3; ++r) want.insert(want.end(), static_cast<size_t>(me), 100 * r + me);
    comm->all_to_all(sent.data(), to, got.data(), from, DType::i32);
    EXPECT_EQ(got, want);
  });
  // Nothing is sent by or to where there is nothing.
  EXPECT_EQ(
      std::multiset<std::string>(nccl_->calls.begin(), nccl_->calls.end()),
      (std::multiset<std::string>{"group of 2 sends, 1 receives", "group of 2 sends, 1 receives",
                                  "group of 0 sends, 2 receives", "group of 2 sends, 0 receives",
                                  "group of 1 sends, 2 receives", "group of 1 sends, 2 receives"}));
}

/// Of 3, 1 and 0 numbers, large ones in one group too: each part is a sum for its rank.
TEST_F(Nccl, SumsUnevenPartsInOneGroup) {
  constexpr int64_t kLarge = 300000;  // more than a chunk of the staging
  for (const int64_t many : {int64_t{3}, kLarge}) {
    nccl_->calls.clear();
    test::run_ranks(3, [&](Communicator& host) {
      NoGpu device;
      const auto comm = make_nccl_communicator(host, device);
      const int me = comm->rank();
      const std::vector<int64_t> counts = {many, 1, 0};
      std::vector<float> own(static_cast<size_t>(many + 1));
      for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i % 100 + 1000 * me);
      std::vector<float> got(static_cast<size_t>(counts[static_cast<size_t>(me)]), -1);
      comm->reduce_scatter(own.data(), got.data(), counts, DType::f32, Reduction::sum, nullptr);
      const int64_t first = me == 0 ? 0 : many;
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t at = first + static_cast<int64_t>(i);
        ASSERT_EQ(got[i], static_cast<float>(3 * (at % 100) + 3000)) << me << " " << i;
      }
    });
    EXPECT_EQ(std::multiset<std::string>(nccl_->calls.begin(), nccl_->calls.end()),
              (std::multiset<std::string>{"group of 1 sends, 0 receives, 1 sums",
                                          "group of 1 sends, 0 receives, 1 sums",
                                          "group of 2 sends, 0 receives"}));
  }
}

TEST_F(Nccl, AsksTheLibraryForEvenParts) {
  test::run_ranks(2, [](Communicator& host) {
    NoGpu device;
    const auto comm = make_nccl_communicator(host, device);
    float data[2] = {};
    comm->all_gather(data, data, std::vector<int64_t>{1, 1}, DType::f32);
    comm->all_reduce(data, 2, DType::f32, Reduction::sum, nullptr);
  });
  EXPECT_EQ(std::multiset<std::string>(nccl_->calls.begin(), nccl_->calls.end()),
            (std::multiset<std::string>{"ncclAllGather", "ncclAllGather", "ncclAllReduce",
                                        "ncclAllReduce"}));
}

TEST_F(Nccl, EndsAWaitThatIsTooLong) {
  test::run_ranks(2, [](Communicator& host) {
    NoGpu device;
    const auto world = make_nccl_communicator(host, device);
    world->set_timeout(30);
    const auto comm = world->split({{0, 1}}), other = world->split({{1, 0}});  // have the same
    float x = 0;
    comm->all_reduce(&x, 1, DType::f32, Reduction::sum, nullptr);
    host.barrier();
    if (host.rank() == 0) {
      device.stuck = true;
      EXPECT_EQ(end_of_wait(device).rfind("all_reduce on rank 0 of 2: waited 30 s for rank 1, ", 0),
                0u);
    }
    host.barrier();
  });
  EXPECT_EQ(nccl_->aborted, 4);  // the job has ended, for all of its communicators
}

TEST_F(Nccl, TellsOfAnErrorThatComesLater) {
  test::run_ranks(2, [&](Communicator& host) {
    NoGpu device;
    const auto comm = make_nccl_communicator(host, device);
    float x = 0;
    comm->all_reduce(&x, 1, DType::f32, Reduction::sum, nullptr);
    host.barrier();
    if (host.rank() == 0) {
      {
        const std::lock_guard lock(nccl_->mutex);
        nccl_->state = ncclRemoteError;
      }
      device.stuck = true;
      EXPECT_EQ(end_of_wait(device),
                "all_reduce on rank 0 of 2: remote process exited (connection closed)");
    }
    host.barrier();
  });
  EXPECT_EQ(nccl_->aborted, 2);
}

/// Before NCCL is asked, which would wait or mix up what it is given.
TEST_F(Nccl, CallsAreCheckedWhereTheHostsAre) {
  test::run_ranks(3, [](Communicator& world) {
    NoGpu device;
    test::device_calls_are_checked(
        world, [&](Communicator& host) { return make_nccl_communicator(host, device); });
  });
  EXPECT_EQ(std::count(nccl_->calls.begin(), nccl_->calls.end(), "ncclAllGather"), 0);
}

/// What a rank fails with is not NCCL's: nothing else tells those who wait for it.
TEST_F(Nccl, ARankThatFailsEndsTheWaitOfTheOthers) {
  test::run_ranks(2, [](Communicator& host) {
    NoGpu device;
    const auto body = [&] {
      const auto world = make_nccl_communicator(host, device);
      world->set_timeout(0);
      const auto comm = world->split({{0, 1}});
      host.barrier();
      if (host.rank() == 1) fail(ErrorKind::invalid_input, "label 12 of token 3");
      float x = 0;
      comm->all_reduce(&x, 1, DType::f32, Reduction::sum, nullptr);
      device.stuck = true;
      EXPECT_EQ(end_of_wait(device), "all_reduce on rank 0 of 2: another rank ended the job");
    };
    try {
      body();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "label 12 of token 3");
    }
  });
  EXPECT_EQ(nccl_->aborted, 2);
}

}  // namespace
}  // namespace shardrun::cuda
