// Collectives against a copy of the same bytes and against MPI's own.
#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>

#include "base/clock.h"
#include "base/tensor.h"
#include "collectives/plain_mpi.h"
#include "collectives/reduce.h"
#include "measure/calibrate.h"
#include "ranks/ranks.h"
#include "ranks/world.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

constexpr double kSampleSeconds = 2e-3;  // a sample has as many calls as take about so long …
constexpr int64_t kMostCalls = 500;
constexpr DType kType = DType::f32;

/// What a call works on, in memory that peers reach, as a plan's arena is.
struct Buffers {
  Memory memory;
  char *in = nullptr, *out = nullptr, *staging = nullptr;
  int64_t bytes = 0;  // of each of in and out
};

struct Call {
  std::string name;
  double bus;
  std::function<void(Communicator&)> run;
};

/// `count` elements over n ranks, rank r's count in proportion to r + 1, or all alike.
std::vector<int64_t> rank_counts(int64_t count, int n, bool even) {
  std::vector<int64_t> out;
  int64_t before = 0;
  for (int64_t r = 1; r <= n; ++r) {
    const int64_t end = even ? count * r / n : count * (r * (r + 1)) / (int64_t{n} * (n + 1));
    out.push_back(end - before);
    before = end;
  }
  return out;
}

/// What this rank sends to each in an uneven all_to_all, and, as it is symmetric, what it gets:
/// a row of a matrix whose rows are all rank_counts of `count`.
std::vector<int64_t> row_of_counts(int64_t count, int n, int rank) {
  const std::vector<int64_t> parts = rank_counts(count, n, false);
  std::vector<int64_t> row;
  for (int to = 0; to < n; ++to) row.push_back(parts[static_cast<size_t>((rank + to) % n)]);
  return row;
}

/// Of `bytes`, rounded to equally many f32 for each rank, and zero, so that sums stay numbers.
Buffers make_buffers(Communicator& world, int64_t bytes) {
  const int n = world.size();
  Buffers b;
  const int64_t count = std::max<int64_t>(1, bytes / size_of(kType) / n) * n;
  b.bytes = count * size_of(kType);
  const int64_t staging =
      std::max(all_reduce_staging_bytes(count, kType, n),
               reduce_scatter_staging_bytes(rank_counts(count, n, false), kType));
  b.memory = world.allocate(2 * round_up_64(b.bytes) + staging);
  b.in = b.memory.data.get();
  b.out = b.in + round_up_64(b.bytes);
  b.staging = b.out + round_up_64(b.bytes);
  return b;
}

/// Every collective on them.
std::vector<Call> calls(const Buffers& b, int n, int rank) {
  const int64_t count = b.bytes / size_of(kType);
  const double part = static_cast<double>(n - 1) / n;
  char *in = b.in, *out = b.out, *staging = b.staging;
  const auto me = static_cast<size_t>(rank);
  std::vector<Call> list;
  for (const bool even : {true, false}) {
    if (!even && n == 1) break;
    const std::string suffix = even ? "" : " uneven";
    const std::vector<int64_t> counts = rank_counts(count, n, even);
    list.push_back({"all_gather" + suffix, part,
                    [=](Communicator& comm) { comm.all_gather(in, out, counts, kType); }});
    list.push_back({"reduce_scatter" + suffix, part, [=](Communicator& comm) {
                      comm.reduce_scatter(in, out, counts, kType, Reduction::sum, staging);
                    }});
    const std::vector<int64_t> row = even ? counts : row_of_counts(count, n, rank);
    list.push_back({"all_to_all" + suffix, part,
                    [=](Communicator& comm) { comm.all_to_all(in, row, out, row, kType); }});
  }
  list.push_back({"all_reduce", 2 * part, [=](Communicator& comm) {
                    comm.all_reduce(out, count, kType, Reduction::sum, staging);
                  }});
  const int64_t whole = count * size_of(kType);
  list.push_back({"broadcast", 1, [=](Communicator& comm) { comm.broadcast(out, whole, 0); }});
  list.push_back({"send/recv", 1, [=](Communicator& comm) {
                    if (me % 2 == 0 && rank + 1 < n) comm.send(in, whole, rank + 1);
                    if (me % 2 == 1) comm.recv(out, whole, rank - 1);
                  }});
  return list;
}

class Measurement {
 public:
  Measurement(Communicator& world, const CollectivesRequest& request)
      : world_(world), request_(request) {}

  std::vector<CollectiveTimes> run(Communicator* plain) {
    std::vector<CollectiveTimes> out;
    for (const int64_t bytes : request_.sizes) {
      const Buffers buffers = make_buffers(world_, bytes);
      for (const Call& call : calls(buffers, world_.size(), world_.rank())) {
        CollectiveTimes times{call.name, buffers.bytes, call.bus, {}, {}, {}};
        const Timed ours = timed([&] { call.run(world_); }),
                    copy = timed([&] {
                      std::memcpy(buffers.out, buffers.in, static_cast<size_t>(buffers.bytes));
                    });
        const Timed theirs = plain ? timed([&] { call.run(*plain); }) : Timed{};
        for (int i = 0; i < request_.repeats; ++i) {
          times.ours.push_back(sample(ours));
          times.copy.push_back(sample(copy));
          if (plain) times.plain.push_back(sample(theirs));
        }
        for (std::vector<double>* samples : {&times.ours, &times.copy, &times.plain})
          slowest(*samples);
        out.push_back(std::move(times));
      }
    }
    return out;
  }

 private:
  struct Timed {
    std::function<void()> work;
    int64_t calls = 1;  // of a sample
  };

  /// Each value of the rank where it is largest.
  void slowest(std::vector<double>& values) {
    const auto count = static_cast<int64_t>(values.size());
    if (count == 0) return;
    const Tensor staging({DType::u8, {world_.all_reduce_staging(count, DType::f64)}});
    world_.all_reduce(values.data(), count, DType::f64, Reduction::max, staging.data());
  }

  double sample(const Timed& timed) {
    world_.barrier();
    const double begin = now_seconds();
    for (int64_t i = 0; i < timed.calls; ++i) timed.work();
    return (now_seconds() - begin) / static_cast<double>(timed.calls);
  }

  /// Every rank makes as many calls.
  Timed timed(std::function<void()> work) {
    Timed out{std::move(work)};
    sample(out);  // touches
    std::vector<double> once = {std::min(sample(out), sample(out))};
    slowest(once);
    out.calls = std::clamp(static_cast<int64_t>(kSampleSeconds / once[0]), int64_t{1}, kMostCalls);
    return out;
  }

  Communicator& world_;
  const CollectivesRequest& request_;
};

}  // namespace

std::vector<CollectiveTimes> measure_collective_calls(World& world,
                                                      const CollectivesRequest& request) {
  std::vector<CollectiveTimes> out;
  std::mutex mutex;
  run_ranks(world, [&](Communicator& comm) {
    const bool mpi = world.impl().mpi != nullptr;
    const std::unique_ptr<Communicator> plain = mpi ? make_plain_mpi_communicator() : nullptr;
    std::vector<CollectiveTimes> own = Measurement(comm, request).run(plain.get());
    const std::lock_guard lock(mutex);
    if (mpi || comm.rank() == 0) out = std::move(own);
  });
  return out;
}

}  // namespace shardrun
