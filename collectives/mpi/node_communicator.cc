// Collectives between the ranks of one node, through shared memory. Where a buffer lies outside of
// memory that Communicator::allocate gave, all ranks see it in the slots, and make the call by
// messages.
#include "collectives/mpi/node.h"

namespace shardrun::mpi {
namespace {

class NodeCommunicator : public SharingCommunicator {
 public:
  /// `memory`: of this rank's slot; `ranks`: in the world.
  NodeCommunicator(std::unique_ptr<Communicator> messages, std::shared_ptr<Node> node,
                   std::vector<int> ranks, Memory memory, const std::vector<char*>& slots, int rank,
                   double timeout)
      : SharingCommunicator(slots, {node->job(), std::move(ranks)}, rank, timeout,
                            !oversubscribed(), std::move(messages), false),
        node_(std::move(node)),
        memory_(std::move(memory)) {}

  void send(const void* data, int64_t bytes, int to) override { messages().send(data, bytes, to); }
  void recv(void* data, int64_t bytes, int from) override { messages().recv(data, bytes, from); }
  Memory allocate(int64_t bytes) override { return messages().allocate(bytes); }
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    return messages().split(groups);
  }
  void set_timeout(double seconds) override {
    SharingCommunicator::set_timeout(seconds);
    messages().set_timeout(seconds);
  }
  void abort() noexcept override { messages().abort(); }

 protected:
  std::optional<Place> find(const void* data, int64_t bytes) const override {
    return node_->find(data, bytes);
  }
  char* at(int rank, Place place) const override {
    return node_->at(members().ranks[static_cast<size_t>(rank)], place);
  }

 private:
  std::shared_ptr<Node> node_;
  Memory memory_;
};

}  // namespace

std::unique_ptr<SharingCommunicator> share_memory(MPI_Comm comm, std::shared_ptr<Node> node,
                                                  std::unique_ptr<Communicator>& messages,
                                                  double timeout) {
  const int size = messages->size();
  const int64_t slot_bytes = SharingCommunicator::slot_bytes(size);
  Memory slots = node->allocate(comm, slot_bytes);
  if (!slots.why_private.empty()) return nullptr;
  SharingCommunicator::make_slot(slots.data.get());
  struct Member {
    int rank;
    Place place;
  };
  const Member own{node->world_rank(), node->find(slots.data.get(), slot_bytes).value()};
  std::vector<Member> members(static_cast<size_t>(size));
  const int bytes = static_cast<int>(sizeof own);
  SR_REQUIRE(
      MPI_Allgather(&own, bytes, MPI_BYTE, members.data(), bytes, MPI_BYTE, comm) == MPI_SUCCESS,
      comm, "sharing memory: MPI_Allgather failed");
  std::vector<int> ranks;
  std::vector<char*> places;
  for (const Member& member : members) {
    ranks.push_back(member.rank);
    places.push_back(node->at(member.rank, member.place));
  }
  const int rank = messages->rank();
  return std::make_unique<NodeCommunicator>(std::move(messages), std::move(node), std::move(ranks),
                                            std::move(slots), places, rank, timeout);
}

}  // namespace shardrun::mpi
