// PeerAccess between threads of one process, where a pointer is all that a peer needs.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "collectives/nccl/peer_communicator.h"

namespace shardrun::test {

class PointerAccess : public PeerAccess {
 public:
  explicit PointerAccess(Device& device) : device_(device) {}
  Device& device() override { return device_; }
  std::string handle_of(const char* base) override {
    std::string handle(sizeof base, '\0');
    std::memcpy(handle.data(), &base, sizeof base);
    return handle;
  }
  std::shared_ptr<char> open(const std::string& handle) override {
    char* base = nullptr;
    std::memcpy(&base, handle.data(), sizeof base);
    return {base, [](char*) {}};
  }

 private:
  Device& device_;
};

}  // namespace shardrun::test
