// Shapes and boxes.
#include "base/shape.h"

#include <algorithm>
#include <cstring>

#include "base/short_array.h"

namespace shardrun {

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool empty = false;  // the other dims are bounded, too: strides are made of them
  for (int64_t d : shape) {
    SR_REQUIRE(d >= 0, invalid_input, "shape ", to_string(shape), " has a negative dim");
    empty = empty || d == 0;
    SR_REQUIRE(!__builtin_mul_overflow(count, std::max<int64_t>(d, 1), &count) &&
                   count < (int64_t{1} << 60),
               invalid_input, "shape ", to_string(shape), " has more than 2^60 elements");
  }
  return empty ? 0 : count;
}

std::vector<Shape> shapes_of(std::span<const TensorType> types) {
  std::vector<Shape> shapes;
  for (const TensorType& t : types) shapes.push_back(t.shape);
  return shapes;
}

int64_t byte_size(const TensorType& type) {
  return element_count(type.shape) * size_of(type.dtype);
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Box full_box(const Shape& shape) {
  Box box;
  box.reserve(shape.size());
  for (int64_t d : shape) box.push_back({0, d});
  return box;
}

Shape box_shape(const Box& box) {
  Shape shape;
  shape.reserve(box.size());
  for (const Range& r : box) shape.push_back(r.size);
  return shape;
}

Box intersect(const Box& a, const Box& b) {
  Box out(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t begin = std::max(a[i].begin, b[i].begin);
    out[i] = {begin, std::max<int64_t>(0, std::min(a[i].end(), b[i].end()) - begin)};
  }
  return out;
}

bool is_empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Range& r) { return r.size == 0; });
}

Range shard_range(int64_t extent, int64_t parts, int64_t index) {
  const int64_t width = (extent + parts - 1) / parts;
  const int64_t begin = std::min(extent, index * width);
  return {begin, std::min(extent, begin + width) - begin};
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

std::string to_string(const TensorType& type) {
  return std::string(to_string(type.dtype)) + to_string(type.shape);
}

void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box, const Box& region,
              int64_t element_bytes) {
  if (is_empty(region)) return;
  ShortArray<int64_t> src_strides(region.size()), dst_strides(region.size());
  row_major_strides(src_box, src_strides);
  row_major_strides(dst_box, dst_strides);
  const auto* from = static_cast<const char*>(src);
  auto* to = static_cast<char*>(dst);
  int64_t run = element_bytes;  // bytes contiguous on both sides
  size_t outer = region.size();
  for (size_t i = 0; i < region.size(); ++i) {
    from += (region[i].begin - src_box[i].begin) * src_strides[i] * element_bytes;
    to += (region[i].begin - dst_box[i].begin) * dst_strides[i] * element_bytes;
  }
  while (outer > 0) {
    --outer;
    run *= region[outer].size;
    if (region[outer].size != src_box[outer].size || region[outer].size != dst_box[outer].size)
      break;
  }
  ShortArray<int64_t> index(outer);
  while (true) {
    std::memcpy(to, from, static_cast<size_t>(run));
    size_t d = outer;
    while (d-- > 0) {
      from += src_strides[d] * element_bytes;
      to += dst_strides[d] * element_bytes;
      if (++index[d] < region[d].size) break;
      from -= src_strides[d] * element_bytes * region[d].size;
      to -= dst_strides[d] * element_bytes * region[d].size;
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace shardrun
