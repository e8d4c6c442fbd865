// The options of a node's rule, read as ways to make some indices of an axis.
#include "planner/rules/axis_ways.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
namespace {

/// Does the dim hold the axis as the place says?
bool holds(const Shape& shape, AxisPlace place, int64_t size) {
  return at(place.dim) < shape.size() && place.outer > 0 &&
         shape[at(place.dim)] % (place.outer * size) == 0;
}

/// Where the axis of a reshape's result lies in its operand: the elements between two indices stay
/// as many.
std::optional<AxisPlace> through_reshape(const Shape& from, AxisPlace place, const Shape& to,
                                         int64_t size) {
  int64_t step = from[at(place.dim)] / (place.outer * size);
  for (size_t d = at(place.dim) + 1; d < from.size(); ++d) step *= from[d];
  int64_t behind = 1;
  for (size_t d = to.size(); d-- > 0; behind *= to[d]) {
    const int64_t all = behind * to[d];
    if (step < behind || step * size > all) continue;
    if (step % behind != 0 || all % (step * size) != 0) return std::nullopt;
    const AxisPlace out{static_cast<int>(d), all / (step * size)};
    return out;
  }
  return std::nullopt;
}

Box box_along(const Shape& shape, const std::optional<AxisPlace>& place, int64_t size,
              int64_t begin, int64_t count) {
  Box box = full_box(shape);
  if (!place) return box;
  Range& range = box[at(place->dim)];
  const int64_t each = range.size / size;
  range = {begin * each, count * each};
  return box;
}

Attrs localised(const Node& node, const std::vector<TensorType>& in,
                const std::vector<TensorType>& out, const AxisWay& way, int64_t size, int64_t begin,
                int64_t count) {
  const OpDef& def = op_def(node.op);
  if (!def.localise) return node.attrs;
  std::vector<Box> in_boxes, out_boxes;
  for (size_t i = 0; i < in.size(); ++i)
    in_boxes.push_back(box_along(in[i].shape, way.in[i], size, begin, count));
  for (size_t r = 0; r < out.size(); ++r)
    out_boxes.push_back(box_along(out[r].shape, way.out[r], size, begin, count));
  return def.localise(node, in, {in_boxes, out_boxes});
}

std::optional<AxisWay> way_of(const SpmdRule::Option& option, const std::vector<TensorType>& in,
                              const std::vector<TensorType>& out, size_t result, AxisPlace place,
                              int64_t size) {
  if (option.divisor != 0) return std::nullopt;
  const Placement& wanted = option.out[result];
  if (!wanted.is_shard() || wanted.dim != place.dim) return std::nullopt;
  AxisWay way;
  const auto read = [&](const std::vector<Placement>& placements,
                        const std::vector<TensorType>& types,
                        std::vector<std::optional<AxisPlace>>& to) {
    for (size_t i = 0; i < placements.size(); ++i) {
      const Placement& p = placements[i];
      if (p.kind == Placement::Kind::replicate) {
        to.push_back(std::nullopt);
        continue;
      }
      const AxisPlace here{p.dim, place.outer};
      if (!p.is_shard() || !holds(types[i].shape, here, size)) return false;
      to.push_back(here);
    }
    return true;
  };
  if (!read(option.in, in, way.in) || !read(option.out, out, way.out)) return std::nullopt;
  return way;
}

}  // namespace

std::vector<AxisWay> ways_along(const Node& node, const std::vector<TensorType>& in,
                                const std::vector<TensorType>& out, size_t result, AxisPlace place,
                                int64_t size, RuleCache& rules) {
  SR_REQUIRE(size >= 2 && holds(out[result].shape, place, size), internal, "node '", node.name,
             "': an axis of ", size, " is not at dim ", place.dim, " of ", out[result]);
  if (op_def(node.op).reshapes) {
    const auto from = through_reshape(out[0].shape, place, in[0].shape, size);
    if (!from) return {};
    return {{{*from}, {place}}};
  }
  std::vector<AxisWay> ways;
  for (const SpmdRule::Option& option : rules.rule(node, in).options) {
    std::optional<AxisWay> way = way_of(option, in, out, result, place, size);
    if (!way) continue;
    const bool anywhere = localised(node, in, out, *way, size, 0, 1) ==
                          localised(node, in, out, *way, size, size - 1, 1);
    if (anywhere) ways.push_back(std::move(*way));
  }
  return ways;
}

Attrs attrs_along(const Node& node, const std::vector<TensorType>& in,
                  const std::vector<TensorType>& out, const AxisWay& way, int64_t size,
                  int64_t count) {
  return localised(node, in, out, way, size, 0, count);
}

}  // namespace shardrun
