// Probing, answering, and asking for a limited time.
#include "collectives/mpi/mpi_job.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/printable.h"
#include "collectives/mpi/node.h"

namespace shardrun::mpi {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void pause_shortly() {
  const timespec pause{0, 5000000};
  nanosleep(&pause, nullptr);
}

int size_of(MPI_Comm comm) {
  int size = 1;
  MPI_Comm_size(comm, &size);
  return size;
}

}  // namespace

MpiJob::MpiJob(MPI_Comm world) : Job(size_of(world)) {
  check(MPI_Comm_dup(world, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  constexpr int kName = 64;
  char name[MPI_MAX_PROCESSOR_NAME + 1] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  name[kName - 1] = '\0';
  std::vector<char> all(static_cast<size_t>(size()) * kName);
  check(MPI_Allgather(name, kName, MPI_CHAR, all.data(), kName, MPI_CHAR, comm_), "MPI_Allgather");
  std::vector<std::string> hosts;
  for (int r = 0; r < size(); ++r)
    hosts.push_back(printable(all.data() + static_cast<ptrdiff_t>(r) * kName));
  set_hosts(std::move(hosts));
}

MpiJob::~MpiJob() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (Sent& sent : sent_) {
    if (sent.request != MPI_REQUEST_NULL) MPI_Request_free(&sent.request);
  }
  MPI_Comm_free(&comm_);
}

void MpiJob::waits(int, const LongWait& wait) {
  wait_ = wait;
  serve();
}

void MpiJob::done(int) { wait_.reset(); }

void MpiJob::forget_sent() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
}

void MpiJob::serve() {
  forget_sent();
  while (true) {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kQuestion, comm_, &there, &status) != MPI_SUCCESS || !there)
      return;
    Sent& sent = sent_.emplace_back();
    MPI_Recv(&sent.answer.serial, 1, MPI_INT, status.MPI_SOURCE, kQuestion, comm_,
             MPI_STATUS_IGNORE);
    if (wait_) {
      sent.answer.waits = 1;
      const auto count = std::min(wait_->missing.size(), static_cast<size_t>(kMostMissing));
      sent.answer.missing_count = static_cast<int>(count);
      std::copy_n(wait_->missing.begin(), count, sent.answer.missing);
      wait_->call.copy(sent.answer.call, sizeof sent.answer.call - 1);
      sent.answer.group = wait_->group;
      sent.answer.number = wait_->number;
      const auto groups = std::min(wait_->entered.size(), static_cast<size_t>(kMostGroups));
      sent.answer.groups = static_cast<int>(groups);
      std::copy_n(wait_->entered.begin(), groups, sent.answer.entered);
    }
    MPI_Isend(&sent.answer, sizeof sent.answer, MPI_BYTE, status.MPI_SOURCE, kAnswer, comm_,
              &sent.request);
  }
}

std::vector<std::optional<LongWait>> MpiJob::ask(std::span<const int> ranks, double seconds) {
  std::vector<std::optional<LongWait>> out(ranks.size());
  const int serial = ++serial_;
  size_t open = ranks.size();
  for (const int rank : ranks) {
    Sent& sent = sent_.emplace_back();
    sent.question = serial;
    MPI_Isend(&sent.question, 1, MPI_INT, rank, kQuestion, comm_, &sent.request);
  }
  const Clock::time_point start = Clock::now();
  while (open > 0 && since(start) < seconds) {
    serve();
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kAnswer, comm_, &there, &status) != MPI_SUCCESS) break;
    if (!there) {
      pause_shortly();
      continue;
    }
    Answer answer;
    MPI_Recv(&answer, sizeof answer, MPI_BYTE, status.MPI_SOURCE, kAnswer, comm_,
             MPI_STATUS_IGNORE);
    if (answer.serial != serial) continue;  // of a question that was given up
    --open;
    const auto asked = std::find(ranks.begin(), ranks.end(), status.MPI_SOURCE);
    if (asked == ranks.end() || answer.waits == 0) continue;
    LongWait& wait = out[static_cast<size_t>(asked - ranks.begin())].emplace();
    wait.call = answer.call;
    wait.missing.assign(answer.missing, answer.missing + answer.missing_count);
    wait.group = answer.group;
    wait.number = answer.number;
    wait.entered.assign(answer.entered, answer.entered + answer.groups);
  }
  return out;
}

void MpiJob::linger(double seconds) {
  const Clock::time_point start = Clock::now();
  do {
    serve();
    pause_shortly();
  } while (since(start) < seconds);
}

std::vector<int> job_ranks(MPI_Comm comm) {
  std::vector<int> own(static_cast<size_t>(size_of(comm))), out(own.size());
  std::iota(own.begin(), own.end(), 0);
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(group, static_cast<int>(own.size()), own.data(), world, out.data());
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return out;
}

}  // namespace shardrun::mpi
