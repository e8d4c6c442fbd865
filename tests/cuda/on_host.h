// OnHost: where tests run the bodies of the GPU's kernels, without one. Rows are done by one
// thread, or by several that meet at barriers as a team of the GPU does.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cuda/team.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// One of several threads of the host.
class HostTeam {
 public:
  struct Shared {
    explicit Shared(int size) : values(static_cast<size_t>(size)), meet(size) {}
    std::vector<double> values;
    std::barrier<> meet;
  };
  HostTeam(int rank, Shared& shared) : rank_(rank), shared_(shared) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(shared_.values.size()); }
  template <class V>
  V sum(V value) const {
    return all(value, [](double a, double b) { return a + b; });
  }
  float max(float value) const {
    return all(value, [](double a, double b) { return a > b || b != b ? a : b; });
  }

 private:
  template <class V, class F>
  V all(V value, const F& join) const {
    if (size() == 1) return value;
    shared_.values[static_cast<size_t>(rank_)] = value;
    shared_.meet.arrive_and_wait();
    double joined = shared_.values[0];
    for (size_t i = 1; i < shared_.values.size(); ++i) joined = join(joined, shared_.values[i]);
    shared_.meet.arrive_and_wait();
    return static_cast<V>(joined);
  }

  int rank_;
  Shared& shared_;
};

/// A kernel list's place to run, as OnGpu is.
template <int kTeam>
struct OnHost {
  template <class Body>
  static void each(const KernelArgs&, int64_t count, const Body& body, const char*) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  template <class Body>
  static void rows(const KernelArgs&, int64_t rows, int64_t, const Body& body, const char*) {
    HostTeam::Shared shared(kTeam);
    const auto run = [&](int rank) {
      for (int64_t row = 0; row < rows; ++row) body(HostTeam(rank, shared), row);
    };
    std::vector<std::thread> others;
    for (int rank = 1; rank < kTeam; ++rank) others.emplace_back(run, rank);
    run(0);
    for (std::thread& other : others) other.join();
  }

  static void zero(const KernelArgs&, void* to, int64_t bytes) {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
  }
};

}  // namespace shardrun::cuda
