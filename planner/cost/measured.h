// Measured curves of kernels and collectives, and interpolation between their points.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "graph/program.h"

namespace shardrun {

/// Seconds by size, both positive, sizes ascending. Between two points it is straight in
/// logarithms; below the first it is the first's seconds (what a call costs at least), above the
/// last it grows in proportion to the size.
struct Curve {
  std::vector<std::pair<double, double>> points;
  double at(double size) const;
  friend bool operator==(const Curve&, const Curve&) = default;
};

/// Seconds at every point of three ascending lists: between them straight in logarithms along each,
/// outside as in Curve. `powers`: with what power of a size the seconds grow beyond its list.
struct Grid {
  std::array<std::vector<double>, 3> sizes;
  std::vector<double> seconds;  // row-major
  double at(const std::array<double, 3>& size, const std::array<double, 3>& powers) const;
  friend bool operator==(const Grid&, const Grid&) = default;
};

/// Kernels while `ranks` ranks run them at the same time, each with `threads` threads.
struct MeasuredKernels {
  int64_t ranks = 1, threads = 1;
  /// Op, variant (what distinguishes calls of an op that take other times, such as which dims a
  /// reduction sums; "" if nothing does) and type.
  using Key = std::tuple<std::string, std::string, DType>;
  /// matmul, c[m, n] = a[m, k] b[k, n], by m, n and k; variant nn, nt, tn or tt: which of a and b
  /// lie transposed in memory. attention and attention_grad, causal, by heads (of all samples),
  /// length and a head's size.
  std::map<Key, Grid> grids;
  /// All others. Sizes are bytes read and written, or FLOPs.
  struct Op {
    bool by_flops = false;
    Curve curve;
    friend bool operator==(const Op&, const Op&) = default;
  };
  std::map<Key, Op> ops;
  /// The op that stands for all that only stream through memory: one that was not measured itself
  /// takes as long, by its bytes, and the memory's bandwidth is what the largest call reaches.
  static constexpr std::string_view kStreaming = "add";
  const Op* streaming(DType dtype) const;  // null: it was not measured either
  friend bool operator==(const MeasuredKernels&, const MeasuredKernels&) = default;
};

/// Collectives of groups of `group` ranks, as many at once as `ranks` ranks make. Sizes are the
/// bytes of a rank's shard, on the side that CollectiveTraits::sized says.
struct MeasuredCollective {
  std::string backend;  // threads, mpi
  int64_t ranks = 1, group = 1;
  Collective::Kind kind = Collective::Kind::all_gather;
  Curve curve;
  friend bool operator==(const MeasuredCollective&, const MeasuredCollective&) = default;
};

struct Measured {
  std::vector<MeasuredKernels> kernels;  // by ranks and threads, ascending
  std::vector<MeasuredCollective> collectives;

  /// What holds for a job of `ranks` ranks on `devices` devices: kernels as measured with the
  /// fewest ranks that are no fewer, or with the most. Where it is said how many `threads` each has
  /// (not 0), those count that were measured with so many, or else with the most below, if some
  /// were. Where more ranks run than were measured and than there are devices, they take turns, and
  /// each takes as many times longer. Of the collectives those of the backend (if it was measured,
  /// else any) and, likewise, of as many ranks.
  Measured for_ranks(int64_t ranks, int64_t devices, const std::string& backend,
                     int64_t threads = 0) const;
  const MeasuredKernels* kernels_now() const { return kernels.empty() ? nullptr : &kernels[0]; }
  friend bool operator==(const Measured&, const Measured&) = default;
};

}  // namespace shardrun
