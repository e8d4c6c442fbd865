// Halos: placing windows and blocks, the exchanges that they need, and their time.
#include "planner/halo.h"

#include <algorithm>
#include <set>

#include "planner/cost/collective_cost.h"

namespace shardrun {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

std::vector<Shape> shapes_of(std::span<const TensorType> types) {
  std::vector<Shape> shapes;
  for (const TensorType& t : types) shapes.push_back(t.shape);
  return shapes;
}

const std::vector<int>& axes_of(const NodePlan& plan, const NodeDim& dim) {
  return (dim.result ? plan.out : plan.in)[at(dim.index)].dims[at(dim.dim)];
}

void place(Sharding& sharding, const Placement& placement, int axis) {
  switch (placement.kind) {
    case Placement::Kind::replicate: break;
    case Placement::Kind::shard: sharding.dims[at(placement.dim)].push_back(axis); break;
    case Placement::Kind::partial: sharding.partial.push_back({axis, placement.op}); break;
  }
}

template <class T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

/// Coordinates along `axes`, 0 along all others: every one where there are few, else the ends and
/// the middle of each axis. Ranks between do as their neighbours.
std::vector<std::vector<int64_t>> sample_coordinates(const std::vector<int>& axes,
                                                     const Mesh& mesh) {
  constexpr int64_t kMostPerAxis = 4;
  std::vector<std::vector<int64_t>> out{std::vector<int64_t>(at(mesh.axis_count()), 0)};
  for (int axis : axes) {
    const int64_t n = mesh.axis_size(axis);
    std::vector<int64_t> places;
    for (int64_t i = 0; i < n; ++i) {
      if (n <= kMostPerAxis || i == 0 || i == n / 2 || i == n - 1) places.push_back(i);
    }
    std::vector<std::vector<int64_t>> next;
    for (const auto& coordinates : out) {
      for (int64_t place : places) {
        next.push_back(coordinates);
        next.back()[at(axis)] = place;
      }
    }
    out = std::move(next);
  }
  return out;
}

double volume(const Box& box) { return static_cast<double>(element_count(box_shape(box))); }

/// How many of the chunks of `width` rows does the range touch?
double chunks_touched(const Range& range, int64_t width) {
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

NodePlan replicated_node(std::span<const TensorType> in, std::span<const TensorType> out) {
  NodePlan plan;
  for (const TensorType& t : in) plan.in.push_back(Sharding::replicated(t.shape.size()));
  for (const TensorType& t : out) plan.out.push_back(Sharding::replicated(t.shape.size()));
  return plan;
}

void place(NodePlan& plan, const std::vector<Placement>& in, const std::vector<Placement>& out,
           int axis) {
  for (size_t i = 0; i < in.size(); ++i) place(plan.in[i], in[i], axis);
  for (size_t r = 0; r < out.size(); ++r) place(plan.out[r], out[r], axis);
  NodeDim anchor{false, -1, 0};
  for (const bool result : {true, false}) {
    const std::vector<Placement>& placements = result ? out : in;
    for (size_t i = 0; i < placements.size() && anchor.index < 0; ++i) {
      if (placements[i].is_chunk()) anchor = {result, static_cast<int>(i), placements[i].dim};
    }
  }
  for (const bool result : {false, true}) {
    const std::vector<Placement>& placements = result ? out : in;
    for (size_t i = 0; i < placements.size(); ++i) {
      const Placement& p = placements[i];
      const NodeDim of{result, static_cast<int>(i), p.dim};
      if (p.window) add_once(plan.halos, Halo{of, anchor, *p.window});
      if (p.rows_by >= 0)
        add_once(plan.rows, Rows{of, {false, p.rows_by, in[at(p.rows_by)].dim}, p.op});
      if (p.blocks.empty()) continue;
      Blocks blocks{of, {}};
      for (int operand : p.blocks) blocks.of.push_back({false, operand, in[at(operand)].dim});
      add_once(plan.blocks, blocks);
    }
  }
}

bool cuts_agree(const NodePlan& plan, const SpmdRule::Option& option) {
  const std::vector<int>* axes = nullptr;
  for (const bool result : {false, true}) {
    const std::vector<Placement>& placements = result ? option.out : option.in;
    for (size_t i = 0; i < placements.size(); ++i) {
      if (placements[i].kind != Placement::Kind::shard) continue;
      const std::vector<int>& own = axes_of(plan, {result, static_cast<int>(i), placements[i].dim});
      if (axes != nullptr && own != *axes) return false;
      axes = &own;
    }
  }
  return true;
}

bool halos_agree(const NodePlan& plan) {
  if (!plan.exchanges()) return true;
  std::set<NodeDim> special;
  for (const Halo& halo : plan.halos) {
    if (!special.insert(halo.of).second || axes_of(plan, halo.of) != axes_of(plan, halo.anchor))
      return false;
  }
  for (const Blocks& blocks : plan.blocks) {
    const bool other = std::any_of(special.begin(), special.end(), [&](const NodeDim& dim) {
      return dim.result && dim.index == blocks.result.index;
    });
    if (other) return false;
    special.insert(blocks.result);
    for (const NodeDim& of : blocks.of) {
      if (axes_of(plan, of) != axes_of(plan, blocks.result) || special.count(of) > 0) return false;
    }
  }
  for (const Rows& rows : plan.rows) {
    const bool other = std::any_of(special.begin(), special.end(), [&](const NodeDim& dim) {
      return dim.result == rows.of.result && dim.index == rows.of.index;
    });
    if (other || axes_of(plan, rows.of) != axes_of(plan, rows.by)) return false;
    special.insert(rows.of);
  }
  return std::none_of(plan.halos.begin(), plan.halos.end(),
                      [&](const Halo& halo) { return special.count(halo.anchor) > 0; });
}

bool is_exchanged(const NodePlan& plan, const NodeDim& dim) {
  return std::any_of(plan.halos.begin(), plan.halos.end(),
                     [&](const Halo& halo) { return halo.of == dim; }) ||
         std::any_of(plan.blocks.begin(), plan.blocks.end(), [&](const Blocks& blocks) {
           return std::find(blocks.of.begin(), blocks.of.end(), dim) != blocks.of.end();
         });
}

const Rows* rows_of(const NodePlan& plan, bool result, int index) {
  for (const Rows& rows : plan.rows) {
    if (rows.of.result == result && rows.of.index == index) return &rows;
  }
  return nullptr;
}

std::optional<Collective> route_of(const NodePlan& plan, const std::vector<Shape>& in,
                                   const std::vector<Shape>& out, const Mesh& mesh, int64_t rank) {
  if (plan.rows.empty()) return std::nullopt;
  const Rows& rows = plan.rows[0];
  const int64_t extent = (rows.of.result ? out : in)[at(rows.of.index)][at(rows.of.dim)];
  Collective c;
  c.kind = Collective::Kind::row_route;
  c.axes = axes_of(plan, rows.of);
  std::sort(c.axes.begin(), c.axes.end());  // as exchange_axes
  c.group = mesh.group(rank, c.axes);
  c.most_named = rows.most_named;
  c.most_owned = rows.most_owned;
  const Sharding cut{{axes_of(plan, rows.of)}, {}};
  for (int64_t member : c.group)
    c.in_boxes.push_back(local_box({extent}, cut, mesh, mesh.coordinates(member)));
  c.out_boxes = c.in_boxes;
  return c;
}

std::optional<Collective> exchange_of(const NodePlan& plan, const std::vector<Shape>& in,
                                      const std::vector<Shape>& out, bool result, int index,
                                      const Mesh& mesh, int64_t rank) {
  const std::vector<int> axes = exchange_axes(plan, result, index);
  if (axes.empty()) return std::nullopt;
  Collective c;
  c.axes = axes;
  c.group = mesh.group(rank, axes);
  c.kind = result ? Collective::Kind::halo_add : Collective::Kind::halo_exchange;
  for (const Blocks& blocks : plan.blocks) {
    if (!result || blocks.result.index != index) continue;
    c.kind = Collective::Kind::block_exchange;
    c.dim = blocks.result.dim;
  }
  if (const Rows* rows = rows_of(plan, result, index)) {
    if (rows->most_named == 0) return std::nullopt;  // all that is named is at home
    c.kind = result ? Collective::Kind::row_add : Collective::Kind::row_fetch;
    c.dim = rows->of.dim;
    c.op = rows->op;
    c.most_named = rows->most_named;
    c.most_owned = rows->most_owned;
  }
  const Shape& shape = (result ? out : in)[at(index)];
  const Sharding& sharding = (result ? plan.out : plan.in)[at(index)];
  for (int64_t member : c.group) {
    const std::vector<int64_t> coordinates = mesh.coordinates(member);
    Box chunk = local_box(shape, sharding, mesh, coordinates);
    const NodeBoxes boxes = node_boxes(plan, in, out, mesh, coordinates);
    Box held = (result ? boxes.out : boxes.in)[at(index)];
    c.in_boxes.push_back(result ? held : chunk);
    c.out_boxes.push_back(result ? std::move(chunk) : std::move(held));
    if (c.kind == Collective::Kind::block_exchange) c.in_blocks.push_back(boxes.blocks[at(index)]);
  }
  if (c.kind != Collective::Kind::block_exchange && c.in_boxes == c.out_boxes) return std::nullopt;
  return c;
}

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
  bool chunks = true;
  for (const std::vector<int64_t>& coordinates : sample_coordinates(axes, mesh)) {
    const Box chunk = local_box(type.shape, sharding, mesh, coordinates);
    const NodeBoxes boxes = node_boxes(plan, in_shapes, out_shapes, mesh, coordinates);
    const Box& held = (result ? boxes.out : boxes.in)[at(index)];
    const std::vector<Range> none;
    const std::vector<Range>& blocks = result ? boxes.blocks[at(index)] : none;
    double kept = 0, peers = 0;
    if (blocks.empty()) {
      kept = volume(intersect(held, chunk));
      peers = 1;
      for (size_t d = 0; d < held.size(); ++d) {
        if (!sharding.dims[d].empty()) peers *= chunks_touched(held[d], widths[d]);
      }
    }
    for (const Range& block : blocks) {
      for (const Blocks& b : plan.blocks) {
        if (b.result.index != index) continue;
        Box part = held;
        part[at(b.result.dim)] = block;
        kept += volume(intersect(part, chunk));
        peers += chunks_touched(block, widths[at(b.result.dim)]);
      }
    }
    if (kept > 0) peers -= 1;
    chunks = chunks && blocks.empty() && held == chunk;
    most_moved = std::max(most_moved, volume(held) - kept);
    most_messages = std::max(most_messages, peers);
    most_held = std::max(most_held, volume(held));
  }
  if (chunks) return 0;
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
  const Wire wire = wire_of(axes_of(plan, rows.by), mesh, cluster);
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

NodeTypes largest_types(const NodePlan& plan, std::span<const TensorType> in,
                        std::span<const TensorType> out, const Mesh& mesh) {
  const std::vector<Shape> in_shapes = shapes_of(in), out_shapes = shapes_of(out);
  std::vector<int> axes;
  for (size_t i = 0; i < in.size(); ++i) {
    for (int axis : exchange_axes(plan, false, static_cast<int>(i))) add_once(axes, axis);
  }
  for (size_t r = 0; r < out.size(); ++r) {
    for (int axis : exchange_axes(plan, true, static_cast<int>(r))) add_once(axes, axis);
  }
  NodeTypes types;
  for (const TensorType& t : in) types.in.push_back({t.dtype, Shape(t.shape.size(), 0)});
  for (const TensorType& t : out) types.out.push_back({t.dtype, Shape(t.shape.size(), 0)});
  const auto widen = [](std::vector<TensorType>& to, const std::vector<Box>& boxes) {
    for (size_t i = 0; i < boxes.size(); ++i) {
      for (size_t d = 0; d < boxes[i].size(); ++d)
        to[i].shape[d] = std::max(to[i].shape[d], boxes[i][d].size);
    }
  };
  for (const std::vector<int64_t>& coordinates : sample_coordinates(axes, mesh)) {
    const NodeBoxes boxes = node_boxes(plan, in_shapes, out_shapes, mesh, coordinates);
    widen(types.in, boxes.in);
    widen(types.out, boxes.out);
  }
  return types;
}

}  // namespace shardrun
