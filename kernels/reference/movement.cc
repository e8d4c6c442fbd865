// Reference kernels of shape and data movement.
#include <algorithm>

#include "base/around.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

using Ints = std::vector<int64_t>;

int64_t width(const TensorView& v) { return size_of(v.type.dtype); }

char* at(const TensorView& v, int64_t element) {
  return static_cast<char*>(v.data) + element * width(v);
}

void run_reshape(const Node&, const KernelArgs& args) { copy_elements(args.in[0], args.out[0]); }

void run_transpose(const Node& node, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Shape strides = row_major_strides(in.type.shape);
  Ints permuted;
  for (int64_t d : node.attrs.ints("perm")) permuted.push_back(strides[static_cast<size_t>(d)]);
  copy_strided(out.type.shape, in.data, 0, permuted, out.data, 0, row_major_strides(out.type.shape),
               width(in));
}

void run_expand(const Node&, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  copy_strided(out.type.shape, in.data, 0, broadcast_strides(in.type.shape, out.type.shape),
               out.data, 0, row_major_strides(out.type.shape), width(in));
}

void run_slice(const Node& node, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Ints &starts = node.attrs.ints("starts"), &steps = node.attrs.ints("steps");
  Ints strides = row_major_strides(in.type.shape);
  int64_t offset = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    offset += starts[d] * strides[d];
    strides[d] *= steps[d];
  }
  copy_strided(out.type.shape, in.data, offset, strides, out.data, 0,
               row_major_strides(out.type.shape), width(in));
}

/// Rows of one operand or part, `size` elements along the axis, between the parts and the whole.
void copy_part(const Around& parts, const TensorView& from, int64_t from_extent, int64_t from_begin,
               const TensorView& to, int64_t to_extent, int64_t to_begin, int64_t size) {
  const int64_t bytes = size * parts.inner * width(from);
  if (bytes == 0) return;
  for (int64_t o = 0; o < parts.outer; ++o) {
    std::memcpy(at(to, (o * to_extent + to_begin) * parts.inner),
                at(from, (o * from_extent + from_begin) * parts.inner), static_cast<size_t>(bytes));
  }
}

void run_concat(const Node& node, const KernelArgs& args) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const TensorView& out = args.out[0];
  const Around parts(out.type.shape, static_cast<int64_t>(axis));
  int64_t begin = 0;
  for (const TensorView& in : args.in) {
    const int64_t size = in.type.shape[axis];
    copy_part(parts, in, size, 0, out, out.type.shape[axis], begin, size);
    begin += size;
  }
}

void run_split(const Node& node, const KernelArgs& args) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const TensorView& in = args.in[0];
  const Around parts(in.type.shape, static_cast<int64_t>(axis));
  int64_t begin = 0;
  for (const TensorView& out : args.out) {
    const int64_t size = out.type.shape[axis];
    copy_part(parts, in, in.type.shape[axis], begin, out, size, 0, size);
    begin += size;
  }
}

/// out[i, j, …] = in[maps[0][i] + maps[1][j] + …]: maps hold offsets in elements.
template <class T>
void copy_mapped_as(const TensorView& in, const TensorView& out, const std::vector<Ints>& maps) {
  const T* from = in.as<T>();
  T* to = out.as<T>();
  const size_t rank = maps.size();
  const int64_t count = out.count();
  if (rank == 0) {
    if (count > 0) to[0] = from[0];
    return;
  }
  const Ints& row = maps.back();
  Ints index(rank, 0);
  for (int64_t done = 0; done < count; done += static_cast<int64_t>(row.size())) {
    int64_t offset = 0;
    for (size_t d = 0; d + 1 < rank; ++d) offset += maps[d][static_cast<size_t>(index[d])];
    for (int64_t column : row) *to++ = from[offset + column];
    for (size_t d = rank - 1; d-- > 0;) {
      if (++index[d] < static_cast<int64_t>(maps[d].size())) break;
      index[d] = 0;
    }
  }
}

void copy_mapped(const TensorView& in, const TensorView& out, const std::vector<Ints>& maps) {
  switch (width(in)) {
    case 1: return copy_mapped_as<uint8_t>(in, out, maps);
    case 2: return copy_mapped_as<uint16_t>(in, out, maps);
    case 4: return copy_mapped_as<uint32_t>(in, out, maps);
    default: return copy_mapped_as<uint64_t>(in, out, maps);
  }
}

void run_tile(const Node&, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Shape strides = row_major_strides(in.type.shape);
  std::vector<Ints> maps;
  for (size_t d = 0; d < strides.size(); ++d) {
    Ints& map = maps.emplace_back();
    for (int64_t i = 0; i < out.type.shape[d]; ++i)
      map.push_back(i % in.type.shape[d] * strides[d]);
  }
  copy_mapped(in, out, maps);
}

/// Position i (negative or past the end) in a row of n that is mirrored at its first and last
/// element: for n = 3, positions -3 … 5 are 1, 2, 1, 0, 1, 2, 1, 0, 1.
int64_t reflected(int64_t i, int64_t n) {
  if (n == 1) return 0;
  const int64_t period = 2 * (n - 1);
  i = ((i % period) + period) % period;
  return i < n ? i : period - i;
}

void run_pad(const Node& node, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Ints& before = node.attrs.ints("before");
  const std::string mode = node.attrs.s("mode", "constant");
  const Shape in_strides = row_major_strides(in.type.shape);
  const Shape out_strides = row_major_strides(out.type.shape);
  if (mode == "constant" || in.count() == 0) {
    fill_elements(out, node.attrs.f("value", 0));
    int64_t offset = 0;
    for (size_t d = 0; d < before.size(); ++d) offset += before[d] * out_strides[d];
    copy_strided(in.type.shape, in.data, 0, in_strides, out.data, offset, out_strides, width(in));
    return;
  }
  std::vector<Ints> maps;
  for (size_t d = 0; d < before.size(); ++d) {
    const int64_t n = in.type.shape[d];
    Ints& map = maps.emplace_back();
    for (int64_t i = 0; i < out.type.shape[d]; ++i) {
      const int64_t position = i - before[d];
      const int64_t source =
          mode == "edge" ? std::clamp<int64_t>(position, 0, n - 1) : reflected(position, n);
      map.push_back(source * in_strides[d]);
    }
  }
  copy_mapped(in, out, maps);
}

void run_iota(const Node& node, const KernelArgs& args) {
  const TensorView& out = args.out[0];
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const int64_t start = node.attrs.i("start", 0), step = node.attrs.i("step", 1);
  const Around parts(out.type.shape, static_cast<int64_t>(axis));
  const int64_t extent = out.type.shape[axis];
  Ints values(static_cast<size_t>(out.count()));
  size_t n = 0;
  for (int64_t o = 0; o < parts.outer; ++o) {
    for (int64_t i = 0; i < extent; ++i) {
      for (int64_t k = 0; k < parts.inner; ++k) values[n++] = start + step * i;
    }
  }
  store_all(out, values);
}

void run_fill(const Node& node, const KernelArgs& args) {
  fill_elements(args.out[0], node.attrs.f("value"));
}

void run_trilu(const Node& node, const KernelArgs& args) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Shape& shape = out.type.shape;
  const int64_t columns = shape[shape.size() - 1], rows = shape[shape.size() - 2];
  const bool upper = node.attrs.i("upper") != 0;
  const int64_t k = node.attrs.i("k", 0);
  copy_elements(in, out);
  if (columns == 0 || rows == 0) return;
  const int64_t matrices = out.count() / (rows * columns);
  for (int64_t row = 0; row < matrices * rows; ++row) {
    const int64_t diagonal = row % rows + k;  // the column of diagonal k in this row
    const int64_t begin = upper ? 0 : std::clamp<int64_t>(diagonal + 1, 0, columns);
    const int64_t end = upper ? std::clamp<int64_t>(diagonal, 0, columns) : columns;
    std::memset(at(out, row * columns + begin), 0, static_cast<size_t>((end - begin) * width(out)));
  }
}

}  // namespace

KernelList movement_kernels() {
  return {kernel("reshape", run_reshape), kernel("transpose", run_transpose),
          kernel("expand", run_expand),   kernel("slice", run_slice),
          kernel("concat", run_concat),   kernel("split", run_split),
          kernel("pad", run_pad),         kernel("tile", run_tile),
          kernel("iota", run_iota),       kernel("fill", run_fill),
          kernel("trilu", run_trilu)};
}

}  // namespace shardrun::reference
