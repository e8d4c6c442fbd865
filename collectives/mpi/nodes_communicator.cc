// Ranks of several nodes: an all_reduce goes through shared memory within a node and by messages
// between one rank of each, in rank order all the same.
//
// Node 0's ranks come first, then node 1's, …, so a running sum that visits the nodes in that
// order, each adding its own ranks' contributions, makes the same bits as one loop over all ranks;
// it travels in the type in which it accumulates. Example, bf16, nodes {0, 1} and {2, 3}: node 0
// sends f32(a0) + f32(a1), node 1 adds f32(a2), then f32(a3), rounds, and sends the result back.
// Between two nodes every byte goes once each way, however many ranks they have. As many ranks of
// each node work side by side, each on a slice, as the smallest node has.
#include <algorithm>
#include <cstring>

#include "base/shape.h"
#include "collectives/mpi/node.h"
#include "collectives/reduce.h"

namespace shardrun::mpi {
namespace {

class NodesCommunicator : public Communicator {
 public:
  /// `messages`: all ranks. `here`: this node's; null if it has one. `lane`: of each node the ranks
  /// with this one's place, in the nodes' order; null where some node has no such rank. `lanes`:
  /// how many there are.
  NodesCommunicator(std::unique_ptr<Communicator> messages, std::unique_ptr<NodeCommunicator> here,
                    std::unique_ptr<Communicator> lane, int lanes)
      : messages_(std::move(messages)),
        here_(std::move(here)),
        lane_(std::move(lane)),
        lanes_(lanes) {
    const auto ranks = static_cast<size_t>(here_ ? here_->size() : 1);
    all_.resize(ranks), out_.resize(ranks), in_.resize(ranks);
    if (lane_) staging_.resize(static_cast<size_t>(lane_->all_reduce_staging(1, DType::i64)));
  }

  int rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    check_reducible("all_reduce", dtype, rank(), size());
    const int64_t bytes = count * size_of(dtype);
    if (bytes <= kSmallAllReduceBytes)
      return messages_->all_reduce(data, count, dtype, op, staging);
    const std::span<void* const> all =
        here_ ? here_->reach(data, bytes) : std::span<void* const>(&data, 1);
    if (!everywhere(!all.empty())) return messages_->all_reduce(data, count, dtype, op, staging);
    if (lane_) {
      const Range slice = chunk(count, lanes_, lane_place());
      for (size_t r = 0; r < all.size(); ++r)
        all_[r] = static_cast<char*>(all[r]) + slice.begin * size_of(dtype);
      const int64_t room = all_reduce_staging_bytes(count, dtype, size());
      reduce_slice(lane_place(), slice.size, dtype, op, staging, room);
    }
    if (here_) here_->barrier();
  }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    messages_->all_gather(send, recv, counts, dtype);
  }
  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    messages_->reduce_scatter(send, recv, counts, dtype, op, staging);
  }
  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    messages_->all_to_all(send, send_counts, recv, recv_counts, dtype);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    messages_->broadcast(data, bytes, root);
  }
  void send(const void* data, int64_t bytes, int to) override { messages_->send(data, bytes, to); }
  void recv(void* data, int64_t bytes, int from) override { messages_->recv(data, bytes, from); }
  void barrier() override { messages_->barrier(); }
  Memory allocate(int64_t bytes) override { return messages_->allocate(bytes); }
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    return messages_->split(groups);
  }
  void set_timeout(double seconds) override {
    messages_->set_timeout(seconds);
    if (here_) here_->set_timeout(seconds);
    if (lane_) lane_->set_timeout(seconds);
  }
  void abort() noexcept override { messages_->abort(); }

 private:
  int lane_place() const { return here_ ? here_->rank() : 0; }

  /// Does it hold on every node? It is the same on all ranks of one.
  bool everywhere(bool holds) {
    int64_t all = holds ? 1 : 0;
    if (lane_ && lane_place() == 0) {
      lane_->all_reduce(&all, 1, DType::i64, Reduction::min, staging_.data());
    }
    if (here_) here_->broadcast(&all, sizeof all, 0);
    return all == 1;
  }

  /// all_: this slice of each of the node's ranks, `own` this rank's.
  void reduce_slice(int own, int64_t count, DType dtype, Reduction op, void* staging,
                    int64_t room) {
    const int node = lane_->rank(), last = lane_->size() - 1;
    const int64_t element = size_of(dtype), wide = size_of(accumulated_type(dtype));
    const int64_t step = std::min(room, kReduceChunkBytes) / wide;
    const auto turn_to = [&](int64_t at) {
      for (size_t r = 0; r < all_.size(); ++r)
        in_[r] = out_[r] = static_cast<char*>(all_[r]) + at * element;
    };
    for (int64_t at = 0; at < count; at += step) {
      const int64_t n = std::min(step, count - at);
      turn_to(at);
      if (node > 0) lane_->recv(staging, n * wide, node - 1);
      accumulate_in_rank_order(staging, node == 0, in_, n, dtype, op);
      if (node < last) {
        lane_->send(staging, n * wide, node + 1);
      } else {
        round_accumulated(staging, out_, n, dtype);
      }
    }
    for (int64_t at = 0; at < count; at += step) {
      const int64_t bytes = std::min(step, count - at) * element;
      turn_to(at);
      void* result = out_[static_cast<size_t>(own)];
      if (node < last) lane_->recv(result, bytes, node + 1);
      if (node > 0) lane_->send(result, bytes, node - 1);
      if (node == last) continue;
      for (void* buffer : out_) {
        if (buffer != result) std::memcpy(buffer, result, static_cast<size_t>(bytes));
      }
    }
  }

  std::unique_ptr<Communicator> messages_;
  std::unique_ptr<NodeCommunicator> here_;
  std::unique_ptr<Communicator> lane_;
  const int lanes_;
  std::vector<void*> all_, out_;  // of the call in progress, by rank of the node
  std::vector<const void*> in_;
  std::vector<char> staging_;  // of everywhere
};

void check(int code, const char* function) {
  SR_REQUIRE(code == MPI_SUCCESS, comm, "sharing memory: ", function,
             " failed: ", error_string(code));
}

}  // namespace

std::unique_ptr<Communicator> communicate(MPI_Comm comm, std::shared_ptr<Node> node,
                                          double timeout) {
  int size = 1, rank = 0;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  auto messages = communicate_by_messages(comm, node, timeout);
  if (size == 1) return messages;
  const int name = node->name();
  std::vector<int> nodes(static_cast<size_t>(size));
  check(MPI_Allgather(&name, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm), "MPI_Allgather");
  std::vector<int> sizes;  // of the nodes, in the order of their first ranks
  for (size_t r = 0; r < nodes.size(); ++r) {
    if (r > 0 && nodes[r] == nodes[r - 1]) {
      ++sizes.back();
    } else if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(r), nodes[r]) ==
               nodes.begin() + static_cast<std::ptrdiff_t>(r)) {
      sizes.push_back(1);
    } else {
      return messages;  // a running sum would visit this node twice
    }
  }
  if (sizes.size() == 1) {
    if (auto here = share_memory(comm, node, messages, timeout)) return here;
    return messages;
  }
  if (*std::max_element(sizes.begin(), sizes.end()) == 1) return messages;

  const auto split = [&](int color, int key) {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
    return part;
  };
  MPI_Comm part = split(name, rank);
  auto within = communicate_by_messages(part, node, timeout);
  const int place = within->rank();
  std::unique_ptr<NodeCommunicator> here;
  if (within->size() > 1) here = share_memory(part, node, within, timeout);
  int shared = within == nullptr || within->size() == 1 ? 1 : 0;
  check(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (shared == 0) return messages;
  const int lanes = *std::min_element(sizes.begin(), sizes.end());
  part = split(place < lanes ? place : MPI_UNDEFINED, rank);
  std::unique_ptr<Communicator> lane;
  if (part != MPI_COMM_NULL) lane = communicate_by_messages(part, node, timeout);
  return std::make_unique<NodesCommunicator>(std::move(messages), std::move(here), std::move(lane),
                                             lanes);
}

}  // namespace shardrun::mpi
