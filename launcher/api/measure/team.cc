// Timing calls on several threads at once, or on a device behind the host.
#include "measure/team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/thread_group.h"
#include "measure/calls.h"
#include "ranks/threads.h"

namespace shardrun {
namespace {

constexpr double kBudget = 1.2e-3;   // s of a measurement
constexpr size_t kCloseCalls = 4;    // are wanted that take at most …
constexpr double kClose = 1.25;      // times the least …
constexpr double kPatience = 40e-3;  // s at the longest
constexpr double kLongCall = 3e-3;   // s of a call; fewer such are made
// A device that works behind the host:
constexpr double kBehindBudget = 4e-3;     // s of a measurement
constexpr int64_t kMostRecorded = 64;      // runs that are noted together
constexpr size_t kBatches = 5;             // are timed, each of as many runs as take …
constexpr double kCallSeconds = 10e-3;     // what the largest products may take
constexpr double kRotationSeconds = 1e-4;  // what copying the rotating operands takes
constexpr double kProbeSeconds = 2e-3;     // a call that is long enough to tell a rate from

/// Lower quartile of the samples that are no outliers: within twice the least.
double typical(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  while (samples.back() > 2 * samples.front()) samples.pop_back();
  return samples[samples.size() / 4];
}

/// FLOP/s of the first square product that takes long enough, or is as large as fits.
double product_rate(RankTeam& team, DType dtype, double memory) {
  double rate = 0;
  for (int64_t n = 256; 3.0 * 4 * static_cast<double>(n * n) < memory; n *= 2) {
    const CalibrationCall call = matmul_call(dtype, "nn", {n, n, n});
    const double seconds =
        team.measure([&](RankTeam::Scratch& scratch) { return work_of_call(call, 0, scratch); });
    rate = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
    if (seconds > kProbeSeconds) break;
  }
  return rate;
}

/// Bytes/s that a copy reads, which writes as many.
double copy_rate(RankTeam& team, double memory) {
  double rate = 0;
  for (int64_t bytes = 1 << 20; 2.0 * static_cast<double>(bytes) < memory; bytes *= 4) {
    const double seconds = team.measure([&](RankTeam::Scratch& scratch) -> RankTeam::Work {
      char* data = scratch.bytes(2 * bytes);
      return {[&device = scratch.device(), data, bytes](int64_t) {
                device.copy(data + bytes, data, bytes);
              },
              true};
    });
    rate = static_cast<double>(bytes) / seconds;
    if (seconds > kProbeSeconds) break;
  }
  return rate;
}

}  // namespace

char* RankTeam::Scratch::bytes(int64_t count) {
  if (count > count_) {
    count_ = 0;
    data_.reset();  // first, so that there is memory for the next
    const int64_t free = device_->free_bytes();
    try {
      data_ = device_->allocate(count);
    } catch (const Error& e) {
      throw e.with_context("scratch memory of a measurement");
    }
    count_ = count;
    taken_ = free - device_->free_bytes();
  }
  return data_.get();
}

RankTeam::RankTeam(int ranks, int threads)
    : device_(std::shared_ptr<Device>(), &host_device()),
      ranks_(ranks),
      threads_(threads),
      scratch_(static_cast<size_t>(ranks), Scratch(host_device())),
      extent_(Extent()) {}

RankTeam::RankTeam(std::shared_ptr<Device> device, int threads)
    : device_(std::move(device)), ranks_(1), threads_(threads), scratch_(1, Scratch(*device_)) {
  if (device_->is_host()) {
    extent_ = Extent();
  } else {
    free_ = device_->free_bytes();
  }
}

const Extent& RankTeam::extent() {
  if (extent_) return *extent_;
  Extent found;
  const double memory = static_cast<double>(device_->free_bytes()) / 16;
  found.rotation = std::clamp(kRotationSeconds * copy_rate(*this, memory), found.rotation,
                              std::max(memory, found.rotation));
  found.times = std::exp2(std::floor(std::log2(found.rotation / Extent().rotation)));
  found.flops_f32 = kCallSeconds * product_rate(*this, DType::f32, memory);
  found.flops_bf16 = kCallSeconds * product_rate(*this, DType::bf16, memory);
  return extent_.emplace(found);
}

double RankTeam::measure(const std::function<Work(Scratch&)>& make) {
  if (!device_->is_host()) return measure_behind(make);
  std::vector<double> samples;
  std::exception_ptr error;
  std::mutex mutex;
  std::atomic<int> ready{0};
  const auto member = [&](int rank) {
    use_threads(threads_);
    std::vector<double> own;
    bool counted = false;
    try {
      const Work work = make(scratch_[static_cast<size_t>(rank)]);
      const double cold = now_seconds();
      work.run(0);
      const bool long_call = now_seconds() - cold > kLongCall;
      if (!long_call) work.run(1);
      const size_t wanted = long_call ? kCloseCalls / 2 : kCloseCalls;
      ++ready;
      counted = true;
      while (ready < ranks_) std::this_thread::yield();
      const double begin = now_seconds();
      double last = begin;
      // On a busy machine most calls may be interrupted: on until some were not.
      double least = 1e300;
      size_t close = 0;
      for (int64_t run = 2; last - begin < kBudget || close < wanted; ++run) {
        work.run(run);
        const double end = now_seconds();
        own.push_back(end - last);
        last = end;
        if (own.back() < least / kClose) close = 0;
        least = std::min(least, own.back());
        if (own.back() < kClose * least) ++close;
        if (last - begin > kPatience) break;
      }
    } catch (...) {
      if (!counted) ++ready;
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    samples.insert(samples.end(), own.begin(), own.end());
  };
  const int before = omp_get_max_threads();
  ThreadGroup threads;
  try {
    for (int rank = 1; rank < ranks_; ++rank) threads.start(member, rank);
  } catch (...) {
    ready = ranks_;  // nobody waits for the missing
    throw;
  }
  member(0);
  threads.join();
  omp_set_num_threads(before);
  if (error) std::rethrow_exception(error);
  return typical(std::move(samples));
}

double RankTeam::measure_behind(const std::function<Work(Scratch&)>& make) {
  const Work work = make(scratch_[0]);
  work.run(0);  // libraries make up their minds
  device_->synchronize();
  look_what_is_taken();
  int64_t run = 1;
  const auto several = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) work.run(run++);
  };
  const auto seconds_of = [&](const std::function<void()>& asked) {
    const double begin = now_seconds();
    asked();
    device_->synchronize();
    return now_seconds() - begin;
  };
  const double batch = kBehindBudget / static_cast<double>(kBatches);
  const double once = std::max(seconds_of([&] { several(1); }), 1e-7);
  const auto together = std::clamp(static_cast<int64_t>(batch / once), int64_t{1}, kMostRecorded);
  const std::unique_ptr<RecordedWork> noted =
      work.recordable ? device_->record([&] { several(together); }) : nullptr;
  const std::function<void(int64_t)> ask = [&](int64_t times) {
    for (int64_t i = 0; i < times; ++i) noted ? noted->run() : several(together);
  };
  const double first = std::max(seconds_of([&] { ask(1); }), 1e-7);
  look_what_is_taken();
  const auto times = std::clamp(static_cast<int64_t>(batch / first), int64_t{1}, int64_t{1000});
  std::vector<double> samples;
  const double begin = now_seconds();
  while (samples.size() < kBatches && (samples.empty() || now_seconds() - begin < kPatience))
    samples.push_back(seconds_of([&] { ask(times); }) / static_cast<double>(times * together));
  return typical(std::move(samples));
}

void RankTeam::note(const std::function<Work(Scratch&)>& make, int64_t runs) {
  const Work work = make(scratch_[0]);
  work.run(0);
  device_->synchronize();
  const std::unique_ptr<RecordedWork> noted = device_->record([&] {
    for (int64_t run = 1; run <= runs; ++run) work.run(run);
  });
  if (noted) noted->run();
  device_->synchronize();
  look_what_is_taken();
}

void RankTeam::look_what_is_taken() {
  taken_ = std::max(taken_, free_ - scratch_[0].taken() - device_->free_bytes());
}

}  // namespace shardrun
