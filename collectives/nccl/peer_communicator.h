// A communicator for ranks whose devices reach each other's memory: several ranks on one GPU, which
// NCCL does not take, or GPUs of one machine.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "collectives/communicator.h"
#include "device/device.h"

namespace shardrun {

/// What it needs of a rank's device.
class PeerAccess {
 public:
  virtual ~PeerAccess() = default;
  virtual Device& device() = 0;
  /// What a peer, in this process or another of this machine, needs to open memory that
  /// device().allocate gave; the same length for all. Null has one too.
  virtual std::string handle_of(const char* base) = 0;
  /// Throws Error(device) where the machine forbids it.
  virtual std::shared_ptr<char> open(const std::string& handle) = 0;
  /// collectives/reduce.h's reduce_in_rank_order, on the device. `out` may be one of `in`.
  virtual void reduce(std::span<const void* const> in, void* out, int64_t count, DType dtype,
                      Reduction op) = 0;
};

/// `host`: the same ranks' communicator for memory of the host, by which they wait for each other
/// and tell where their buffers lie; it also carries what lies outside of allocate's memory, or in
/// memory that a rank could not open (Memory::why_private), and send and recv; it must outlive the
/// communicator. Collective.
std::unique_ptr<Communicator> make_peer_communicator(Communicator& host,
                                                     std::shared_ptr<PeerAccess> access);

}  // namespace shardrun
