// Tokens a second compared with what memory can deliver of the weights.
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "ranks/ranks.h"
#include "ranks/world.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

/// Bytes a second that a rank reads of memory with all its threads, while all ranks do: of the
/// slowest rank. As much as no cache holds, each thread in four streams, of which memory delivers
/// more than of one; the best of a few passes.
double read_bandwidth(World& world) {
  constexpr int64_t kStream = int64_t{16} << 20, kElements = 4 * kStream;
  constexpr int kPasses = 5;
  double least = 0;
  run_ranks(world, [&](Communicator& comm) {
    std::vector<float> data(static_cast<size_t>(kElements));
    const float* at = data.data();
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < kElements; ++i) data[static_cast<size_t>(i)] = 1;
    double best = 0, sum = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      comm.barrier();
      const auto start = Clock::now();
      float part = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : part)
      for (int64_t i = 0; i < kStream; ++i)
        part += at[i] + at[i + kStream] + at[i + 2 * kStream] + at[i + 3 * kStream];
      const std::chrono::duration<double> seconds = Clock::now() - start;
      sum += static_cast<double>(part);
      best = std::max(best, static_cast<double>(kElements) * sizeof(float) / seconds.count());
    }
    if (sum <= 0) best = 0;  // the sums are made
    std::vector<double> all(static_cast<size_t>(comm.size()));
    comm.all_gather(&best, all.data(), std::vector<int64_t>(all.size(), 1), DType::f64);
    if (comm.rank() == 0 || world.impl().mpi) least = *std::min_element(all.begin(), all.end());
  });
  return least;
}

}  // namespace

std::vector<SampleRound> bench_sample(World& world, const SampleRequest& request, int rounds) {
  std::vector<SampleRound> out;
  for (int round = 0; round < rounds; ++round) {
    SampleRound one;
    one.bandwidth = read_bandwidth(world);
    const SampleReport report = sample(world, request);
    one.token = report.seconds / static_cast<double>(std::max<size_t>(1, report.tokens.size() - 1));
    one.parameter_bytes = report.parameter_bytes;
    one.keys_are_kept = report.computed_again.empty();
    out.push_back(one);
  }
  return out;
}

}  // namespace shardrun
