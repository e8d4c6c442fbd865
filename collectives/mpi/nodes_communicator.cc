// Ranks of several nodes: within a node they exchange through shared memory, and between nodes a
// byte goes once for all of a node's ranks, in rank order all the same. As many ranks of each node
// as the smallest one has work side by side between nodes, each on a slice; such ranks of the same
// place in their nodes make a lane.
//
// Sums. Node 0's ranks come first, then node 1's, …, so a running sum that visits the nodes in that
// order, each adding its own ranks' contributions, makes the same bits as one loop over all ranks;
// it travels in the type in which it accumulates. Example, bf16, nodes {0, 1} and {2, 3}: node 0
// sends f32(a0) + f32(a1), node 1 adds f32(a2), then f32(a3), and rounds. The result of an
// all_reduce goes back from node to node; of a reduce_scatter the part of each rank goes to its
// node alone, while the sums behind it are still under way.
//
// An all_gather is one within each node, then every node sends its ranks' parts to each other node
// once, and each rank takes from its peers' memory what came to them.
#include <algorithm>
#include <cstring>

#include "base/shape.h"
#include "collectives/mpi/node.h"
#include "collectives/reduce.h"

namespace shardrun::mpi {
namespace {

/// The ranks of a node, which follow one another.
struct NodeRanks {
  int first = 0, size = 0;
};

class NodesCommunicator : public Communicator {
 public:
  /// `nodes`: all of them, in the order of their ranks. `messages`: all ranks. `here`: this node's;
  /// null if it has one. `lane`: of each node the ranks with this one's place, in the nodes' order;
  /// null where some node has no such rank. `lanes`: how many there are.
  NodesCommunicator(std::vector<NodeRanks> nodes, std::unique_ptr<Communicator> messages,
                    std::unique_ptr<SharingCommunicator> here,
                    std::unique_ptr<MessageCommunicator> lane, int lanes)
      : nodes_(std::move(nodes)),
        messages_(std::move(messages)),
        here_(std::move(here)),
        lane_(std::move(lane)),
        lanes_(lanes) {
    for (size_t n = 0; n < nodes_.size(); ++n)
      node_of_.insert(node_of_.end(), static_cast<size_t>(nodes_[n].size), static_cast<int>(n));
    node_ = node_of_[static_cast<size_t>(rank())];
    const auto ranks = static_cast<size_t>(nodes_[static_cast<size_t>(node_)].size);
    reached_.resize(ranks), results_.resize(ranks), out_.resize(ranks), in_.resize(ranks);
    if (lane_) staging_.resize(static_cast<size_t>(lane_->all_reduce_staging(1, DType::i64)));
  }

  int rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }
  const Members& members() const override { return messages_->members(); }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    const Reduced one{data, count};
    all_reduce_each({&one, 1}, dtype, op, staging);
  }

  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override {
    check_reducible("all_reduce", dtype, *this);
    const int64_t count = count_of(buffers);
    if (count * size_of(dtype) <= kSmallAllReduceBytes || !everywhere(reach(buffers, dtype)))
      return messages_->all_reduce_each(buffers, dtype, op, staging);
    if (lane_) {
      const int64_t staging_bytes = all_reduce_each_staging(buffers, dtype);
      reduce_slice(buffers, shard_range(count, lanes_, place()), dtype, op,
                   static_cast<char*>(staging), staging_bytes);
    }
    if (here_) here_->barrier();
  }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    check_counts("all_gather", counts, *this);
    const int64_t element = size_of(dtype), bytes = sum_of(counts) * element;
    if (bytes <= kSmallAllReduceBytes || !everywhere(reach(recv, bytes, reached_)))
      return messages_->all_gather(send, recv, counts, dtype);
    char* all = static_cast<char*>(recv);
    char* own = all + part_of(node_, counts).begin * element;
    if (here_) {
      const NodeRanks& ranks = nodes_[static_cast<size_t>(node_)];
      here_->all_gather(send, own,
                        counts.subspan(static_cast<size_t>(ranks.first), reached_.size()), dtype);
    } else if (const int64_t mine = part_of(node_, counts).size; mine > 0 && send != own) {
      std::memmove(own, send, static_cast<size_t>(mine * element));
    }
    const int nodes = static_cast<int>(nodes_.size());
    if (lane_) {
      begin_exchange();
      for (int i = 1; i < nodes; ++i) {
        const int from = (node_ + nodes - i) % nodes, to = (node_ + i) % nodes;
        const Range theirs = slice_of(from, place(), counts);
        const Range ours = slice_of(node_, place(), counts);
        received_.push_back({from, all + theirs.begin * element, theirs.size * element});
        sent_.push_back({to, all + ours.begin * element, ours.size * element});
      }
      lane_->exchange(sent_, received_);
    }
    if (!here_) return;
    here_->barrier();
    for (int i = 1; i < nodes; ++i) {
      for (int l = 0; l < lanes_; ++l) {
        if (l == place()) continue;
        const Range came = slice_of((node_ + i) % nodes, l, counts);
        std::memcpy(all + came.begin * element,
                    reached_[static_cast<size_t>(l)] + came.begin * element,
                    static_cast<size_t>(came.size * element));
      }
    }
    here_->barrier();
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    check_counts("reduce_scatter", counts, *this);
    check_reducible("reduce_scatter", dtype, *this);
    const int64_t all = sum_of(counts) * size_of(dtype);
    const int64_t own = counts[static_cast<size_t>(rank())] * size_of(dtype);
    if (all <= kSmallAllReduceBytes || !chain_sends_less(counts, dtype))
      return messages_->reduce_scatter(send, recv, counts, dtype, op, staging);
    const bool sends = reach(send, all, reached_), receives = reach(recv, own, results_);
    if (!everywhere(sends && receives))
      return messages_->reduce_scatter(send, recv, counts, dtype, op, staging);
    if (lane_) scatter_slice(counts, dtype, op, static_cast<char*>(staging));
    if (here_) here_->barrier();
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
  uint64_t any_of(uint64_t flags) override { return messages_->any_of(flags); }
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
  /// What a lane has to sum for one rank.
  struct Piece {
    int owner;
    int64_t begin, size;  // elements of everything
  };

  int place() const { return here_ ? here_->rank() : 0; }

  /// Where the buffers of this node's ranks lie. False if one is out of its peers' reach.
  bool reach(const void* data, int64_t bytes, std::vector<char*>& buffers) {
    if (!here_) {
      buffers[0] = const_cast<char*>(static_cast<const char*>(data));
      return true;
    }
    const std::span<char* const> all = here_->reach(data, bytes);
    std::copy(all.begin(), all.end(), buffers.begin());
    return !all.empty();
  }

  /// The same of several buffers, into reached_each_.
  bool reach(std::span<const Reduced> buffers, DType dtype) {
    reached_each_.resize(std::max(reached_each_.size(), buffers.size()));
    bool all = true;
    for (size_t b = 0; b < buffers.size(); ++b) {
      reached_each_[b].resize(reached_.size());
      all = reach(buffers[b].data, buffers[b].count * size_of(dtype), reached_each_[b]) && all;
    }
    return all;
  }

  /// Does it hold on every node? It is the same on all ranks of one.
  bool everywhere(bool holds) {
    int64_t all = holds ? 1 : 0;
    if (lane_ && place() == 0)
      lane_->all_reduce(&all, 1, DType::i64, Reduction::min, staging_.data());
    if (here_) here_->broadcast(&all, sizeof all, 0);
    return all == 1;
  }

  /// Of everything, the parts of a node's ranks; and of these what a lane works on.
  Range part_of(int node, std::span<const int64_t> counts) const {
    const NodeRanks& ranks = nodes_[static_cast<size_t>(node)];
    return {
        offset_of(counts, ranks.first),
        sum_of(counts.subspan(static_cast<size_t>(ranks.first), static_cast<size_t>(ranks.size)))};
  }
  Range slice_of(int node, int lane, std::span<const int64_t> counts) const {
    const Range part = part_of(node, counts);
    const Range slice = shard_range(part.size, lanes_, lane);
    return {part.begin + slice.begin, slice.size};
  }

  /// What the busiest node sends for a reduce_scatter: a running sum of everything, or by messages
  /// each of its ranks' contributions to all others'. Example, two nodes of n ranks, S elements:
  /// S sums, against n S / 2 contributions: of bf16, whose sums are f32, more up to n = 3.
  bool chain_sends_less(std::span<const int64_t> counts, DType dtype) const {
    const int64_t all = sum_of(counts);
    int64_t messages = 0;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const int64_t others = all - part_of(static_cast<int>(n), counts).size;
      messages = std::max(messages, nodes_[n].size * others * size_of(dtype));
    }
    return all * size_of(accumulated_type(dtype)) <= messages;
  }

  /// Of the buffers that reached_each_ has of each of the node's ranks, end to end.
  void reduce_slice(std::span<const Reduced> buffers, Range slice, DType dtype, Reduction op,
                    char* staging, int64_t staging_bytes) {
    const int node = lane_->rank(), last = lane_->size() - 1;
    const int64_t element = size_of(dtype), wide = size_of(accumulated_type(dtype));
    const int64_t step = std::min(staging_bytes, kReduceChunkBytes) / wide;
    const auto turn_to = [&](size_t b, int64_t first) {
      for (size_t r = 0; r < out_.size(); ++r)
        in_[r] = out_[r] = reached_each_[b][r] + first * element;
    };
    const auto chunk = [&](int64_t at) {
      return Range{slice.begin + at, std::min(step, slice.size - at)};
    };
    for (int64_t at = 0; at < slice.size; at += step) {
      const int64_t bytes = chunk(at).size * wide;
      if (node > 0) lane_->recv(staging, bytes, node - 1);
      each_part(buffers, chunk(at), [&](size_t b, int64_t first, int64_t n, int64_t from) {
        turn_to(b, first);
        accumulate_in_rank_order(staging + from * wide, node == 0, in_, n, dtype, op);
        if (node == last) round_accumulated(staging + from * wide, out_, n, dtype);
      });
      if (node < last) lane_->send(staging, bytes, node + 1);
    }
    for (int64_t at = 0; at < slice.size; at += step) {
      each_part(buffers, chunk(at), [&](size_t b, int64_t first, int64_t n, int64_t) {
        const int64_t bytes = n * element;
        turn_to(b, first);
        void* result = out_[static_cast<size_t>(place())];
        if (node < last) lane_->recv(result, bytes, node + 1);
        if (node > 0) lane_->send(result, bytes, node - 1);
        if (node == last) return;
        for (void* buffer : out_) {
          if (buffer != result) std::memcpy(buffer, result, static_cast<size_t>(bytes));
        }
      });
    }
  }

  /// This lane's slice of everything, in pieces for one rank each.
  void cut_slice(std::span<const int64_t> counts, int64_t step) {
    const Range slice = shard_range(sum_of(counts), lanes_, place());
    pieces_.clear();
    int64_t begin = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t part_end = begin + counts[static_cast<size_t>(r)];
      const int64_t end = std::min(part_end, slice.begin + slice.size);
      for (int64_t at = std::max(begin, slice.begin); at < end; at += step)
        pieces_.push_back({r, at, std::min(step, end - at)});
      begin = part_end;
    }
  }

  /// In round t node n adds its ranks' contributions to piece t - n, which it got at the end of the
  /// round before, and sends it on; the last node sends it, rounded, to its owner's node. reached_
  /// and results_: what the node's ranks give and get.
  void scatter_slice(std::span<const int64_t> counts, DType dtype, Reduction op, char* staging) {
    const int last = static_cast<int>(nodes_.size()) - 1;
    const int64_t element = size_of(dtype), wide = size_of(accumulated_type(dtype));
    const int64_t staging_bytes =
        reduce_scatter_staging_bytes(counts, dtype) / 3;  // two sums and a result
    const int64_t step = std::min(staging_bytes, kReduceChunkBytes) / wide;
    cut_slice(counts, step);
    const auto sums = [&](int64_t round) { return staging + round % 2 * step * wide; };
    char* const rounded = staging + 2 * step * wide;
    const auto piece_at = [&](int64_t p) {
      return p >= 0 && p < std::ssize(pieces_) ? &pieces_[static_cast<size_t>(p)] : nullptr;
    };
    const auto node_of = [&](const Piece& piece) {
      return node_of_[static_cast<size_t>(piece.owner)];
    };
    const auto result_of = [&](const Piece& piece) {
      const int owner = piece.owner - nodes_[static_cast<size_t>(node_)].first;
      return results_[static_cast<size_t>(owner)] +
             (piece.begin - offset_of(counts, piece.owner)) * element;
    };
    for (int64_t round = 0; round < std::ssize(pieces_) + last; ++round) {
      begin_exchange();
      if (const Piece* piece = piece_at(round - node_)) {
        for (size_t r = 0; r < in_.size(); ++r) in_[r] = reached_[r] + piece->begin * element;
        accumulate_in_rank_order(sums(round), node_ == 0, in_, piece->size, dtype, op);
        if (node_ < last) {
          sent_.push_back({node_ + 1, sums(round), piece->size * wide});
        } else {
          void* out = node_of(*piece) == last ? result_of(*piece) : rounded;
          round_accumulated(sums(round), std::span(&out, 1), piece->size, dtype);
          if (out == rounded) sent_.push_back({node_of(*piece), out, piece->size * element});
        }
      }
      const Piece* next = node_ > 0 ? piece_at(round + 1 - node_) : nullptr;
      if (next != nullptr) received_.push_back({node_ - 1, sums(round + 1), next->size * wide});
      const Piece* done = node_ < last ? piece_at(round - last) : nullptr;
      if (done != nullptr && node_of(*done) == node_)
        received_.push_back({last, result_of(*done), done->size * element});
      lane_->exchange(sent_, received_);
    }
  }

  void begin_exchange() { sent_.clear(), received_.clear(); }

  const std::vector<NodeRanks> nodes_;
  std::vector<int> node_of_;  // by rank
  int node_ = 0;
  std::unique_ptr<Communicator> messages_;
  std::unique_ptr<SharingCommunicator> here_;
  std::unique_ptr<MessageCommunicator> lane_;
  const int lanes_;
  // Of the call in progress, by rank of the node:
  std::vector<char*> reached_, results_;
  std::vector<std::vector<char*>> reached_each_;  // the same of each buffer
  std::vector<void*> out_;
  std::vector<const void*> in_;
  std::vector<Piece> pieces_;
  std::vector<MessageCommunicator::Sent> sent_;
  std::vector<MessageCommunicator::Received> received_;
  std::vector<char> staging_;  // of everywhere
};

}  // namespace

std::unique_ptr<Communicator> communicate(MPI_Comm comm, std::shared_ptr<Node> node,
                                          double timeout) {
  int size = 1, rank = 0;
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(comm, &rank);
  std::unique_ptr<Communicator> messages = communicate_by_messages(comm, node, timeout);
  if (size == 1) return messages;
  const int name = node->name();
  std::vector<int> nodes(static_cast<size_t>(size));
  check(MPI_Allgather(&name, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm), "MPI_Allgather");
  std::vector<NodeRanks> all;
  for (size_t r = 0; r < nodes.size(); ++r) {
    if (r > 0 && nodes[r] == nodes[r - 1]) {
      ++all.back().size;
    } else if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(r), nodes[r]) ==
               nodes.begin() + static_cast<std::ptrdiff_t>(r)) {
      all.push_back({static_cast<int>(r), 1});
    } else {
      return messages;  // a running sum would visit this node twice
    }
  }
  if (all.size() == 1) {
    if (auto here = share_memory(comm, node, messages, timeout)) return here;
    return messages;
  }
  const auto smaller = [](const NodeRanks& a, const NodeRanks& b) { return a.size < b.size; };
  if (std::max_element(all.begin(), all.end(), smaller)->size == 1) return messages;

  const auto split = [&](int color, int key) {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
    return part;
  };
  MPI_Comm part = split(name, rank);
  std::unique_ptr<Communicator> within = communicate_by_messages(part, node, timeout);
  const int place = within->rank();
  std::unique_ptr<SharingCommunicator> here;
  if (within->size() > 1) here = share_memory(part, node, within, timeout);
  int shared = within == nullptr || within->size() == 1 ? 1 : 0;
  check(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (shared == 0) return messages;
  const int lanes = std::min_element(all.begin(), all.end(), smaller)->size;
  part = split(place < lanes ? place : MPI_UNDEFINED, rank);
  std::unique_ptr<MessageCommunicator> lane;
  if (part != MPI_COMM_NULL) lane = communicate_by_messages(part, node, timeout);
  return std::make_unique<NodesCommunicator>(std::move(all), std::move(messages), std::move(here),
                                             std::move(lane), lanes);
}

}  // namespace shardrun::mpi
