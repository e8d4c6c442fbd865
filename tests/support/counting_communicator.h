// CountingCommunicator: counts the calls that pass through it, and their bytes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.h"

namespace shardrun::test {

/// Calls of one rank that change data, by kind, and the bytes that it gives to the others in them:
/// each piece once for every rank that needs it, an all_reduce as a reduce_scatter and an
/// all_gather.
struct CommunicatorCalls {
  std::map<std::string, int64_t> by_kind;
  int64_t bytes = 0;
};

/// Another communicator, and all that are split off it, with calls counted in one place.
class CountingCommunicator : public Communicator {
 public:
  /// `over` and `calls` must outlive this.
  CountingCommunicator(Communicator& over, CommunicatorCalls& calls) : over_(over), calls_(calls) {}

  int rank() const override { return over_.rank(); }
  int size() const override { return over_.size(); }
  const Members& members() const override { return over_.members(); }

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

  void barrier() override { over_.barrier(); }
  uint64_t any_of(uint64_t flags) override { return over_.any_of(flags); }
  Memory allocate(int64_t bytes) override { return over_.allocate(bytes); }
  bool recordable() const override { return over_.recordable(); }
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    std::unique_ptr<Communicator> part = over_.split(groups);
    if (part == nullptr) return nullptr;
    auto counting = std::make_unique<CountingCommunicator>(*part, calls_);
    counting->owned_ = std::move(part);
    return counting;
  }
  void set_timeout(double seconds) override { over_.set_timeout(seconds); }
  void abort() noexcept override { over_.abort(); }

 private:
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

  std::unique_ptr<Communicator> owned_;
  Communicator& over_;
  CommunicatorCalls& calls_;
};

}  // namespace shardrun::test
