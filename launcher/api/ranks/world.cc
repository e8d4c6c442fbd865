// World: MPI ranks or threads behind one face, and how a failure ends them all.
#include "ranks/world.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "base/process/process_memory.h"
#include "base/process/processors.h"
#include "base/thread_group.h"
#include "collectives/checked.h"
#include "ranks/process_limit.h"
#include "ranks/threads.h"

namespace shardrun {
namespace {

/// Marks the sentence of a rank that failed only because another did.
constexpr std::string_view kPeerFailed = "another rank ended the job";

/// A sentence, and below it lines of advice, as people may see them.
std::string with_advice(std::string_view text) {
  constexpr std::string_view kLine = "\n  - ";
  std::string out;
  for (size_t at = text.find(kLine); at != std::string_view::npos; at = text.find(kLine)) {
    out += printable(text.substr(0, at));
    out += kLine;
    text.remove_prefix(at + kLine.size());
  }
  return out + printable(text);
}

Failure::Kind kind_of(const std::exception& error) noexcept {
  if (const auto* failure = dynamic_cast<const Failure*>(&error)) return failure->kind();
  const auto* e = dynamic_cast<const Error*>(&error);
  if (e == nullptr) return Failure::Kind::run;
  if (e->kind() == ErrorKind::invalid_input || e->kind() == ErrorKind::unsupported)
    return Failure::Kind::call;
  if (e->kind() == ErrorKind::out_of_memory) return Failure::Kind::memory;
  const bool peer = e->kind() == ErrorKind::comm &&
                    std::string_view(e->what()).find(kPeerFailed) != std::string_view::npos;
  return peer ? Failure::Kind::peer : Failure::Kind::run;
}

Failure to_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Failure& e) {
    return e;
  } catch (const std::bad_alloc&) {
    const std::optional<AddressSpace> space = address_space();
    return Failure(Failure::Kind::run,
                   space ? str("out of memory: 'ulimit -v' allows this process ", space->limit,
                               " bytes, of which it maps ", space->mapped)
                         : "the machine is out of memory");
  } catch (const std::filesystem::filesystem_error& e) {  // a path that a call names, as a rule
    return Failure(Failure::Kind::call,
                   e.path1().string() + ": cannot be looked at: " + e.code().message());
  } catch (const std::exception& e) {
    return Failure(kind_of(e), with_advice(e.what()));
  }
}

/// Seconds in which a rank that only knows that another has failed lets that one speak. One that
/// has waited too long first asks the others for whom they wait (blame in collectives/job.h).
constexpr double kPeerPatience = 10;

/// Sleeps, and answers ranks that ask for whom this one has waited.
void linger(const World::Impl& world, double seconds) {
  if (world.mpi && world.mpi->members().job) {
    world.mpi->members().job->linger(seconds);
  } else {
    ::usleep(static_cast<useconds_t>(seconds * 1e6));
  }
}

/// What tells who met an error: "rank 3: ", or nothing where the sentence says so, as that of a
/// rank's program does.
std::array<char, 24> teller(int rank, std::string_view sentence) {
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "rank %d: ", rank);
  const std::string_view bare(name.data(), std::strlen(name.data()) - 2);  // without ": "
  for (size_t at = sentence.find(bare); at != std::string_view::npos;
       at = sentence.find(bare, at + 1)) {
    const std::string_view rest = sentence.substr(at + bare.size());
    if (rest.rfind(": ", 0) == 0 || rest.rfind(" (", 0) == 0) name[0] = '\0';
  }
  return name;
}

using Speaks = std::function<bool(const std::string& sentence)>;

/// Prints the sentence of `error`, if this rank is the one that speaks.
void say(const std::exception& error, int rank, const Speaks& speaks) noexcept {
  const char* shown = error.what();
  std::string sentence;
  try {
    sentence = with_advice(shown);
    if (rank > 0) sentence = teller(rank, sentence).data() + sentence;
    shown = sentence.c_str();
  } catch (const std::bad_alloc&) {  // as it is, then
  }
  std::string wrong;
  try {
    if (speaks && !speaks(sentence)) return;
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  std::fprintf(stderr, "shardrun: %s\n", shown);
  if (!wrong.empty()) std::fprintf(stderr, "shardrun: %s\n", wrong.c_str());
  std::fflush(stderr);
}

void check_threads(int threads) {
  if (threads < 1)
    throw Failure(Failure::Kind::call,
                  "--threads is " + std::to_string(threads) + ", wanted 1 or more");
}

}  // namespace

void broadcast_text(Communicator& comm, std::string& text, int root) {
  int64_t size = static_cast<int64_t>(text.size());
  comm.broadcast(&size, sizeof size, root);
  text.resize(static_cast<size_t>(size));
  if (size > 0) comm.broadcast(text.data(), size, root);
}

void rethrow_as_failure() { throw to_failure(std::current_exception()); }

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;

World::~World() {
  if (impl_ && impl_->mpi) {
    impl_->mpi.reset();
    finalize_mpi();
  }
}

World World::launched() {
  return at_boundary([] {
    limit_unpacking(0, 1);
    auto impl = std::make_unique<Impl>();
    if (launched_by_mpi()) impl->mpi = make_mpi_communicator();
    return World(std::move(impl));
  });
}

World World::threads(int ranks) {
  if (ranks < 1)
    throw Failure(Failure::Kind::call, "ranks: wanted 1 or more, got " + std::to_string(ranks));
  limit_unpacking(0, ranks);
  auto impl = std::make_unique<Impl>();
  impl->threads = ranks;
  return World(std::move(impl));
}

void World::use_threads(int threads_per_rank) {
  check_threads(threads_per_rank);
  impl_->asked = threads_per_rank;
  impl_->kernel_threads = 0;
}

void World::assume_threads(int threads_per_rank) {
  check_threads(threads_per_rank);
  impl_->asked = impl_->kernel_threads = threads_per_rank;
}

void World::use_timeout(double seconds) {
  if (!(seconds >= 0))
    throw Failure(Failure::Kind::call,
                  "--timeout is " + std::to_string(seconds) + ", wanted a number of at least 0");
  impl_->timeout = seconds;
  if (impl_->mpi) impl_->mpi->set_timeout(seconds);
}

void World::check_collectives() {
  if (!impl_->checks && impl_->mpi) impl_->mpi = make_checked(std::move(impl_->mpi));
  impl_->checks = true;
}

int World::size() const { return impl_->size(); }
bool World::leader() const { return !impl_->mpi || impl_->mpi->rank() == 0; }

int World::fail(const std::exception& error,
                const std::function<bool(const std::string& sentence)>& speaks) noexcept {
  const auto* failure = dynamic_cast<const Failure*>(&error);
  const Failure::Kind kind = kind_of(error);
  const bool peer = kind == Failure::Kind::peer;
  const int rank = impl_->mpi ? impl_->mpi->rank() : 0;
  std::fflush(stdout);
  // What rank 0 decided reached every rank: it alone says so. What one rank met, that rank says.
  const bool everywhere = failure && failure->everywhere();
  // Where several ranks met the same at once, the lowest speaks, and ends the others before their
  // turn.
  if (!everywhere && rank > 0) linger(*impl_, peer ? kPeerPatience : 0.7 + 0.3 * std::min(rank, 8));
  if (!(everywhere && rank != 0) && !peer) say(error, rank, speaks);
  if (!everywhere && impl_->mpi && impl_->mpi->size() > 1) {
    if (peer && rank == 0) linger(*impl_, kPeerPatience);
    impl_->mpi->abort();
  }
  return kind == Failure::Kind::call || kind == Failure::Kind::memory ? 2 : 1;
}

void World::leave(int status) noexcept {
  std::fflush(nullptr);
  try {
    if (impl_->mpi) impl_->mpi->barrier();
  } catch (const Error&) {  // nobody is left to wait for
  }
  std::_Exit(status);
}

std::string decide_on_rank0(World& world, const std::function<std::string()>& decide) {
  Communicator* comm = world.impl().mpi.get();
  std::string text;
  int64_t status = 0;  // 0: fine; 1 + Failure::Kind otherwise
  if (world.leader()) {
    try {
      text = decide();
    } catch (...) {
      const Failure failure = to_failure(std::current_exception());
      status = 1 + static_cast<int64_t>(failure.kind());
      text = failure.what();
    }
  }
  if (comm && comm->size() > 1) {
    comm->broadcast(&status, sizeof status, 0);
    broadcast_text(*comm, text, 0);
  }
  if (status != 0) throw Failure(static_cast<Failure::Kind>(status - 1), text, true);
  return text;
}

namespace {

/// Which processors a rank may use, those of mpirun's binding or all of its machine's, and whose
/// quota of their time.
struct Seat {
  uint64_t processors = 0, quota = 0;
};

Seat own_seat(const std::vector<int>& processors, const Quota& quota) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string all = name;
  for (const int processor : processors) all += "," + std::to_string(processor);
  return {std::hash<std::string>{}(all), quota.group};
}

}  // namespace

void share_cores(World::Impl& world) {
  if (world.kernel_threads == 0) {
    const std::vector<int> processors = own_processors();
    std::vector<int> cores = cores_of(processors);
    const Quota quota = own_quota();
    int before = 0, sharing = world.threads, sharing_quota = world.threads;
    if (world.mpi) {
      // Ranks with the same processors share them, and so do those with the same quota.
      const Seat own = own_seat(processors, quota);
      std::vector<Seat> seats(static_cast<size_t>(world.mpi->size()));
      world.mpi->all_gather(&own, seats.data(), std::vector<int64_t>(seats.size(), sizeof own),
                            DType::u8);
      const auto seated_alike = [&](const Seat& o) { return o.processors == own.processors; };
      const auto under = [&](const Seat& o) { return o.quota == own.quota; };
      sharing = static_cast<int>(std::count_if(seats.begin(), seats.end(), seated_alike));
      before = static_cast<int>(
          std::count_if(seats.begin(), seats.begin() + world.mpi->rank(), seated_alike));
      sharing_quota = static_cast<int>(std::count_if(seats.begin(), seats.end(), under));
    }
    // Every rank's, so that all come to the same end.
    struct RankCores {
      Shared cores, quota;
      ThreadsSet environment;
    };
    const RankCores mine = {{static_cast<int>(cores.size()), sharing},
                            {quota.processors, sharing_quota},
                            threads_of_environment()};
    std::vector<RankCores> all = {mine};
    if (world.mpi) {
      all.resize(static_cast<size_t>(world.mpi->size()));
      world.mpi->all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), sizeof mine),
                            DType::u8);
    }
    int least = 0;
    for (const RankCores& rank : all) {
      int threads = 0;
      try {
        threads = threads_for(rank.cores, rank.quota, world.asked, rank.environment);
      } catch (const Error& e) {
        throw Failure(Failure::Kind::call, e.what(), true);
      }
      least = least == 0 ? threads : std::min(least, threads);
    }
    world.kernel_threads = least;
    world.cores = world.mpi ? part_of(cores, before, sharing) : std::move(cores);
  }
  use_threads(world.kernel_threads);
}

void throw_first(const std::vector<std::exception_ptr>& by_rank) {
  std::optional<Failure> first;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!by_rank[rank]) continue;
    const Failure failure = to_failure(by_rank[rank]);
    if (!first || (first->kind() == Failure::Kind::peer && failure.kind() != Failure::Kind::peer)) {
      first = by_rank.size() > 1 && !failure.everywhere()
                  ? Failure(failure.kind(), teller(static_cast<int>(rank), failure.what()).data() +
                                                std::string(failure.what()))
                  : failure;
    }
  }
  if (first) throw *first;
}

}  // namespace shardrun
