// RankTeam: times some work, as several ranks run it at once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"

namespace shardrun {

/// What is worth measuring: as much as some milliseconds are enough for.
struct Extent {
  double rotation = 16 << 20;  // bytes that operands are taken from in turn: beyond a core's caches
  double times = 1;            // sizes of calls, in those for a core
  double flops_f32 = 1.2e9, flops_bf16 = 1.2e9;  // of a call at most
  double flops(DType dtype) const { return dtype == DType::bf16 ? flops_bf16 : flops_f32; }
};

/// What `work` takes undisturbed, in seconds, when `ranks` threads run it at the same time,
/// each with `threads` threads of its own for kernels. Every rank makes its work on its thread;
/// run i of a rank calls work.run(i). Runs for some milliseconds, longer where it is disturbed.
///
/// A device that works behind the host is asked for many runs and waited for once, as in a step of
/// training: noted by Device::record where that can be.
class RankTeam {
 public:
  struct Work {
    std::function<void(int64_t run)> run;
    bool recordable = false;
  };
  /// Memory of one rank, kept from one measurement to the next with its pages touched.
  class Scratch {
   public:
    explicit Scratch(Device& device) : device_(&device) {}
    Device& device() const { return *device_; }
    char* bytes(int64_t count);  // with anything in it, and no longer what was given before
    int64_t taken() const { return taken_; }  // bytes of the device, as it counts them

   private:
    Device* device_;
    std::shared_ptr<char> data_;
    int64_t count_ = 0, taken_ = 0;
  };

  RankTeam(int ranks, int threads);  // on the host
  /// One rank with the device for itself.
  RankTeam(std::shared_ptr<Device> device, int threads);
  int ranks() const { return ranks_; }
  int threads() const { return threads_; }
  Device& device() const { return *device_; }
  /// Of a device found out by measuring, once.
  const Extent& extent();
  double measure(const std::function<Work(Scratch&)>& make);

  /// Notes and does so many runs: as a step of that many launches is.
  void note(const std::function<Work(Scratch&)>& make, int64_t runs);
  /// Bytes of the device that were taken, at most, since the team was made, besides its scratch
  /// memory: by libraries when kernels first ran, and by noted work. 0 on the host.
  int64_t taken() const { return taken_; }

 private:
  double measure_behind(const std::function<Work(Scratch&)>& make);
  void look_what_is_taken();

  std::shared_ptr<Device> device_;
  int ranks_, threads_;
  std::vector<Scratch> scratch_;
  std::optional<Extent> extent_;
  int64_t free_ = 0, taken_ = 0;  // free_: bytes of the device, when the team was made
};

}  // namespace shardrun
