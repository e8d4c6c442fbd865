// The rank that gets or gives the most, found among few.
#include "planner/cost/exchange_cost.h"

#include <algorithm>

#include "base/at.h"
#include "graph/node_exchanges.h"
#include "planner/cost/collective_cost.h"

namespace shardrun {
namespace {

double volume(const Box& box) { return static_cast<double>(element_count(box_shape(box))); }

/// How many of the shards of `width` rows does the range touch?
double shards_touched(const Range& range, int64_t width) {
  if (range.size == 0 || width == 0) return range.size == 0 ? 0 : 1;
  return static_cast<double>((range.end() - 1) / width - range.begin / width + 1);
}

/// The rows that change ranks and the ones that stay, packing included.
double row_seconds(const Rows& rows, const TensorType& type, const Sharding& sharding,
                   const Mesh& mesh, const Wire& wire, const Cluster& cluster) {
  if (rows.most_named == 0) return 0;
  const auto held = static_cast<double>(max_local_bytes(type, sharding, mesh));
  const auto own = static_cast<double>(
      box_shape(local_box(type.shape, sharding, mesh,
                          std::vector<int64_t>(at(mesh.axis_count()), 0)))[at(rows.of.dim)]);
  const double row = own == 0 ? 0 : held / own;
  const double named = row * static_cast<double>(rows.most_named),
               owned = row * static_cast<double>(rows.most_owned);
  const double sent = rows.of.result ? named : owned, received = rows.of.result ? owned : named;
  return exchange_seconds(sent, received, wire.span.ranks - 1, wire) +
         2 * (held + owned) / cluster.memory_bandwidth.value();
}

}  // namespace

double exchange_seconds(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, bool result, int index, const Mesh& mesh,
                        const Cluster& cluster) {
  const std::vector<int> axes = exchange_axes(plan, result, index);
  if (axes.empty()) return 0;
  const std::vector<Shape> in_shapes = shapes_of(in), out_shapes = shapes_of(out);
  const TensorType& type = (result ? out : in)[at(index)];
  const Sharding& sharding = (result ? plan.out : plan.in)[at(index)];
  const Shape widths = box_shape(
      local_box(type.shape, sharding, mesh, std::vector<int64_t>(at(mesh.axis_count()), 0)));
  double most_moved = 0, most_messages = 0, most_held = 0;
  bool shards = true;
  for (const std::vector<int64_t>& coordinates : sample_coordinates(axes, mesh)) {
    const Box shard = local_box(type.shape, sharding, mesh, coordinates);
    const NodeBoxes boxes = node_boxes(plan, in_shapes, out_shapes, mesh, coordinates);
    const Box& held = (result ? boxes.out : boxes.in)[at(index)];
    const std::vector<Range> none;
    const std::vector<Range>& blocks = result ? boxes.blocks[at(index)] : none;
    double kept = 0, peers = 0;
    if (blocks.empty()) {
      kept = volume(intersect(held, shard));
      peers = 1;
      for (size_t d = 0; d < held.size(); ++d) {
        if (!sharding.dims[d].empty()) peers *= shards_touched(held[d], widths[d]);
      }
    }
    for (const Range& block : blocks) {
      for (const Blocks& b : plan.blocks) {
        if (b.result.index != index) continue;
        Box part = held;
        part[at(b.result.dim)] = block;
        kept += volume(intersect(part, shard));
        peers += shards_touched(block, widths[at(b.result.dim)]);
      }
    }
    if (kept > 0) peers -= 1;
    shards = shards && blocks.empty() && held == shard;
    most_moved = std::max(most_moved, volume(held) - kept);
    most_messages = std::max(most_messages, peers);
    most_held = std::max(most_held, volume(held));
  }
  if (shards) return 0;
  const auto element = static_cast<double>(size_of(type.dtype));
  if (const Rows* rows = rows_of(plan, result, index))
    return row_seconds(*rows, type, sharding, mesh, wire_of(axes, mesh, cluster), cluster);
  // Through memory: the copy of what stays, and packing and unpacking.
  return exchange_seconds(most_moved * element, most_moved * element,
                          static_cast<int64_t>(most_messages), wire_of(axes, mesh, cluster)) +
         (2 * most_held + 4 * most_moved) * element / cluster.memory_bandwidth.value();
}

/// A mark for each row, two looks at each number, and two messages: how many rows, and which.
double route_seconds(const NodePlan& plan, std::span<const TensorType> in,
                     std::span<const TensorType> out, const Mesh& mesh, const Cluster& cluster) {
  if (plan.rows.empty()) return 0;
  const Rows& rows = plan.rows[0];
  const TensorType &numbers = in[at(rows.by.index)],
                   &of = (rows.of.result ? out : in)[at(rows.of.index)];
  const double id = sizeof(int64_t);
  const auto count = static_cast<double>(
                 max_local_count(numbers.shape, plan.in[at(rows.by.index)], mesh)),
             extent = static_cast<double>(of.shape[at(rows.of.dim)]);
  const double local = id * (3 * count + 3 * extent) / cluster.memory_bandwidth.value();
  if (rows.most_named == 0) return local;
  const Wire wire = wire_of(axes_of(plan, rows.by).list(), mesh, cluster);
  const int64_t peers = wire.span.ranks - 1;
  const double counts = id * static_cast<double>(peers),
               most = id * static_cast<double>(std::max(rows.most_named, rows.most_owned));
  return local + exchange_seconds(counts, counts, peers, wire) +
         exchange_seconds(most, most, peers, wire);
}

double exchange_seconds(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, const Mesh& mesh, const Cluster& cluster) {
  double seconds = 0;
  for (size_t i = 0; i < in.size(); ++i)
    seconds += exchange_seconds(plan, in, out, false, static_cast<int>(i), mesh, cluster);
  for (size_t r = 0; r < out.size(); ++r)
    seconds += exchange_seconds(plan, in, out, true, static_cast<int>(r), mesh, cluster);
  return seconds;
}

}  // namespace shardrun
