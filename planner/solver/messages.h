// What message passing does alike over strategies (Bound) and over rows and columns
// (FactoredBound).
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "planner/solver/problem.h"

namespace shardrun {

inline constexpr size_t kLanes = 4;  // rows of tables are padded to multiples of so many

inline size_t padded(size_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

/// The least of `size` values; kInfeasible of none.
inline double least_of(const double* values, size_t size) {
  double least = kInfeasible;
  for (size_t a = 0; a < size; ++a) least = values[a] < least ? values[a] : least;
  return least;
}

/// Doubles that are computed together.
using CostLanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

inline CostLanes load_costs(const double* from) {
  CostLanes out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
inline CostLanes load_costs(const float* from) {
#ifdef __AVX__
  return _mm256_cvtps_pd(_mm_loadu_ps(from));  // of a conversion of lanes GCC 12 makes two
#else
  using Stored [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  Stored stored;
  std::memcpy(&stored, from, sizeof stored);
  return __builtin_convertvector(stored, CostLanes);
#endif
}

/// out[a] = min over rows b of cost_of(table[b][a], b), for all columns of a padded table; cost_of
/// gets lanes of them. `kBlocks`: so many groups of lanes stay in registers.
template <size_t kBlocks, class T, class CostOf>
void least_per_column(const T* table, size_t width, size_t rows, const CostOf& cost_of,
                      double* out) {
  const auto columns = [&]<size_t kGroups>(std::integral_constant<size_t, kGroups>, size_t from) {
    CostLanes least[kGroups];
    for (CostLanes& lanes : least) lanes = CostLanes{} + kInfeasible;
    const T* row = table + from;
    for (size_t b = 0; b < rows; ++b, row += width) {
      for (size_t g = 0; g < kGroups; ++g) {
        const CostLanes cost = cost_of(load_costs(row + g * kLanes), b);
        least[g] = cost < least[g] ? cost : least[g];
      }
    }
    std::memcpy(out + from, least, sizeof least);
  };
  size_t done = 0;
  for (; done + kLanes * kBlocks <= width; done += kLanes * kBlocks)
    columns(std::integral_constant<size_t, kBlocks>(), done);
  const size_t left = (width - done) / kLanes;
  [&]<size_t... kLess>(std::index_sequence<kLess...>) {
    ((left == kLess + 1 ? columns(std::integral_constant<size_t, kLess + 1>(), done) : void()),
     ...);
  }
  (std::make_index_sequence<kBlocks - 1>());
}

/// Moves a node's present costs, `theta`, to the edges of `targets`, in equal parts; some stay
/// where more edges, `sources`, gave to it. Messages: what edges gave to the node.
template <class Arc>
void give_costs(std::span<double> theta, size_t sources, std::span<const Arc> targets,
                double* messages) {
  if (targets.empty()) return;
  const size_t most = std::max(sources, targets.size());
  const double fraction = 1.0 / static_cast<double>(most);
  for (const Arc& arc : targets) {
    double* own = messages + arc.message;
    for (size_t a = 0; a < theta.size(); ++a) own[a] -= fraction * theta[a];
  }
  const double left = 1.0 - fraction * static_cast<double>(targets.size());
  for (double& cost : theta) cost = targets.size() == most ? 0.0 : cost * left;
}

}  // namespace shardrun
