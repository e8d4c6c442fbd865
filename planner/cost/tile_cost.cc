// Waves of tiles, and the quickest way to cut a product into them.
#include "planner/cost/tile_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace shardrun {
namespace {

constexpr std::array<double, 4> kSplits = {1, 2, 4, 8};  // of k
constexpr double kMostWaves = 4;                         // of a product whose k is split
constexpr double kPartBytes = 4;                         // of an element of a part: f32
constexpr double kNever = std::numeric_limits<double>::infinity();

/// A product on multiprocessors, and what one of these does in a second.
struct Tiling {
  const MatmulWork& work;
  double element;  // bytes
  double multiprocessors, flops, bytes;
  double latency;   // s until a tile has operands
  double elements;  // of the largest tile

  double seconds(double rows, double columns, double split) const {
    const double tiles =
        work.batch * std::ceil(work.m / rows) * std::ceil(work.n / columns) * split;
    if (split > 1 && tiles > kMostWaves * multiprocessors) return kNever;
    const double waves = std::ceil(tiles / multiprocessors);
    const double step = std::max(2 * rows * columns / flops, (rows + columns) * element / bytes);
    const double written = rows * columns * (split > 1 ? kPartBytes : element);
    const double at_once = std::floor(elements / (rows * columns));
    return waves * step * work.k / split + std::ceil(waves / at_once) * (latency + written / bytes);
  }
  /// To add up the parts of a split product.
  double adding(double split) const {
    return work.batch * work.m * work.n * (split * kPartBytes + element) /
           (bytes * multiprocessors);
  }
};

}  // namespace

double product_seconds(const MatmulWork& work, DType dtype, const Cluster& cluster) {
  const double flops = 2 * work.batch * work.m * work.n * work.k;
  const Cluster::Tiles& tiles = cluster.tiles;
  if (tiles.multiprocessors == 0 || flops == 0) return flops / cluster.flops_for(dtype);
  const auto count = static_cast<double>(tiles.multiprocessors);
  const Tiling tiling{
      .work = work,
      .element = static_cast<double>(size_of(dtype)),
      .multiprocessors = count,
      .flops = cluster.flops_for(dtype) / count,
      .bytes = tiles.cache_bandwidth.value() / count,
      .latency = tiles.latency,
      .elements = static_cast<double>(tiles.shapes[0].first * tiles.shapes[0].second)};
  double best = kNever;
  for (const double split : kSplits) {
    const double adding = split > 1 ? tiling.adding(split) + cluster.kernel_latency : 0;
    for (const auto& [rows, columns] : tiles.shapes) {
      const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
      best = std::min(best, adding + tiling.seconds(r, c, split));
      if (rows != columns) best = std::min(best, adding + tiling.seconds(c, r, split));
    }
  }
  return best;
}

}  // namespace shardrun
