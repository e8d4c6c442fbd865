// CountingCommunicator: counts the calls that pass through it, and their bytes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/forwarding_communicator.h"

namespace shardrun::test {

/// Calls of one rank that change data, by kind, and the bytes that it gives to the others in them:
/// each piece once for every rank that needs it, an all_reduce as a reduce_scatter and an
/// all_gather.
struct CommunicatorCalls {
  std::map<std::string, int64_t> by_kind;
  int64_t bytes = 0;
};

/// Another communicator, and all that are split off it, with calls counted in one place.
class CountingCommunicator : public ForwardingCommunicator {
 public:
  /// `over` and `calls` must outlive this.
  CountingCommunicator(Communicator& over, CommunicatorCalls& calls)
      : ForwardingCommunicator(over), calls_(calls) {}
  CountingCommunicator(std::unique_ptr<Communicator> over, CommunicatorCalls& calls)
      : ForwardingCommunicator(std::move(over)), calls_(calls) {}

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    count("all_gather", (size() - 1) * counts[me()], dtype);
    over_.all_gather(send, recv, counts, dtype);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    count("reduce_scatter", to_others(counts), dtype);
    over_.reduce_scatter(send, recv, counts, dtype, op, staging);
  }
  void all_reduce(void* data, int64_t n, DType dtype, Reduction op, void* staging) override {
    count("all_reduce", 2 * (size() - 1) * n / size(), dtype);
    over_.all_reduce(data, n, dtype, op, staging);
  }
  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override {
    int64_t elements = 0;
    for (const Reduced& buffer : buffers) elements += 2 * (size() - 1) * buffer.count / size();
    count("all_reduce", elements, dtype);
    over_.all_reduce_each(buffers, dtype, op, staging);
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    count("all_to_all", to_others(send_counts), dtype);
    over_.all_to_all(send, send_counts, recv, recv_counts, dtype);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    count("broadcast", root == rank() ? (size() - 1) * bytes : 0, DType::u8);
    over_.broadcast(data, bytes, root);
  }
  void send(const void* data, int64_t bytes, int to) override {
    count("send", bytes, DType::u8);
    over_.send(data, bytes, to);
  }
  void recv(void* data, int64_t bytes, int from) override {
    count("recv", 0, DType::u8);
    over_.recv(data, bytes, from);
  }

  bool recordable() const override { return over_.recordable(); }

 private:
  std::unique_ptr<Communicator> around(std::unique_ptr<Communicator> part) override {
    return std::make_unique<CountingCommunicator>(std::move(part), calls_);
  }
  size_t me() const { return static_cast<size_t>(rank()); }
  int64_t to_others(std::span<const int64_t> counts) const {
    int64_t sum = -counts[me()];
    for (int64_t n : counts) sum += n;
    return sum;
  }
  void count(const std::string& kind, int64_t elements, DType dtype) {
    ++calls_.by_kind[kind];
    calls_.bytes += elements * size_of(dtype);
  }

  CommunicatorCalls& calls_;
};

}  // namespace shardrun::test
