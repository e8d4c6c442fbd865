// FarDevice: a device whose memory the host cannot touch, as a GPU's, for tests without one.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/reduce.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "tests/support/chain_on_host.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/pointer_access.h"

namespace shardrun::test {

/// All far memory of the process: closed, so that a read or write of it ends the test, but while
/// somebody on a device works.
class FarMemory {
 public:
  static FarMemory& all() {
    static FarMemory memory;
    return memory;
  }

  std::shared_ptr<char> allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    const auto size = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
    const std::lock_guard lock(mutex_);
    void* data =
        mmap(nullptr, size, users_ > 0 ? kOpen : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SR_REQUIRE(data != MAP_FAILED, out_of_memory, "mmap of ", size, " bytes");
    parts_.push_back({static_cast<char*>(data), size});
    return {static_cast<char*>(data), [this, size](char* p) {
              const std::lock_guard unlock(mutex_);
              std::erase_if(parts_, [&](const Part& part) { return part.data == p; });
              munmap(p, size);
            }};
  }

  /// Open as long as one of these lives.
  class Use {
   public:
    Use() { all().count(1); }
    ~Use() { all().count(-1); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };

 private:
  static constexpr int kOpen = PROT_READ | PROT_WRITE;
  struct Part {
    char* data;
    size_t size;
  };
  void count(int change) {
    const std::lock_guard lock(mutex_);
    const bool was = users_ > 0;
    users_ += change;
    if ((users_ > 0) == was) return;
    for (const Part& part : parts_) mprotect(part.data, part.size, was ? PROT_NONE : kOpen);
  }
  std::mutex mutex_;
  int users_ = 0;
  std::vector<Part> parts_;
};

/// `lazy`: does nothing before somebody waits for it, as a busy stream might.
class FarDevice final : public Device {
 public:
  explicit FarDevice(std::unique_ptr<FarDevice> side = nullptr, bool lazy = false)
      : side_(std::move(side)), lazy_(lazy) {}
  FarDevice* side() override { return side_.get(); }

  std::string name() const override { return "far"; }
  bool is_host() const override { return false; }
  void* stream() const override { return const_cast<FarDevice*>(this); }
  std::shared_ptr<char> allocate(int64_t bytes) override {
    std::shared_ptr<char> memory = FarMemory::all().allocate(bytes);
    if (!memory) return nullptr;
    char* const data = memory.get();
    return {data, [memory = std::move(memory), used = use(bytes)](char*) {}};
  }
  int64_t free_bytes() const override { return (int64_t{1} << 40) - *used_ - taken; }

  void copy_in(void* to, const void* from, int64_t bytes) override {
    synchronize();
    const FarMemory::Use open;
    host_device().copy_in(to, from, bytes);
  }
  void copy_out(void* to, const void* from, int64_t bytes) override {
    synchronize();
    const FarMemory::Use open;
    host_device().copy_out(to, from, bytes);
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    work([=] { host_device().copy(to, from, bytes); });
  }
  void zero(void* to, int64_t bytes) override {
    work([=] { host_device().zero(to, bytes); });
  }
  void fill(void* to, int64_t count, const void* element, int64_t element_bytes) override {
    std::vector<char> value(static_cast<const char*>(element),
                            static_cast<const char*>(element) + element_bytes);
    work([=] { host_device().fill(to, count, value.data(), element_bytes); });
  }
  void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
                const Box& region, int64_t element_bytes) override {
    work([=] { host_device().copy_box(src, src_box, dst, dst_box, region, element_bytes); });
  }
  void add_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
               const Box& region, DType dtype) override {
    work([=] { host_device().add_box(src, src_box, dst, dst_box, region, dtype); });
  }
  void begins(const std::string& step) override { step_ = step; }
  void synchronize() override {
    SR_REQUIRE(noted_ == nullptr, internal, "a wait cannot be noted");
    finish(done_ + queue_.size());
  }

  /// As a stream that is captured: what is noted waits for nothing that is not, and nothing that is
  /// asked of another device is.
  void wait_for(Device& other) override {
    SR_REQUIRE(noted_ == nullptr, internal, "noted work waits for work that is not");
    other.synchronize();
  }
  void passes(int point) override { points_[point] = done_ + queue_.size(); }
  void wait_for_point(Device& other, int point) override {
    SR_REQUIRE(noted_ == nullptr, internal, "noted work waits for work that is not");
    auto& far = static_cast<FarDevice&>(other);
    far.finish(far.points_.at(point));
  }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& steps) override {
    auto recorded = std::make_unique<Noted>();
    noted_ = recorded.get();
    steps();
    noted_ = nullptr;
    recorded->memory = use(note_bytes * static_cast<int64_t>(recorded->pieces.size()));
    ++recordings;
    return recorded;
  }
  /// A clock of its own: marks are work like any other.
  std::unique_ptr<Marks> marks() override { return std::make_unique<FarMarks>(*this); }

  size_t asked() const { return queue_.size(); }  // and not done yet
  int recordings = 0;
  int fused = 0;                      // calls of kernels that do several steps
  int64_t taken = 0, note_bytes = 0;  // of its memory: by others, and by each piece of noted work

  /// Done, with memory open, or noted.
  void work(std::function<void()> piece) {
    auto for_step = [piece, step = step_] {
      try {
        piece();
      } catch (const Error& e) {
        throw step.empty() ? e : e.with_context(step);
      }
    };
    if (noted_ != nullptr) return noted_->pieces.push_back(std::move(for_step));
    if (lazy_) {
      queue_.push_back([for_step = std::move(for_step)] {
        const FarMemory::Use open;
        for_step();
      });
    } else {  // who asked for it adds the step
      const FarMemory::Use open;
      piece();
    }
  }
  /// The same for what opens memory by itself.
  void later(std::function<void()> piece) { lazy_ ? queue_.push_back(piece) : piece(); }

 private:
  struct FarMarks final : Marks {
    explicit FarMarks(FarDevice& device) : device(device) {}
    void begin() override {
      device.synchronize();
      at.clear();
      add();
    }
    void add() override {
      device.later([this] {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        at.push_back(std::chrono::duration<double>(now).count());
      });
    }
    std::span<const double> times() override {
      device.synchronize();
      return at;
    }
    FarDevice& device;
    std::vector<double> at;
  };
  /// The first `count` pieces of all work that was ever asked for. Nothing is left behind one that
  /// fails.
  void finish(size_t count) {
    while (done_ < count) {
      const std::function<void()> piece = std::move(queue_.front());
      queue_.pop_front();
      ++done_;
      try {
        piece();
      } catch (...) {
        done_ += queue_.size();
        queue_.clear();
        throw;
      }
    }
  }

  struct Noted final : RecordedWork {
    void run() override {
      const FarMemory::Use open;
      for (const auto& piece : pieces) piece();
    }
    std::shared_ptr<void> memory;  // counted as used as long as it lives
    std::vector<std::function<void()>> pieces;
  };
  std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
  /// So many bytes are used as long as the returned object lives.
  std::shared_ptr<void> use(int64_t bytes) {
    *used_ += bytes;
    return {nullptr, [used = used_, bytes](void*) { *used -= bytes; }};
  }

  Noted* noted_ = nullptr;
  std::string step_;  // that work is asked for now
  std::unique_ptr<FarDevice> side_;
  bool lazy_;
  std::deque<std::function<void()>> queue_;
  size_t done_ = 0;               // pieces of work, as passes() counts them
  std::map<int, size_t> points_;  // by point: pieces asked for before
};

/// `run` as work of the FarDevice that KernelArgs::stream is.
template <class Run>
std::function<void(const KernelArgs&)> far_work(Run run) {
  return [run = std::move(run)](const KernelArgs& args) {
    const std::vector<TensorView> in(args.in.begin(), args.in.end()),
        out(args.out.begin(), args.out.end());
    static_cast<FarDevice*>(args.stream)->work([=, workspace = args.workspace, kept = args.kept] {
      run(KernelArgs{in, out, workspace, nullptr, kept});
    });
  };
}

inline PreparedKernel fuse_far(const ElementChain& chain) {
  const auto run =
      far_work([chain](const KernelArgs& args) { run_chain(chain, args.in, args.out); });
  PreparedKernel prepared;
  prepared.run = [run](const KernelArgs& args) {
    ++static_cast<FarDevice*>(args.stream)->fused;
    run(args);
  };
  return prepared;
}

/// `list`'s kernels on a FarDevice; some can be fused.
inline KernelList far_kernels(const KernelList& list) {
  KernelList far = list;
  for (KernelImpl& impl : far) {
    impl.prepare = [prepare = impl.prepare](const KernelCall& call) {
      PreparedKernel prepared = prepare(call);
      prepared.run_rows = nullptr;
      prepared.run = far_work(std::move(prepared.run));
      if (fuses(call.node.op)) prepared.fuse = fuse_far;
      return prepared;
    };
  }
  return far;
}

class FarAccess final : public PointerAccess {
 public:
  explicit FarAccess(FarDevice& device) : PointerAccess(device), device_(device) {}
  void reduce(std::span<const void* const> in, void* out, int64_t count, DType dtype,
              Reduction op) override {
    const std::vector<const void*> terms(in.begin(), in.end());
    device_.work([=] { reduce_in_rank_order(terms, out, count, dtype, op); });
  }

 private:
  FarDevice& device_;
};

/// Calls that are asked of a lazy device and done when somebody waits for it.
class LazyCommunicator final : public ForwardingCommunicator {
 public:
  LazyCommunicator(std::unique_ptr<Communicator> over, FarDevice& device)
      : ForwardingCommunicator(std::move(over)), device_(device) {}
  Communicator& host() override { return over_.host(); }
  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    device_.later([=, this, n = copy(counts)] { over_.all_gather(send, recv, n, dtype); });
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    device_.later(
        [=, this, n = copy(counts)] { over_.reduce_scatter(send, recv, n, dtype, op, staging); });
  }
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    device_.later([=, this] { over_.all_reduce(data, count, dtype, op, staging); });
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    device_.later([=, this, out = copy(send_counts), in = copy(recv_counts)] {
      over_.all_to_all(send, out, recv, in, dtype);
    });
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    device_.later([=, this] { over_.broadcast(data, bytes, root); });
  }
  void send(const void* data, int64_t bytes, int to) override {
    device_.later([=, this] { over_.send(data, bytes, to); });
  }
  void recv(void* data, int64_t bytes, int from) override {
    device_.later([=, this] { over_.recv(data, bytes, from); });
  }
  void barrier() override {
    device_.synchronize();
    over_.barrier();
  }

 private:
  std::unique_ptr<Communicator> around(std::unique_ptr<Communicator> part) override {
    return std::make_unique<LazyCommunicator>(std::move(part), device_);
  }
  static std::vector<int64_t> copy(std::span<const int64_t> n) { return {n.begin(), n.end()}; }
  FarDevice& device_;
};

}  // namespace shardrun::test
