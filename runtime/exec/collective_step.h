// CollectiveStep: runs one Collective of a Program through a Communicator.
//
// Communicators move dense pieces. A cut along the outermost dim longer than 1 leaves every
// member's piece dense in the whole, so the call works on the tensors themselves; any other cut
// goes through packed copies in the workspace. all_gather of f32[4, 6] cut 4x3 | 4x3 along dim 1:
// both pieces arrive one after the other in the workspace, then are interleaved row by row.
//
// Exchanges (halo_exchange, halo_add, block_exchange) send what of this rank's tensor lies in each
// peer's box: to neighbours, corners or anybody, as it comes. What stays here is copied directly,
// and peers that share nothing with this rank exchange no message. Which rows change ranks by
// number is known when a step runs (exec/row_exchange.h).
#pragma once

#include "collectives/communicator.h"
#include "device/device.h"
#include "exec/row_exchange.h"
#include "graph/program.h"

namespace shardrun {

/// Fills with what changes no reduction: 0 for sum, 1 for prod, the least value for
/// max, the greatest for min.
void fill_identity(Device& device, void* data, int64_t count, DType dtype, ReduceOp op);
Reduction reduction_of(ReduceOp op);

class CollectiveStep {
 public:
  /// `rank` (global) is in collective's group; buffers lie on `device`.
  CollectiveStep(std::shared_ptr<const Collective> collective, DType dtype, int64_t rank,
                 Device& device = host_device());
  CollectiveStep(Collective collective, DType dtype, int64_t rank, Device& device = host_device())
      : CollectiveStep(std::make_shared<const Collective>(std::move(collective)), dtype, rank,
                       device) {}

  /// Packed copies and the communicator's own staging.
  int64_t workspace_bytes() const {
    return rows_ ? rows_->workspace_bytes() : bytes_.pack + bytes_.unpack + bytes_.staging;
  }
  /// The same of a step that is not there: nothing is prepared for each member.
  static int64_t workspace_bytes(const Collective& collective, DType dtype, int64_t rank);
  /// What this rank gives to the others, in bytes, each piece once for every rank that needs it; an
  /// all_reduce counts as a reduce_scatter and an all_gather. Of rows that change ranks by number,
  /// the most that the plan allows.
  int64_t bytes_sent() const;

  /// Does `run` do nothing but ask the device and the group for the same work each time?
  bool recordable() const { return !rows_; }

  /// `in` and `out` hold this rank's in and out box; they may be one for all_reduce and keep_first.
  /// `group` is the communicator of collective.group in that order (unused if local).
  void run(const void* in, void* out, void* workspace, Communicator* group) const;
  /// The same for a step with any number of operands and results.
  void run(std::span<const TensorView> in, std::span<const TensorView> out, void* workspace,
           Communicator* group) const;

 private:
  /// Part of this rank's tensor that a peer wants, or the other way round.
  struct Piece {
    Box region;  // global
    Box local;   // the tensor's box, as far as this piece is concerned (blocks have one each)
  };
  void prepare_exchange();
  void run_rows_on_host(std::span<const TensorView> in, std::span<const TensorView> out,
                        Communicator& group) const;
  void run_exchange(const void* in, void* out, void* workspace, Communicator* group) const;
  std::vector<Piece> pieces(size_t from, size_t to) const;

  void pack(const void* in, char* packed) const;
  void unpack(const char* packed, void* out) const;

  struct Bytes {
    int64_t pack = 0, unpack = 0, staging = 0;
  };
  static size_t place_of(const Collective& collective, int64_t rank);
  /// Of all but exchanges.
  static Bytes bytes_of(const Collective& collective, DType dtype, size_t me);

  std::shared_ptr<const Collective> collective_;
  Device* device_;  // packs and unpacks
  DType dtype_;
  size_t me_ = 0;                                   // in the group
  std::vector<int64_t> send_counts_, recv_counts_;  // elements, per member
  std::vector<Box> send_boxes_, recv_boxes_;        // what goes to and comes from each member
  std::vector<std::vector<Piece>> sends_, recvs_;   // exchanges: per member
  std::optional<RowExchange> rows_;
  Bytes bytes_;
};

}  // namespace shardrun
