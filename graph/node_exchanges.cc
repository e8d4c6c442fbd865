// Boxes of a node's operands and results against the shards that values lie in.
#include "graph/node_exchanges.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
namespace {

template <class T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

}  // namespace

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
  c.axes = axes_of(plan, rows.of).list();
  std::sort(c.axes.begin(), c.axes.end());  // as exchange_axes
  c.group = mesh.group(rank, c.axes);
  c.payload = RowBounds{rows.most_named, rows.most_owned};
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
    c.payload = RowBounds{rows->most_named, rows->most_owned};
  }
  const Shape& shape = (result ? out : in)[at(index)];
  const Sharding& sharding = (result ? plan.out : plan.in)[at(index)];
  MemberBlocks made;
  for (int64_t member : c.group) {
    const std::vector<int64_t> coordinates = mesh.coordinates(member);
    Box shard = local_box(shape, sharding, mesh, coordinates);
    const NodeBoxes boxes = node_boxes(plan, in, out, mesh, coordinates);
    Box held = (result ? boxes.out : boxes.in)[at(index)];
    c.in_boxes.push_back(result ? held : shard);
    c.out_boxes.push_back(result ? std::move(shard) : std::move(held));
    if (c.kind == Collective::Kind::block_exchange) made.push_back(boxes.blocks[at(index)]);
  }
  if (c.kind == Collective::Kind::block_exchange) {
    c.payload = std::move(made);
  } else if (c.in_boxes == c.out_boxes) {
    return std::nullopt;
  }
  return c;
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
