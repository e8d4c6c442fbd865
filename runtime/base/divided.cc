#include "base/divided.h"

#include "base/error.h"

namespace shardrun {
namespace {

/// A range of one of the file's dims, and the ranges of the value's dims that it is divided into.
struct Segment {
  Range file;
  std::vector<Range> value;
};

/// Of a dim that is divided into `extents`: what `ranges` of these take of it, in order. Behind the
/// last dim that is not taken whole everything is one run.
std::vector<Segment> segments(const std::vector<int64_t>& extents,
                              const std::vector<Range>& ranges) {
  size_t outer = extents.size();
  int64_t run = 1;
  while (outer > 0 && ranges[outer - 1].size == extents[outer - 1]) run *= extents[--outer];
  std::vector<Segment> out;
  const size_t single = outer == 0 ? 0 : outer - 1;  // dims of which each index is a segment
  std::vector<int64_t> index(single, 0);
  while (true) {
    Segment segment;
    int64_t at = 0;
    for (size_t d = 0; d < single; ++d) {
      segment.value.push_back({ranges[d].begin + index[d], 1});
      at = at * extents[d] + segment.value.back().begin;
    }
    for (size_t d = single; d < extents.size(); ++d) segment.value.push_back(ranges[d]);
    const Range inner = outer == 0 ? Range{0, 1} : ranges[single];
    if (outer > 0) at = at * extents[single] + inner.begin;
    segment.file = {at * run, inner.size * run};
    out.push_back(std::move(segment));
    size_t d = single;
    while (d-- > 0) {
      if (++index[d] < ranges[d].size) break;
      index[d] = 0;
    }
    if (d == static_cast<size_t>(-1)) return out;
  }
}

}  // namespace

std::vector<Part> parts_of(const Shape& file_shape, const Shape& value_shape, const Box& box) {
  if (is_empty(box)) return {};
  if (file_shape == value_shape) return {{box, box}};
  std::vector<Part> out = {{}};
  size_t next = 0;  // of the value's dims
  for (size_t f = 0; f < file_shape.size(); ++f) {
    const size_t first = next;
    int64_t product = 1;
    while (next < value_shape.size() && product != file_shape[f]) product *= value_shape[next++];
    if (f + 1 == file_shape.size()) {
      while (next < value_shape.size() && value_shape[next] == 1) ++next;
    }
    SR_REQUIRE(product == file_shape[f], internal, "the dims of ", to_string(value_shape),
               " do not divide those of ", to_string(file_shape));
    const auto at = [&](const auto& list) {
      return std::vector(list.begin() + static_cast<std::ptrdiff_t>(first),
                         list.begin() + static_cast<std::ptrdiff_t>(next));
    };
    std::vector<Part> longer;
    for (const Part& part : out) {
      for (const Segment& segment : segments(at(value_shape), at(box))) {
        longer.push_back(part);
        longer.back().file.push_back(segment.file);
        longer.back().value.insert(longer.back().value.end(), segment.value.begin(),
                                   segment.value.end());
      }
    }
    out = std::move(longer);
  }
  SR_REQUIRE(next == value_shape.size(), internal, "the dims of ", to_string(value_shape),
             " do not divide those of ", to_string(file_shape));
  return out;
}

}  // namespace shardrun
