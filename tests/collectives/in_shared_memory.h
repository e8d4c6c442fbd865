// InSharedMemory: a Communicator whose buffers all lie in memory that its ranks share.
#pragma once

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "device/device.h"
#include "tests/support/forwarding_communicator.h"

namespace shardrun::test {

/// Copies every call's buffers into Communicator::allocate's memory and the results back, so that
/// whatever holds for a Communicator can be asked of its ways through shared memory too.
class InSharedMemory : public ForwardingCommunicator {
 public:
  /// `capacity`: bytes of a call's buffers, at most. `device`: whose memory that is.
  InSharedMemory(Communicator& over, int64_t capacity, Device& device = host_device())
      : ForwardingCommunicator(over),
        capacity_(capacity),
        device_(device),
        memory_(over.allocate(capacity)) {}
  InSharedMemory(std::unique_ptr<Communicator> over, int64_t capacity, Device& device)
      : ForwardingCommunicator(std::move(over)),
        capacity_(capacity),
        device_(device),
        memory_(over_.allocate(capacity)) {}

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    begin();
    const int64_t element = size_of(dtype);
    const auto mine = static_cast<size_t>(rank());
    const int64_t all = sum(counts) * element;
    const int64_t own = mine < counts.size() ? counts[mine] * element : 0;
    char* shared_recv = in(recv, all);
    const auto at = static_cast<const char*>(send) - static_cast<const char*>(recv);
    const bool in_place = at >= 0 && at + own <= all && own > 0;
    over_.all_gather(in_place ? shared_recv + at : in(send, own), shared_recv, counts, dtype);
    out(shared_recv, recv, all);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    begin();
    const int64_t element = size_of(dtype);
    const int64_t own = counts[static_cast<size_t>(rank())] * element;
    char* shared_send = in(send, sum(counts) * element);
    char* shared_recv = in(recv, own);
    over_.reduce_scatter(shared_send, shared_recv, counts, dtype, op,
                         there(staging, over_.reduce_scatter_staging(counts, dtype)));
    out(shared_recv, recv, own);
  }
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    begin();
    char* shared = in(data, count * size_of(dtype));
    over_.all_reduce(shared, count, dtype, op,
                     there(staging, over_.all_reduce_staging(count, dtype)));
    out(shared, data, count * size_of(dtype));
  }
  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override {
    begin();
    shared_.clear();
    for (const Reduced& b : buffers)
      shared_.push_back({in(b.data, b.count * size_of(dtype)), b.count});
    over_.all_reduce_each(shared_, dtype, op,
                          there(staging, over_.all_reduce_each_staging(buffers, dtype)));
    for (size_t b = 0; b < buffers.size(); ++b)
      out(static_cast<char*>(shared_[b].data), buffers[b].data, buffers[b].count * size_of(dtype));
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    begin();
    const int64_t element = size_of(dtype), received = sum(recv_counts) * element;
    char* shared_send = in(send, sum(send_counts) * element);
    char* shared_recv = in(recv, received);
    over_.all_to_all(shared_send, send_counts, shared_recv, recv_counts, dtype);
    out(shared_recv, recv, received);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    begin();
    char* shared = in(data, bytes);
    over_.broadcast(shared, bytes, root);
    out(shared, data, bytes);
  }
  void send(const void* data, int64_t bytes, int to) override {
    begin();
    over_.send(in(data, bytes), bytes, to);
  }
  void recv(void* data, int64_t bytes, int from) override {
    begin();
    char* shared = in(data, bytes);
    over_.recv(shared, bytes, from);
    out(shared, data, bytes);
  }

 private:
  std::unique_ptr<Communicator> around(std::unique_ptr<Communicator> part) override {
    return std::make_unique<InSharedMemory>(std::move(part), int64_t{64} << 10, device_);
  }
  static int64_t sum(std::span<const int64_t> counts) {
    int64_t s = 0;
    for (int64_t n : counts) s += n;
    return s;
  }
  void begin() { used_ = 0; }
  char* take(int64_t bytes) {
    SR_REQUIRE(used_ + bytes <= capacity_, internal, "a test's buffers have more than ", capacity_,
               " bytes");
    char* at = memory_.data.get() + used_;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  char* in(const void* data, int64_t bytes) {
    char* at = take(bytes);
    device_.copy_in(at, data, bytes);
    return at;
  }
  void out(const char* shared, void* data, int64_t bytes) { device_.copy_out(data, shared, bytes); }
  /// Staging is the caller's, where the device can reach that.
  void* there(void* staging, int64_t bytes) { return device_.is_host() ? staging : take(bytes); }

  int64_t capacity_;
  Device& device_;
  Memory memory_;
  int64_t used_ = 0;
  std::vector<Reduced> shared_;  // of the call in progress
};

}  // namespace shardrun::test
