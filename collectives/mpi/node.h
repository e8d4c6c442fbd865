// Node: the memory that the ranks of one machine share, as segments (windows of MPI).
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/sharing.h"

namespace shardrun::mpi {

/// One for all communicators of a process. A segment can only be freed by all its ranks together,
/// but a rank that fails must not wait for the others: what a rank gives back is freed with the
/// next allocation by the same ranks, or at the end.
class Node : public std::enable_shared_from_this<Node> {
 public:
  /// Collective over `world`. `ranks_per_node` as in make_mpi_communicator.
  Node(MPI_Comm world, int ranks_per_node);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::shared_ptr<Job>& job() const { return job_; }
  /// Each node's name: its first rank in the world.
  int name() const { return name_; }
  int world_rank() const { return world_rank_; }
  /// Does the job have ranks on other machines?
  bool is_one_of_several() const { return one_of_several_; }

  /// Collective over `comm`; its ranks of this node get memory that they can all reach, or, all of
  /// them, private memory and a reason. Throws out_of_memory.
  Memory allocate(MPI_Comm comm, int64_t bytes);

  /// Where own memory lies; none if peers cannot reach it. No bytes lie anywhere.
  std::optional<Place> find(const void* data, int64_t bytes) const;
  /// A peer's memory. Null for the place of no bytes.
  char* at(int world_rank, Place place) const;

 private:
  struct Segment {
    int64_t id = 0;
    MPI_Win window = MPI_WIN_NULL;
    char* own = nullptr;
    int64_t bytes = 0;
    bool in_use = true;
    std::vector<int> members;   // world ranks
    std::vector<char*> places;  // of each member's part
  };
  /// "" or why there is no segment.
  std::string make_segment(MPI_Comm comm, int64_t bytes, Segment& segment);
  void free_unused(MPI_Comm comm, const std::vector<int>& members);
  void give_back(int64_t id);

  std::shared_ptr<Job> job_;
  int world_rank_ = 0;
  int name_ = 0;
  bool one_of_several_ = false;
  int64_t made_ = 0;
  std::vector<Segment> segments_;  // in the order in which they were made, the same on each member
};

/// "MPI_ERR_…: …".
std::string error_string(int code);
/// Throws comm if a call of MPI that shares memory failed.
void check(int code, const char* function);
/// More ranks on this host than cores: whoever waits must let the others run.
bool oversubscribed();

/// Point-to-point messages alone (mpi_communicator.cc).
class MessageCommunicator : public Communicator {
 public:
  struct Sent {
    int to;
    const void* data;
    int64_t bytes;
  };
  struct Received {
    int from;
    void* data;
    int64_t bytes;
  };
  /// All of them at once; between two ranks they match in order.
  virtual void exchange(std::span<const Sent> out, std::span<const Received> in) = 0;
};

/// Takes over `comm`.
std::unique_ptr<MessageCommunicator> communicate_by_messages(MPI_Comm comm,
                                                             std::shared_ptr<Node> node,
                                                             double timeout);
/// Through the memory of ranks of one node (node_communicator.cc). Null, on every rank, where
/// segments are refused. `messages` serves the same ranks, all of this node, in the same order.
std::unique_ptr<SharingCommunicator> share_memory(MPI_Comm comm, std::shared_ptr<Node> node,
                                                  std::unique_ptr<Communicator>& messages,
                                                  double timeout);
/// Through shared memory where the ranks of `comm` have it, else by messages; collective
/// (nodes_communicator.cc). Takes over `comm`.
std::unique_ptr<Communicator> communicate(MPI_Comm comm, std::shared_ptr<Node> node,
                                          double timeout);

}  // namespace shardrun::mpi
