// Reading or making one shard of a persistent value.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/divided.h"
#include "base/philox.h"
#include "graph/graph.h"

namespace shardrun {
namespace {

/// Visits the runs of a box that are contiguous in a dense tensor of `shape`: f(first global
/// element, count).
template <class F>
void for_each_run(const Shape& shape, const Box& box, F f) {
  if (is_empty(box)) return;
  const Shape strides = row_major_strides(shape);
  // Whole dims behind another make one run with it: a 1 x 1 kernel's rows are not of one number.
  size_t outer = shape.size();
  int64_t length = 1;
  for (bool whole = true; outer > 0 && whole; --outer) {
    length *= box[outer - 1].size;
    whole = box[outer - 1].size == shape[outer - 1];
  }
  std::vector<int64_t> index(outer, 0);
  while (true) {
    int64_t first = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      first += (box[d].begin + (d < outer ? index[d] : 0)) * strides[d];
    f(first, length);
    size_t d = outer;
    while (d-- > 0) {
      if (++index[d] < box[d].size) break;
      index[d] = 0;
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

/// out[i in box, row-major over the value's dims] = stored element at the permuted position.
/// `stored` is dense and holds `stored_box` of the stored tensor.
void permute_into(const char* stored, const Box& stored_box, const std::vector<int64_t>& perm,
                  const Box& box, int64_t element_bytes, char* out) {
  const Shape stored_strides = row_major_strides(box_shape(stored_box));
  const Shape shape = box_shape(box);
  std::vector<int64_t> index(shape.size(), 0);
  const int64_t count = element_count(shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      at += index[d] * stored_strides[static_cast<size_t>(perm[d])];
    std::memcpy(out + i * element_bytes, stored + at * element_bytes,
                static_cast<size_t>(element_bytes));
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

/// Reads the box of a stored tensor (dims reshaped to the value's where they differ) in its own
/// dtype.
void read_stored(const Source& source, const TensorType& type, const Box& box,
                 std::vector<char>& raw) {
  const DType dtype = source.kind == Source::Kind::data ? source.data.dtype() : source.dtype;
  const int64_t width = size_of(dtype);
  raw.resize(static_cast<size_t>(element_count(box_shape(box)) * width));
  Box stored_box = box;
  Shape stored_shape = type.shape;
  if (!source.perm.empty()) {
    for (size_t d = 0; d < box.size(); ++d) {
      stored_box[static_cast<size_t>(source.perm[d])] = box[d];
      stored_shape[static_cast<size_t>(source.perm[d])] = type.shape[d];
    }
  }
  std::vector<char> direct;
  std::vector<char>& target = source.perm.empty() ? raw : direct;
  target.resize(raw.size());
  char* to = target.data();
  if (source.kind == Source::Kind::data) {
    const auto* from = static_cast<const char*>(source.data.data());
    for_each_run(stored_shape, stored_box, [&](int64_t first, int64_t count) {
      std::memcpy(to, from + first * width, static_cast<size_t>(count * width));
      to += count * width;
    });
  } else {
    for_each_run(stored_shape, stored_box, [&](int64_t first, int64_t count) {
      source.file->read(source.offset + first * width, count * width, to);
      to += count * width;
    });
  }
  if (!source.perm.empty())
    permute_into(direct.data(), stored_box, source.perm, box, width, raw.data());
}

/// Fills `out` (elements of `dtype`) in row-major order of the box: f(first, n, to) makes floats of
/// the global elements first, first + 1, …
template <class F>
void generate(const TensorType& type, const Box& box, void* out, F f) {
  dispatch_float(type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* to = static_cast<T*>(out);
    float made[1024];
    for_each_run(type.shape, box, [&](int64_t first, int64_t count) {
      for (int64_t n; count > 0; first += n, count -= n) {
        n = std::min<int64_t>(count, std::size(made));
        f(static_cast<uint64_t>(first), n, made);
        to = std::transform(made, made + n, to, [](float x) { return static_cast<T>(x); });
      }
    });
  });
}

/// The shape of which perm and parts are; the tensor's own where elements only follow each other.
Shape shape_of(const Source& source, const Shape& tensor) {
  if (source.kind == Source::Kind::parts) {
    Shape out(source.parts[0].box.size(), 0);
    for (const SourcePart& part : source.parts) {
      for (size_t d = 0; d < out.size(); ++d) out[d] = std::max(out[d], part.box[d].end());
    }
    return out;
  }
  const Shape& stored = source.kind == Source::Kind::data ? source.data.shape() : source.shape;
  if (source.perm.empty()) return tensor;
  Shape out;
  for (const int64_t dim : source.perm) out.push_back(stored[static_cast<size_t>(dim)]);
  return out;
}

void read_parts(const Source& source, const TensorType& type, const Box& box, uint64_t seed,
                void* out) {
  for (const SourcePart& part : source.parts) {
    const Box region = intersect(part.box, box);
    if (is_empty(region)) continue;
    Box inner = region;
    for (size_t d = 0; d < inner.size(); ++d) inner[d].begin -= part.box[d].begin;
    const Tensor read({type.dtype, box_shape(region)});
    read_source(part.source, {type.dtype, box_shape(part.box)}, inner, seed, read.data());
    copy_box(read.data(), region, out, box, region, size_of(type.dtype));
  }
}

/// Reads a box of a tensor whose dims divide those of `whole`.
void read_divided(const Source& source, const Shape& whole, const TensorType& type, const Box& box,
                  uint64_t seed, void* out) {
  for (const Part& part : parts_of(whole, type.shape, box)) {
    const Tensor read({type.dtype, box_shape(part.file)});
    read_source(source, {type.dtype, whole}, part.file, seed, read.data());
    copy_box(read.data(), part.value, out, box, part.value, size_of(type.dtype));
  }
}

}  // namespace

void read_source(const Source& source, const TensorType& type, const Box& box, uint64_t seed,
                 void* out) {
  const int64_t count = element_count(box_shape(box));
  if (count == 0) return;
  if (const Shape whole = shape_of(source, type.shape); whole != type.shape)
    return read_divided(source, whole, type, box, seed, out);
  const RandomStream random{seed, hash_name(source.stream.data(), source.stream.size()), 0};
  switch (source.kind) {
    case Source::Kind::zeros:
      std::memset(out, 0, static_cast<size_t>(count * size_of(type.dtype)));
      return;
    case Source::Kind::constant:
      for (int64_t i = 0; i < count; ++i) {
        convert(&source.a, DType::f64, static_cast<char*>(out) + i * size_of(type.dtype),
                type.dtype, 1);
      }
      return;
    case Source::Kind::normal:
      return generate(type, box, out, [&](uint64_t first, int64_t n, float* to) {
        random.normals(first, n, to);
        for (int64_t i = 0; i < n; ++i)
          to[i] = static_cast<float>(source.a + source.b * static_cast<double>(to[i]));
      });
    case Source::Kind::uniform:
      return generate(type, box, out, [&](uint64_t first, int64_t n, float* to) {
        for (int64_t i = 0; i < n; ++i) {
          const double u = random.uniform(first + static_cast<uint64_t>(i));
          to[i] = static_cast<float>(source.a + (source.b - source.a) * u);
        }
      });
    case Source::Kind::parts: return read_parts(source, type, box, seed, out);
    case Source::Kind::data:
    case Source::Kind::file: {
      const bool held = source.kind == Source::Kind::data;
      const int64_t stored = element_count(held ? source.data.shape() : source.shape);
      SR_REQUIRE(stored == element_count(type.shape), internal, "source holds ", stored,
                 " elements, value ", type, " wants ", element_count(type.shape));
      std::vector<char> raw;
      read_stored(source, type, box, raw);
      convert(raw.data(), held ? source.data.dtype() : source.dtype, out, type.dtype, count);
      return;
    }
  }
}

}  // namespace shardrun
