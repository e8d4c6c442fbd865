// FarRank: a rank on a device whose memory the host cannot touch.
#pragma once

#include <memory>

#include "launcher/api/ranks/rank_device.h"
#include "tests/support/far_device.h"

namespace shardrun::test {

class FarRank final : public RankDevice {
 public:
  explicit FarRank(Communicator& host)
      : comm_(make_peer_communicator(host, std::make_shared<FarAccess>(device_))) {}
  Device& device() override { return device_; }
  Communicator& comm() override { return *comm_; }
  DeviceCapacity capacity() const override { return {"far", "far", device_.free_bytes(), true}; }

 private:
  FarDevice device_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace shardrun::test
