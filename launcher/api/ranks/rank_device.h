// A rank's device with the communicator for memory of it, and what lies there as the host sees it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "collectives/communicator.h"
#include "device/device.h"

namespace shardrun {

/// What a rank's device has for arenas.
struct DeviceCapacity {
  std::string device;      // "cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string id;          // equal for ranks that share it
  int64_t bytes = 0;       // for all that do
  bool libraries = false;  // of these, some are taken by libraries later: Cluster::library_bytes
  /// Of these, what the rank's process takes besides its arena (ranks/process_limit.h). Threads of
  /// one process divide it.
  int64_t process_bytes = 0;
};

/// One rank's device, and the communicator of all ranks for memory of it.
class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual Device& device() = 0;
  virtual Communicator& comm() = 0;
  virtual DeviceCapacity capacity() const = 0;
  /// Before the first step: has the ranks' kernels choose alike among ways to do a call, where they
  /// would measure for themselves; `rehearse` runs every step once. Collective.
  virtual void agree(const std::function<void()>& /*rehearse*/) {}
};

/// Collective over `host`, the ranks' communicator for memory of the host, which must outlive what
/// is returned. On the thread that will run the rank. Throws device, or invalid_input.
using OpenDevice = std::function<std::unique_ptr<RankDevice>(Communicator& host)>;

/// All memory of this machine, or of the control group, used or not.
DeviceCapacity host_capacity();

/// This process's memory.
class HostRank final : public RankDevice {
 public:
  explicit HostRank(Communicator& host) : host_(host) {}
  Device& device() override { return host_device(); }
  Communicator& comm() override { return host_; }
  DeviceCapacity capacity() const override;

 private:
  Communicator& host_;
};

/// Tensors of a device where the host can read and write them: themselves on the host, else copies.
///   HostViews shown(device, results);
///   look_at_or_change(shown.views());
///   shown.put_back();
class HostViews {
 public:
  HostViews(Device& device, std::span<const TensorView> there)
      : device_(device), there_(there.begin(), there.end()), views_(there_) {
    if (device.is_host()) return;
    for (TensorView& view : views_) {
      Tensor copy(view.type);
      device.copy_out(copy.data(), view.data, byte_size(view.type));
      copies_.push_back(std::move(copy));
      view = copies_.back().view();
    }
  }
  std::span<const TensorView> views() const { return views_; }
  /// What the host has changed, to where it came from.
  void put_back() {
    for (size_t i = 0; i < copies_.size(); ++i)
      device_.copy_in(there_[i].data, copies_[i].data(), byte_size(there_[i].type));
  }

 private:
  Device& device_;
  std::vector<TensorView> there_, views_;
  std::vector<Tensor> copies_;
};

}  // namespace shardrun
