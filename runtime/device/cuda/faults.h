// Faults: how kernels tell the host that a number which they were given is out of range.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "device/cuda/index.h"

namespace shardrun::cuda {

/// In memory of the host that the device writes, in one piece: of several faults one is reported.
struct alignas(16) Fault {
  int64_t value, place;  // the number and where it stands; -1: all is right
};

/// `fault` may be null: then nothing is reported.
SR_HOST_DEVICE inline void report(Fault* fault, int64_t value, int64_t place) {
  if (fault == nullptr) return;
#ifdef __CUDA_ARCH__
  *reinterpret_cast<longlong2*>(fault) = make_longlong2(value, place);
#else
  *fault = {value, place};
#endif
}

/// One device's. A kernel gets a Fault when it is launched; whoever waits for the device
/// anyway then looks whether one was written. So nothing waits for it, and a recorded step can do
/// it. Example:
///   faults.begins("rank 0: step 'loss'");
///   launch(…, faults.of_step("label", "token", 10));
///   … the device has done all …
///   faults.check();     // throws: rank 0: step 'loss': label 12 of token 3 is outside [0, 10)
class Faults {
 public:
  /// Makes memory that the host and the device can reach.
  using Allocate = std::function<std::shared_ptr<char>(int64_t bytes)>;
  explicit Faults(Allocate allocate) : allocate_(std::move(allocate)) {}

  /// What is launched from now on belongs to this step, "" to none.
  void begins(const std::string& step) { step_ = step; }
  /// The step's for a `number` that each `owner` has, wanted in [0, bound). It stays where it is.
  Fault* of_step(const std::string& number, const std::string& owner, int64_t bound);
  /// The device has done all that it was asked for. Throws invalid_input for one that was written,
  /// with its step named unless that has not ended; all are right then.
  void check();

 private:
  using Kind = std::tuple<std::string, std::string, std::string, int64_t>;  // step and the above
  static constexpr int64_t kChunk = 64;  // faults in a piece of memory

  Allocate allocate_;
  std::string step_;
  std::map<Kind, Fault*> known_;
  std::vector<std::shared_ptr<char>> memory_;
};

/// As of_step, of the device whose kernels are launched on `stream`; null if there is none.
Fault* fault_of(const void* stream, const std::string& number, const std::string& owner,
                int64_t bound);
/// A device says which are its own, and with null that it ends.
void set_faults_of(const void* stream, Faults* faults);

}  // namespace shardrun::cuda
