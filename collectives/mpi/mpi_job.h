// Questions between processes that wait for each other.
#pragma once

#include <mpi.h>

#include <list>

#include "collectives/job.h"

namespace shardrun::mpi {

/// By messages on a communicator of its own, which a rank looks at while it waits.
class MpiJob final : public Job {
 public:
  /// Collective over `world`, which has the job's ranks in their order. Hosts are named.
  explicit MpiJob(MPI_Comm world);
  ~MpiJob() override;

  void waits(int rank, const LongWait& wait) override;
  void done(int rank) override;
  std::vector<std::optional<LongWait>> ask(std::span<const int> ranks, double seconds) override;
  void linger(double seconds) override;

 private:
  static constexpr int kQuestion = 1, kAnswer = 2;  // tags
  static constexpr int kMostMissing = 16, kMostGroups = 32;
  struct Answer {
    int serial = 0;
    int waits = 0;  // else it asks no more
    int missing_count = 0;
    int missing[kMostMissing] = {};
    char call[120] = {};
    uint64_t group = 0;  // of LongWait
    int64_t number = 0;
    int groups = 0;
    std::pair<uint64_t, int64_t> entered[kMostGroups] = {};
  };
  struct Sent {
    Answer answer;
    int question = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  void serve();
  void forget_sent();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, serial_ = 0;
  std::optional<LongWait> wait_;
  std::list<Sent> sent_;
};

/// The job's ranks that `comm` consists of.
std::vector<int> job_ranks(MPI_Comm comm);

}  // namespace shardrun::mpi
