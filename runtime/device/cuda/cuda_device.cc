// Streams, memory and copies of one GPU.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/cuda/boxes.h"
#include "device/cuda/cuda.h"
#include "device/cuda/faults.h"

namespace shardrun::cuda {

void check(cudaError_t status, std::string_view operation) {
  if (status == cudaSuccess) return;
  const ErrorKind kind =
      status == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::device;
  fail(kind, operation, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

namespace {

/// What cudaErrorInsufficientDriver means, which also comes where there is no driver.
std::string about_driver() {
  const auto text = [](int version) { return str(version / 1000, ".", version % 1000 / 10); };
  int driver = 0, own = 0;  // 12040: CUDA 12.4
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&own), "cudaRuntimeGetVersion");
  if (driver == 0) return "there is no NVIDIA driver";
  return str("NVIDIA's driver is for CUDA ", text(driver), ", and this build for CUDA ", text(own));
}

}  // namespace

int device_count(std::string* why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();  // it would come again with the next call
  if (why != nullptr) {
    *why = status == cudaSuccess                   ? "no GPU can be seen"
           : status == cudaErrorInsufficientDriver ? about_driver()
                                                   : cudaGetErrorString(status);
  }
  return 0;
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return Event(event);
}

Pinned make_pinned(int64_t bytes) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable), "cudaHostAlloc");
  return Pinned(static_cast<char*>(data));
}

namespace {

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct GraphExecDeleter {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDeleter>;
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphExecDeleter>;

class RecordedGraph final : public RecordedWork {
 public:
  RecordedGraph(GraphExec graph, cudaStream_t stream) : graph_(std::move(graph)), stream_(stream) {}
  void run() override {
    check(cudaGraphLaunch(graph_.get(), stream_), "cudaGraphLaunch");
    launched(stream_, kLibraryLaunches);
  }

 private:
  GraphExec graph_;
  cudaStream_t stream_;
};

/// Small copies in, such as the learning rate's, must not wait for the GPU: each takes a slot of a
/// ring of pinned memory that was last used long ago.
class Staging {
 public:
  static constexpr int64_t kSlotBytes = 1 << 20;
  static constexpr size_t kSlots = 8;

  /// Memory, and the event to be recorded after the copy from it. `used`: there was one before.
  struct Slot {
    Pinned memory;
    Event done;
    bool used = false;
  };
  Slot& next() {
    Slot& slot = slots_[at_++ % kSlots];
    if (!slot.memory) slot.memory = make_pinned(kSlotBytes), slot.done = make_event();
    return slot;
  }

 private:
  Slot slots_[kSlots];
  size_t at_ = 0;
};

/// Events between pieces of work, which the GPU goes on with meanwhile.
class EventMarks final : public Marks {
 public:
  explicit EventMarks(CudaDevice& device) : device_(device) {}
  void begin() override {
    device_.synchronize();
    marks_ = 0;
    add();
    begun_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void add() override {
    if (marks_ == events_.size()) {
      cudaEvent_t event = nullptr;
      check(cudaEventCreate(&event), "cudaEventCreate");
      events_.emplace_back(event);
    }
    check(cudaEventRecord(events_[marks_++].get(), device_.cuda_stream()), "cudaEventRecord");
    launched(device_.cuda_stream());
  }
  std::span<const double> times() override {
    device_.synchronize();
    times_.resize(marks_);
    for (size_t i = 0; i < marks_; ++i) {
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[0].get(), events_[i].get()), "cudaEventElapsedTime");
      times_[i] = begun_ + 1e-3 * static_cast<double>(ms);
    }
    return times_;
  }

 private:
  CudaDevice& device_;
  std::vector<Event> events_;  // those of earlier runs are used again
  size_t marks_ = 0;
  double begun_ = 0;
  std::vector<double> times_;
};

class OneDevice final : public CudaDevice, public Launches {
 public:
  explicit OneDevice(int ordinal) : OneDevice(ordinal, std::make_shared<Watches>()) {
    side_.reset(new OneDevice(ordinal, watches_));
  }
  OneDevice(int ordinal, std::shared_ptr<Watches> watches)
      : ordinal_(ordinal), watches_(std::move(watches)) {
    use();
    check(cudaGetDeviceProperties(&properties_, ordinal), "cudaGetDeviceProperties");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    stream_.reset(stream);
    reached_ = make_event();
    mark_ = make_event();
    set_faults_of(stream, &faults_);
    set_launches_of(stream, this);
  }
  ~OneDevice() override {
    set_launches_of(stream_.get(), nullptr);
    set_faults_of(stream_.get(), nullptr);
  }
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

  std::string name() const override {
    return str("cuda:", ordinal_, " (", static_cast<const char*>(properties_.name), ")");
  }
  bool is_host() const override { return false; }
  void* stream() const override { return stream_.get(); }
  cudaStream_t cuda_stream() const override { return stream_.get(); }
  int ordinal() const override { return ordinal_; }
  std::string uuid() const override {
    return {properties_.uuid.bytes, sizeof properties_.uuid.bytes};
  }
  CudaDevice* side() override { return side_.get(); }
  void wait_for(Device& other) override {
    check(cudaEventRecord(reached_.get(), static_cast<cudaStream_t>(other.stream())),
          "cudaEventRecord");
    cuda::launched(other.stream());
    check(cudaStreamWaitEvent(stream_.get(), reached_.get(), 0), "cudaStreamWaitEvent");
    launched(1);
  }
  void passes(int point) override {
    while (points_.size() <= static_cast<size_t>(point)) points_.push_back(make_event());
    check(cudaEventRecord(points_[static_cast<size_t>(point)].get(), stream_.get()),
          "cudaEventRecord");
    launched(1);
  }
  void wait_for_point(Device& other, int point) override {
    const auto& event = static_cast<OneDevice&>(other).points_[static_cast<size_t>(point)];
    check(cudaStreamWaitEvent(stream_.get(), event.get(), 0), "cudaStreamWaitEvent");
    launched(1);
  }
  void use() const override { check(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  std::shared_ptr<char> allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(whole_blocks(bytes)));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(ErrorKind::out_of_memory, name(), ": asked for ", bytes, " bytes, ", free_bytes(),
           " are free");
    }
    check(status, "cudaMalloc");
    std::shared_ptr<char> owned(static_cast<char*>(data), [](char* p) { cudaFree(p); });
    zero(data, bytes);
    synchronize();
    return owned;
  }

  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

  void copy_in(void* to, const void* from, int64_t bytes) override {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    while (bytes > 0) {
      const int64_t some = std::min(bytes, Staging::kSlotBytes);
      Staging::Slot& slot = staging_.next();
      if (slot.used)
        wait_until([&] { return cudaEventQuery(slot.done.get()); }, "a copy to the GPU");
      slot.used = true;
      std::memcpy(slot.memory.get(), source, static_cast<size_t>(some));
      check(cudaMemcpyAsync(target, slot.memory.get(), static_cast<size_t>(some),
                            cudaMemcpyHostToDevice, stream_.get()),
            "a copy to the GPU");
      check(cudaEventRecord(slot.done.get(), stream_.get()), "cudaEventRecord");
      launched(2);
      target += some, source += some, bytes -= some;
    }
  }

  /// A copy to memory that is not pinned returns when it is done, and nobody watches meanwhile:
  /// what is before it is waited for first.
  void copy_out(void* to, const void* from, int64_t bytes) override {
    wait();
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                            stream_.get()),
            "a copy from the GPU");
    synchronize();
  }

  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "a copy on the GPU");
    launched(1);
  }

  void zero(void* to, int64_t bytes) override {
    if (bytes == 0) return;
    check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_.get()), "cudaMemset");
    launched(1);
  }

  void fill(void* to, int64_t count, const void* element, int64_t element_bytes) override {
    launch_fill(stream_.get(), to, count, element, element_bytes);
  }
  void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
                const Box& region, int64_t element_bytes) override {
    if (is_empty(region)) return;
    launch_copy_box(stream_.get(), src, dst, loops_of(src_box, dst_box, region), element_bytes);
  }
  void add_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
               const Box& region, DType dtype) override {
    if (is_empty(region)) return;
    launch_add_box(stream_.get(), src, dst, loops_of(src_box, dst_box, region), dtype);
  }

  void begins(const std::string& step) override { faults_.begins(step); }
  /// What is noted is not asked for yet.
  void launched(int64_t count) override {
    if (noting_) return;
    ahead_.asked(
        count, [&] { wait_until([&] { return cudaEventQuery(mark_.get()); }, kWaiting); },
        [&] { check(cudaEventRecord(mark_.get(), stream_.get()), "cudaEventRecord"); });
  }
  std::unique_ptr<Marks> marks() override { return std::make_unique<EventMarks>(*this); }

  void synchronize() override {
    wait();
    faults_.check();
  }

  void wait() {
    wait_until([&] { return cudaStreamQuery(stream_.get()); }, kWaiting);
  }

  /// While `query` says cudaErrorNotReady.
  template <class Query>
  void wait_until(const Query& query, std::string_view operation) {
    cudaError_t status = cudaErrorNotReady;
    wait_while([&] { return (status = query()) == cudaErrorNotReady; }, *watches_);
    check(status, operation);
  }

  std::shared_ptr<void> add_watch(Watch watch) override { return watches_->add(std::move(watch)); }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t noted = nullptr;
    note(true);
    try {
      work();
    } catch (...) {
      note(false);
      cudaStreamEndCapture(stream_.get(), &noted);
      const Graph graph(noted);
      throw;
    }
    note(false);
    check(cudaStreamEndCapture(stream_.get(), &noted), "cudaStreamEndCapture");
    const Graph graph(noted);
    cudaGraphExec_t ready = nullptr;
    check(cudaGraphInstantiate(&ready, graph.get(), 0), "cudaGraphInstantiate");
    return std::make_unique<RecordedGraph>(GraphExec(ready), stream_.get());
  }

 private:
  static constexpr std::string_view kWaiting = "waiting for the GPU";

  /// The side's stream is noted with this one's.
  void note(bool noting) {
    noting_ = noting;
    if (side_) side_->noting_ = noting;
  }

  /// Another process opens whole blocks by CUDA IPC, and cudaMalloc puts several small pieces into
  /// one; so none is smaller (CUDA Programming Guide, "Interprocess Communication").
  static int64_t whole_blocks(int64_t bytes) {
    constexpr int64_t kBlock = 2 << 20;
    return (bytes + kBlock - 1) / kBlock * kBlock;
  }

  int ordinal_;
  cudaDeviceProp properties_{};
  Stream stream_;
  Staging staging_;
  std::shared_ptr<Watches> watches_;  // its side's are the same
  Event reached_, mark_;              // mark_: ahead_'s
  std::vector<Event> points_;         // by point
  Ahead ahead_;
  bool noting_ = false;
  Faults faults_{[](int64_t bytes) {
    return std::shared_ptr<char>(make_pinned(bytes).release(), PinnedDeleter());
  }};
  std::unique_ptr<OneDevice> side_;
};

}  // namespace

std::unique_ptr<CudaDevice> open_device(int ordinal) {
  std::string why;
  const int count = device_count(&why);
  SR_REQUIRE(ordinal >= 0 && ordinal < count, invalid_input, "there is no GPU ", ordinal, ": ",
             count == 0 ? why : str("this process sees ", count));
  return std::make_unique<OneDevice>(ordinal);
}

}  // namespace shardrun::cuda
