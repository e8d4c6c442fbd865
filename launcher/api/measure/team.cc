// Timing calls on several threads at once, or on a device behind the host.
#include "measure/team.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/round_up.h"
#include "base/thread_group.h"
#include "graph/op_def.h"
#include "graph/program.h"
#include "graph/rearranged.h"
#include "program/ops/group_rows.h"
#include "ranks/backend.h"
#include "ranks/threads.h"

namespace shardrun {
namespace {

constexpr double kMostCopies = 256;
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

/// Operands and results of a call, several times, in a rank's scratch memory: taken in turn, they
/// come from where those of a step do: made a while ago, not by the call before.
class Operands {
 public:
  Operands(const CalibrationCall& call, const std::vector<TensorType>& out,
           const PreparedKernel& kernel, double rotation, RankTeam::Scratch& scratch)
      : stream_(scratch.device().stream()) {
    double bytes = 0;
    const auto place = [&](size_t i) { return call.places.empty() ? -1 : call.places[i]; };
    for (const TensorType& t : call.in)
      bytes += static_cast<double>(round_up(byte_size(t), kArenaAlignment));
    for (size_t i = 0; i < out.size(); ++i)
      if (place(i) < 0) bytes += static_cast<double>(round_up(byte_size(out[i]), kArenaAlignment));
    const double copies = std::clamp(rotation / std::max(bytes, 1.0), 1.0, kMostCopies);
    sets_.resize(static_cast<size_t>(copies));
    const auto needed =
        (static_cast<int64_t>(bytes) + round_up(kernel.kept_bytes, kArenaAlignment)) *
        static_cast<int64_t>(sets_.size());
    char* at = scratch.bytes(round_up(kernel.workspace_bytes, kArenaAlignment) + needed);
    workspace_ = at;
    at += round_up(kernel.workspace_bytes, kArenaAlignment);
    for (Set& set : sets_) {
      for (size_t i = 0; i < call.in.size(); ++i) {
        set.in.push_back({at, call.in[i]});
        if (&set == &sets_[0]) {
          fill(scratch.device(), set.in.back(), call, i);
        } else {
          scratch.device().copy(at, sets_[0].in[i].data, byte_size(call.in[i]));
        }
        at += round_up(byte_size(call.in[i]), kArenaAlignment);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        if (place(i) >= 0) {
          set.out.push_back({set.in[static_cast<size_t>(place(i))].data, out[i]});
          continue;
        }
        set.out.push_back({at, out[i]});
        at += round_up(byte_size(out[i]), kArenaAlignment);
      }
      if (kernel.kept_bytes == 0) continue;
      set.kept = at;
      scratch.device().copy_in(at, kernel.keep(args_of(set)).data(), kernel.kept_bytes);
      at += round_up(kernel.kept_bytes, kArenaAlignment);
    }
  }

  KernelArgs args(int64_t run) { return args_of(sets_[static_cast<size_t>(run) % sets_.size()]); }

 private:
  struct Set {
    std::vector<TensorView> in, out;
    char* kept = nullptr;
  };

  KernelArgs args_of(const Set& set) const {
    return {set.in, set.out, workspace_, stream_, set.kept};
  }

  /// Random elements, made on the host, and those over and over; the groups of such numbers.
  static void fill(Device& device, const TensorView& operand, const CalibrationCall& call,
                   size_t index) {
    if (rearranged_operands(call.node) > 0 && index + 1 == call.in.size()) {
      const Tensor groups = groups_of(call);
      device.copy_in(operand.data, groups.data(), byte_size(groups.type()));
      return;
    }
    const int64_t element = size_of(operand.type.dtype), count = operand.count(),
                  made = std::min(count, kMade);
    const Tensor some({operand.type.dtype, {made}});
    fill(some.view(), call, index);
    device.copy_in(operand.data, some.data(), made * element);
    for (int64_t done = made; done < count; done *= 2) {
      device.copy(operand.as<char>() + done * element, operand.data,
                  std::min(done, count - done) * element);
    }
  }

  static Tensor groups_of(const CalibrationCall& call) {
    const RowGroups groups = RowGroups::wanted_by(call.node, call.in).value();
    const Tensor numbers(call.in[groups.numbers]);
    fill(numbers.view(), call, groups.numbers);
    Node node;
    node.op = node.name = "group_rows";
    node.attrs = {{"size", groups.size}, {"offset", groups.offset}};
    return run_reference(node, {&numbers, 1})[0];
  }

  static void fill(const TensorView& operand, const CalibrationCall& call, size_t index) {
    const DType dtype = operand.type.dtype;
    const OpDef& def = op_def(call.node.op);
    const int64_t bound =
        is_float(dtype) || def.index_bound == nullptr
            ? 2
            : def.index_bound(call.node, own_operands(call.node, call.in), index).value_or(2);
    dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      uint32_t state = 12345;
      for (int64_t i = 0; i < operand.count(); ++i) {
        if (i % kMade == 0) state = 12345;
        state = state * 1664525u + 1013904223u;
        const uint32_t random = state >> 8;  // 24 bits; the low ones repeat soon
        if constexpr (std::is_same_v<T, bool>) {
          operand.as<T>()[i] = random >> 23 != 0;
        } else if constexpr (std::is_integral_v<T>) {
          operand.as<T>()[i] = static_cast<T>((random * bound) >> 24);
        } else {
          operand.as<T>()[i] = static_cast<T>(0.1f + 0.8f * static_cast<float>(random) / 0x1p24f);
        }
      }
    });
  }

  static constexpr int64_t kMade = 1 << 18;
  std::vector<Set> sets_;
  char* workspace_ = nullptr;
  void* stream_;
};

}  // namespace

CalibrationCall matmul_call(DType dtype, const std::string& layout,
                            const std::array<int64_t, 3>& size) {
  const auto [m, n, k] = size;
  const bool a = layout[0] == 't', b = layout[1] == 't';
  CalibrationCall call;
  call.node.op = call.node.name = "matmul";
  call.node.attrs.set("equation", std::string(a ? "km" : "mk") + "," + (b ? "nk" : "kn") + "->mn");
  call.in = {{dtype, a ? Shape{k, m} : Shape{m, k}}, {dtype, b ? Shape{n, k} : Shape{k, n}}};
  if (layout == "tn" && dtype == DType::bf16)
    call.node.attrs.set("out_dtype", std::string(to_string(DType::f32)));
  return call;
}

CalibrationCall attention_call(DType dtype, const std::string& op,
                               const std::array<int64_t, 3>& size) {
  const auto [heads, length, width] = size;
  CalibrationCall call;
  call.node.op = call.node.name = op;
  call.node.attrs = {{"causal", int64_t{1}}, {"has_mask", int64_t{0}}, {"scale", 0.125}};
  const TensorType x{dtype, {1, heads, length, width}};
  call.in = op == "attention"
                ? std::vector{x, x, x}
                : std::vector{x, x, x, x, x, TensorType{DType::f32, {1, heads, length}}};
  return call;
}

RankTeam::Work work_of_call(const CalibrationCall& call, double rotation,
                            RankTeam::Scratch& scratch) {
  const std::vector<TensorType> out = infer_types(call.node, call.in);
  auto kernel = std::make_shared<PreparedKernel>(
      select_kernel(backend().kernels, KernelCall{call.node, call.in, out}));
  auto operands = std::make_shared<Operands>(call, out, *kernel, rotation, scratch);
  return {[kernel, operands](int64_t run) { kernel->run(operands->args(run)); },
          kernel->recordable};
}

namespace {

double measure_rotating(RankTeam& team, const CalibrationCall& call, double rotation) {
  return team.measure(
      [&](RankTeam::Scratch& scratch) { return work_of_call(call, rotation, scratch); },
      team.device().is_host() ? kBudget : kBehindBudget);
}

/// FLOP/s of the first square product that takes long enough, or is as large as fits.
double product_rate(RankTeam& team, DType dtype, double memory) {
  double rate = 0;
  for (int64_t n = 256; 3.0 * 4 * static_cast<double>(n * n) < memory; n *= 2) {
    const double seconds = measure_rotating(team, matmul_call(dtype, "nn", {n, n, n}), 0);
    rate = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
    if (seconds > kProbeSeconds) break;
  }
  return rate;
}

/// Bytes/s that a copy reads, which writes as many.
double copy_rate(RankTeam& team, double memory) {
  double rate = 0;
  for (int64_t bytes = 1 << 20; 2.0 * static_cast<double>(bytes) < memory; bytes *= 4) {
    const double seconds = team.measure(
        [&](RankTeam::Scratch& scratch) -> RankTeam::Work {
          char* data = scratch.bytes(2 * bytes);
          return {[&device = scratch.device(), data, bytes](int64_t) {
                    device.copy(data + bytes, data, bytes);
                  },
                  true};
        },
        kBehindBudget);
    rate = static_cast<double>(bytes) / seconds;
    if (seconds > kProbeSeconds) break;
  }
  return rate;
}

}  // namespace

double measure_call(RankTeam& team, const CalibrationCall& call) {
  constexpr double kBeyondAllCaches = 8;
  return measure_rotating(team, call,
                          team.extent().rotation * (call.from_memory ? kBeyondAllCaches : 1));
}

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

double RankTeam::measure(const std::function<Work(Scratch&)>& make, double budget) {
  if (!device_->is_host()) return measure_behind(make, budget);
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
      for (int64_t run = 2; last - begin < budget || close < wanted; ++run) {
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

double RankTeam::measure_behind(const std::function<Work(Scratch&)>& make, double budget) {
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
  const double batch = budget / static_cast<double>(kBatches);
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
