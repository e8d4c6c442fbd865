// ForwardingCommunicator: another communicator, some of whose calls a test changes or watches.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/communicator.h"

namespace shardrun::test {

/// Does every call by `over`; all_reduce_each by this one's all_reduce, one buffer after another.
class ForwardingCommunicator : public Communicator {
 public:
  int rank() const override { return over_.rank(); }
  int size() const override { return over_.size(); }
  const Members& members() const override { return over_.members(); }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    over_.all_gather(send, recv, counts, dtype);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    over_.reduce_scatter(send, recv, counts, dtype, op, staging);
  }
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    over_.all_reduce(data, count, dtype, op, staging);
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    over_.all_to_all(send, send_counts, recv, recv_counts, dtype);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    over_.broadcast(data, bytes, root);
  }
  void send(const void* data, int64_t bytes, int to) override { over_.send(data, bytes, to); }
  void recv(void* data, int64_t bytes, int from) override { over_.recv(data, bytes, from); }
  void barrier() override { over_.barrier(); }
  uint64_t any_of(uint64_t flags) override { return over_.any_of(flags); }
  Memory allocate(int64_t bytes) override { return over_.allocate(bytes); }
  /// This rank's part of a split, in place of which it gets `around(part)`.
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    std::unique_ptr<Communicator> part = over_.split(groups);
    return part ? around(std::move(part)) : nullptr;
  }
  void set_timeout(double seconds) override { over_.set_timeout(seconds); }
  void abort() noexcept override { over_.abort(); }

 protected:
  /// `over` must outlive this.
  explicit ForwardingCommunicator(Communicator& over) : over_(over) {}
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> over)
      : owned_(std::move(over)), over_(*owned_) {}

  virtual std::unique_ptr<Communicator> around(std::unique_ptr<Communicator> part) = 0;

 private:
  std::unique_ptr<Communicator> owned_;

 protected:
  Communicator& over_;
};

}  // namespace shardrun::test
