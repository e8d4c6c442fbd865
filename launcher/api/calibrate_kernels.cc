// Timing kernels on several threads at once.
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "backend.h"
#include "base/processors.h"
#include "base/round_up.h"
#include "base/thread_group.h"
#include "calibrate.h"
#include "graph/op_def.h"
#include "graph/program.h"
#include "planner/kernel_cost.h"
#include "threads.h"

namespace shardrun {
namespace {

constexpr double kMostCopies = 256;
constexpr double kBudget = 1.2e-3;   // s of a measurement
constexpr size_t kCloseCalls = 4;    // are wanted that take at most …
constexpr double kClose = 1.25;      // times the least …
constexpr double kPatience = 40e-3;  // s at the longest
constexpr double kLongCall = 3e-3;   // s of a call; fewer such are made
constexpr double kLongest = 80e-3;   // s of a call; larger ones are left out
// A device that works behind the host:
constexpr double kBehindBudget = 4e-3;     // s of a measurement
constexpr int64_t kMostRecorded = 64;      // runs that are noted together
constexpr size_t kBatches = 5;             // are timed, each of as many runs as take …
constexpr double kCallSeconds = 10e-3;     // what the largest products may take
constexpr double kRotationSeconds = 1e-4;  // what copying the rotating operands takes
constexpr double kReference = 8e-3;        // s, longer than what a scheduler lets others have
constexpr double kProbeSeconds = 2e-3;     // a call that is long enough to tell a rate from

/// How long this thread has had a core.
double cpu_seconds() {
  timespec at{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
}

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
           const PreparedKernel& kernel, double rotation, Team::Scratch& scratch)
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

  /// Random elements, made on the host, and those over and over.
  static void fill(Device& device, const TensorView& operand, const CalibrationCall& call,
                   size_t index) {
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

  static void fill(const TensorView& operand, const CalibrationCall& call, size_t index) {
    const DType dtype = operand.type.dtype;
    const OpDef& def = op_def(call.node.op);
    const int64_t bound = is_float(dtype) || def.index_bound == nullptr
                              ? 2
                              : def.index_bound(call.node, call.in, index).value_or(2);
    dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      uint32_t state = 12345;
      for (int64_t i = 0; i < operand.count(); ++i) {
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

/// Time that went by in waiting does not count.
bool late(const Watch& watch, double deadline) { return watch.now() - watch.waited() > deadline; }

/// Seconds of the call, kept by the watch; null if there is no kernel for it.
const double* take_if_any(Team& team, Watch& watch, const CalibrationCall& call) {
  try {
    return &watch.take([&team, call] { return measure_call(team, call); });
  } catch (const Error&) {
    return nullptr;
  }
}

/// A grid whose figures a watch keeps. One that is null was too large or too late, and is put as
/// what one step back along the first dim that has one takes, as many times more to the given
/// power.
struct BegunGrid {
  std::array<std::vector<double>, 3> sizes;
  std::array<double, 3> powers;
  std::vector<const double*> seconds = {};  // none: there is no such kernel

  Grid finished() const {
    Grid grid{sizes, {}};
    const std::array<size_t, 3> step = {sizes[1].size() * sizes[2].size(), sizes[2].size(), 1};
    for (size_t i = 0; i < seconds.size(); ++i) {
      double value = seconds[i] ? *seconds[i] : 0;
      for (size_t d = 0; d < 3 && value == 0; ++d) {
        const size_t at = i / step[d] % sizes[d].size();
        if (at == 0) continue;
        value = grid.seconds[i - step[d]] * std::pow(sizes[d][at] / sizes[d][at - 1], powers[d]);
      }
      grid.seconds.push_back(rounded(value));
    }
    for (size_t i = grid.seconds.size(); i-- > 0;) {  // as in curve_of
      for (size_t d = 0; d < 3; ++d) {
        if (i / step[d] % sizes[d].size() + 1 < sizes[d].size())
          grid.seconds[i] = std::min(grid.seconds[i], grid.seconds[i + step[d]]);
      }
    }
    return grid;
  }
};

BegunGrid begin_grid(Team& team, Watch& watch, const std::array<std::vector<double>, 3>& sizes,
                     const std::array<double, 3>& powers, double deadline,
                     const std::function<CalibrationCall(const std::array<int64_t, 3>&)>& make) {
  BegunGrid grid{sizes, powers};
  for (const double a : sizes[0]) {
    for (const double b : sizes[1]) {
      for (const double c : sizes[2]) {
        const CalibrationCall call =
            make({static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c)});
        const double flops = work_of(call.node, call.in, infer_types(call.node, call.in)).flops;
        const double* seconds = nullptr;
        if (flops <= team.extent().flops(call.in[0].dtype) && !late(watch, deadline))
          seconds = take_if_any(team, watch, call);
        if (grid.seconds.empty() && !seconds) return grid;
        grid.seconds.push_back(seconds);
      }
    }
  }
  return grid;
}

/// Of products, each four times the one before, to the first whose cube is beyond `flops`.
std::vector<double> edges(double flops) {
  std::vector<double> out = {8};
  while (2 * out.back() * out.back() * out.back() < flops) out.push_back(4 * out.back());
  constexpr size_t kMost = 6;
  if (out.size() > kMost) out.erase(out.begin(), out.end() - kMost);
  return out;
}

}  // namespace

double CalibrationOp::times(const Extent& extent, DType dtype) const {
  return by_flops ? extent.flops(dtype) / Extent().flops(dtype) : extent.times;
}

CalibrationCall matmul_call(DType dtype, const std::string& layout,
                            const std::array<int64_t, 3>& size) {
  const auto [m, n, k] = size;
  const bool a = layout[0] == 't', b = layout[1] == 't';
  CalibrationCall call;
  call.node.op = call.node.name = "matmul";
  call.node.attrs.set("equation", std::string(a ? "km" : "mk") + "," + (b ? "nk" : "kn") + "->mn");
  call.in = {{dtype, a ? Shape{k, m} : Shape{m, k}}, {dtype, b ? Shape{n, k} : Shape{k, n}}};
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

namespace {

Team::Work work_of_call(const CalibrationCall& call, double rotation, Team::Scratch& scratch) {
  const std::vector<TensorType> out = infer_types(call.node, call.in);
  auto kernel = std::make_shared<PreparedKernel>(
      select_kernel(backend().kernels, KernelCall{call.node, call.in, out}));
  auto operands = std::make_shared<Operands>(call, out, *kernel, rotation, scratch);
  return {[kernel, operands](int64_t run) { kernel->run(operands->args(run)); },
          kernel->recordable};
}

double measure_rotating(Team& team, const CalibrationCall& call, double rotation) {
  return team.measure([&](Team::Scratch& scratch) { return work_of_call(call, rotation, scratch); },
                      team.device().is_host() ? kBudget : kBehindBudget);
}

/// FLOP/s of the first square product that takes long enough, or is as large as fits.
double product_rate(Team& team, DType dtype, double memory) {
  double rate = 0;
  for (int64_t n = 256; 3.0 * 4 * static_cast<double>(n * n) < memory; n *= 2) {
    const double seconds = measure_rotating(team, matmul_call(dtype, "nn", {n, n, n}), 0);
    rate = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
    if (seconds > kProbeSeconds) break;
  }
  return rate;
}

/// Bytes/s that a copy reads, which writes as many.
double copy_rate(Team& team, double memory) {
  double rate = 0;
  for (int64_t bytes = 1 << 20; 2.0 * static_cast<double>(bytes) < memory; bytes *= 4) {
    const double seconds = team.measure(
        [&](Team::Scratch& scratch) -> Team::Work {
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

double measure_call(Team& team, const CalibrationCall& call) {
  constexpr double kBeyondAllCaches = 8;
  return measure_rotating(team, call,
                          team.extent().rotation * (call.from_memory ? kBeyondAllCaches : 1));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double rounded(double seconds) {
  const double unit = std::pow(10.0, std::floor(std::log10(seconds)) - 2);
  return std::round(seconds / unit) * unit;
}

Curve curve_of(const std::vector<std::pair<double, const double*>>& points) {
  Curve curve;
  for (const auto& [size, seconds] : points) curve.points.emplace_back(size, rounded(*seconds));
  for (size_t i = curve.points.size(); i-- > 1;)
    curve.points[i - 1].second = std::min(curve.points[i - 1].second, curve.points[i].second);
  return curve;
}

char* Team::Scratch::bytes(int64_t count) {
  if (count > count_) {
    count_ = 0;
    data_.reset();  // first, so that there is room for the next
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

Team::Team(int ranks, int threads)
    : device_(std::shared_ptr<Device>(), &host_device()),
      ranks_(ranks),
      threads_(threads),
      scratch_(static_cast<size_t>(ranks), Scratch(host_device())),
      extent_(Extent()) {}

Team::Team(std::shared_ptr<Device> device, int threads)
    : device_(std::move(device)), ranks_(1), threads_(threads), scratch_(1, Scratch(*device_)) {
  if (device_->is_host()) {
    extent_ = Extent();
  } else {
    free_ = device_->free_bytes();
  }
}

const Extent& Team::extent() {
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

double Team::measure(const std::function<Work(Scratch&)>& make, double budget) {
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

double Team::measure_behind(const std::function<Work(Scratch&)>& make, double budget) {
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

void Team::note(const std::function<Work(Scratch&)>& make, int64_t runs) {
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

void Team::look_what_is_taken() {
  taken_ = std::max(taken_, free_ - scratch_[0].taken() - device_->free_bytes());
}

int64_t measure_libraries(Team& team) {
  constexpr int64_t kLaunches = 4096;  // of a large model's step
  CalibrationCall add;
  add.node.op = add.node.name = "add";
  add.in.assign(2, {DType::f32, {256}});
  team.note([&](Team::Scratch& scratch) { return work_of_call(add, 0, scratch); }, kLaunches);
  return team.taken();
}

std::function<MeasuredKernels()> measure_kernels(Team& team, Watch& watch, double deadline) {
  struct Op {
    bool by_flops = false;
    std::vector<std::pair<double, const double*>> points = {};
  };
  std::map<MeasuredKernels::Key, BegunGrid> grids;
  std::map<MeasuredKernels::Key, Op> ops;
  const double begin = watch.now() - watch.waited();
  const double part = begin + 0.7 * (deadline - begin);
  const auto add = [&](const std::string& op, const std::string& variant, DType dtype,
                       BegunGrid grid) {
    if (!grid.seconds.empty()) grids[{op, variant, dtype}] = std::move(grid);
  };
  std::vector<double> heads = {1, 16};
  if (team.extent().times > 1) heads.push_back(16 * team.extent().times);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<double> matmul = edges(team.extent().flops(dtype));
    for (const std::string layout : {"nn", "nt", "tn"}) {
      add("matmul", layout, dtype,
          begin_grid(team, watch, {matmul, matmul, matmul}, {1, 1, 1}, part,
                     [&](const auto& size) { return matmul_call(dtype, layout, size); }));
    }
    for (const std::string op : {"attention", "attention_grad"}) {
      add(op, "", dtype,
          begin_grid(team, watch, {heads, {32, 64, 128, 256, 512, 1024, 2048}, {16, 32, 64, 128}},
                     {1, 2, 1}, part,
                     [&](const auto& size) { return attention_call(dtype, op, size); }));
    }
  }
  for (const CalibrationOp& op : calibration_ops()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Op measured{op.by_flops};
      for (const double of_a_core : op.sizes) {
        const double wanted = of_a_core * op.times(team.extent(), dtype);
        const auto& points = measured.points;
        if (late(watch, deadline) ||
            (!points.empty() && *points.back().second * wanted / points.back().first > kLongest))
          break;
        CalibrationCall call;
        try {
          call = op.call(dtype, wanted);
        } catch (const Error&) {
          break;
        }
        const KernelWork work = work_of(call.node, call.in, infer_types(call.node, call.in));
        const double size = std::round(op.by_flops ? work.flops : work.bytes);
        if (!points.empty() && size <= points.back().first) continue;
        const double* seconds = take_if_any(team, watch, call);
        if (!seconds) break;
        measured.points.emplace_back(size, seconds);
      }
      if (!measured.points.empty()) ops[{op.op, op.variant, dtype}] = std::move(measured);
    }
  }
  return [ranks = team.ranks(), threads = team.threads(), grids = std::move(grids),
          ops = std::move(ops)] {
    MeasuredKernels out;
    out.ranks = ranks;
    out.threads = threads;
    for (const auto& [key, grid] : grids) out.grids[key] = grid.finished();
    for (const auto& [key, op] : ops) out.ops[key] = {op.by_flops, curve_of(op.points)};
    return out;
  };
}

namespace {

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
    const double begin = now_seconds(), begin_busy = cpu_seconds();
    for (int64_t i = 0; i < times_; ++i) call_.run(i);
    const double taken = now_seconds() - begin, busy = cpu_seconds() - begin_busy;
    omp_set_num_threads(before);
    return {taken / static_cast<double>(times_), busy / static_cast<double>(times_)};
  }

 private:
  Team::Scratch scratch_{host_device()};
  Team::Work call_;
  int64_t times_ = 1;
};

}  // namespace

std::function<Reference()> reference_of(const std::shared_ptr<Team>& team, int first_core) {
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
