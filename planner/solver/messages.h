// What message passing does alike over strategies (Bound) and over rows and columns
// (FactoredBound).
#pragma once

#include <algorithm>
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

/// out[a] = min over rows b of cost_of(table[b][a], b), for all columns of a padded table.
/// `kBlocks`: so many groups of lanes stay in registers.
template <size_t kBlocks, class T, class CostOf>
void least_per_column(const T* table, size_t width, size_t rows, const CostOf& cost_of,
                      double* out) {
  const auto columns = [&]<size_t kColumns>(std::integral_constant<size_t, kColumns>, size_t from) {
    double least[kColumns];
    for (size_t a = 0; a < kColumns; ++a) least[a] = kInfeasible;
    const T* row = table + from;
    for (size_t b = 0; b < rows; ++b, row += width) {
      for (size_t a = 0; a < kColumns; ++a) {
        const double cost = cost_of(row[a], b);
        least[a] = cost < least[a] ? cost : least[a];
      }
    }
    for (size_t a = 0; a < kColumns; ++a) out[from + a] = least[a];
  };
  size_t done = 0;
  for (; done + kLanes * kBlocks <= width; done += kLanes * kBlocks)
    columns(std::integral_constant<size_t, kLanes * kBlocks>(), done);
  const size_t left = (width - done) / kLanes;
  [&]<size_t... kLess>(std::index_sequence<kLess...>) {
    ((left == kLess + 1 ? columns(std::integral_constant<size_t, kLanes*(kLess + 1)>(), done)
                        : void()),
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
