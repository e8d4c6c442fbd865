// What a watch tells disturbed times by: the same product again and again.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/process/processors.h"
#include "base/thread_group.h"
#include "measure/calibrate.h"

namespace shardrun {
namespace {

constexpr double kReference = 8e-3;  // s, longer than what a scheduler lets others have

/// Keeps this thread on one of the cores that it may run on.
class OnCore {
 public:
  explicit OnCore(int core) : before_(own_processors()) {
    const std::vector<int> cores = cores_of(before_);
    run_on({cores[static_cast<size_t>(core) % cores.size()]});
  }
  ~OnCore() { run_on(before_); }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  std::vector<int> before_;
};

/// A product that a core's own caches hold, over and over, on the calling thread. What neighbours
/// of a virtual machine do to memory beyond comes and goes all the time.
class ReferenceProduct {
 public:
  ReferenceProduct()
      : call_(work_of_call(matmul_call(DType::f32, "nn", {192, 192, 192}), 0, scratch_)) {
    run(0);
    const double once = std::min(run(0).taken, run(0).taken);
    times_ = std::clamp(static_cast<int64_t>(kReference / once), int64_t{1}, int64_t{1000});
  }
  Reference run(int core) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const OnCore pinned(core);  // two new threads may well share one
    const double begin = now_seconds(), begin_busy = thread_seconds();
    for (int64_t i = 0; i < times_; ++i) call_.run(i);
    const double taken = now_seconds() - begin, busy = thread_seconds() - begin_busy;
    omp_set_num_threads(before);
    return {taken / static_cast<double>(times_), busy / static_cast<double>(times_)};
  }

 private:
  RankTeam::Scratch scratch_{host_device()};
  RankTeam::Work call_;
  int64_t times_ = 1;
};

}  // namespace

std::function<Reference()> reference_of(const std::shared_ptr<RankTeam>& team, int first_core) {
  if (!team->device().is_host()) {
    return [team] {
      constexpr double kPart = 1 / 16.0;  // of the longest products
      const auto n = std::max(64L, std::lround(std::cbrt(kPart * team->extent().flops_f32)) & ~63L);
      const double seconds = measure_call(*team, matmul_call(DType::f32, "nn", {n, n, n}));
      return Reference{seconds, seconds};
    };
  }
  const auto ranks =
      std::make_shared<std::vector<ReferenceProduct>>(static_cast<size_t>(team->ranks()));
  return [ranks, first_core] {
    // A kernel's threads look for more work for a while, on cores that the ranks have now.
    omp_pause_resource_all(omp_pause_soft);
    std::vector<Reference> each(ranks->size());
    std::atomic<size_t> ready{0};
    const auto member = [&](size_t rank) {
      ++ready;
      while (ready < each.size()) std::this_thread::yield();
      each[rank] = (*ranks)[rank].run(first_core + static_cast<int>(rank));
    };
    ThreadGroup threads;
    try {
      for (size_t rank = 1; rank < each.size(); ++rank) threads.start(member, rank);
    } catch (...) {
      ready = each.size();  // nobody waits for the missing
      throw;
    }
    member(0);
    threads.join();
    Reference slowest;
    for (const Reference& r : each) {
      slowest.taken = std::max(slowest.taken, r.taken);
      slowest.least = std::max(slowest.least, r.least);
    }
    return slowest;
  };
}

}  // namespace shardrun
