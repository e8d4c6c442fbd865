// transpose by tiles, concat and split as copies of boxes, pad and tile unit by unit.
// What other movement there is (slice, expand, fill …) is generated (element_source.h).
#pragma once

#include "base/tensor.h"
#include "device/cuda/boxes.h"
#include "graph/attrs.h"
#include "kernels/cuda/refusals.h"
#include "kernels/cuda/team.h"

namespace shardrun::cuda {

// ---- transpose ----

/// to[…, c, …, r] = from[…, r, …, c]: r is the last dim there, c the last here. Tiles of 32 by 32
/// elements, read along c and written along r; between the two they lie in `tile`, whose rows are
/// one longer so that its columns are in different banks. One of 256 threads does load for all
/// elements that are its own, then, when all have, store.
template <class U>
struct TransposeTiles {
  using Element = U;
  static constexpr int kTile = 32, kThreads = 256, kLines = kThreads / kTile;
  static constexpr int kTileElements = kTile * (kTile + 1);
  static constexpr int kMostBatch = 6;

  const U* from;
  U* to;
  int64_t rows, cols;        // extents of r and c
  int64_t from_row, to_col;  // steps of r here, of c there; c here and r there lie side by side
  int batch_dims;
  int64_t batch_size[kMostBatch], batch_from[kMostBatch], batch_to[kMostBatch];

  struct Place {
    int64_t from, to, row, col;  // of the tile's first element
  };
  SR_HOST_DEVICE Place place(int64_t block) const {
    const int64_t col_tiles = (cols + kTile - 1) / kTile, row_tiles = (rows + kTile - 1) / kTile;
    Place at{0, 0, 0, 0};
    at.col = block % col_tiles * kTile;
    block /= col_tiles;
    at.row = block % row_tiles * kTile;
    block /= row_tiles;
    for (int d = batch_dims - 1; d >= 0; --d) {
      at.from += block % batch_size[d] * batch_from[d];
      at.to += block % batch_size[d] * batch_to[d];
      block /= batch_size[d];
    }
    return at;
  }

  SR_HOST_DEVICE void load(int64_t block, int thread, U* tile) const {
    const Place at = place(block);
    const int64_t col = at.col + thread % kTile;
    for (int line = thread / kTile; line < kTile; line += kLines) {
      if (at.row + line < rows && col < cols)
        tile[line * (kTile + 1) + thread % kTile] =
            from[at.from + (at.row + line) * from_row + col];
    }
  }
  SR_HOST_DEVICE void store(int64_t block, int thread, const U* tile) const {
    const Place at = place(block);
    const int64_t row = at.row + thread % kTile;
    for (int line = thread / kTile; line < kTile; line += kLines) {
      if (at.col + line < cols && row < rows)
        to[at.to + (at.col + line) * to_col + row] = tile[thread % kTile * (kTile + 1) + line];
    }
  }
};

/// The result's dims, those that lie side by side in both as one.
struct Permuted {
  std::vector<int64_t> size, from, to;  // strides in elements

  Permuted(const Shape& in, const std::vector<int64_t>& perm) {
    const Shape strides = row_major_strides(in);
    int64_t before = -1;
    for (int64_t d : perm) {
      const auto dim = static_cast<size_t>(d);
      if (in[dim] == 1) continue;
      if (before >= 0 && from.back() == strides[dim] * in[dim]) {
        size.back() *= in[dim];
        from.back() = strides[dim];
      } else {
        size.push_back(in[dim]);
        from.push_back(strides[dim]);
      }
      before = d;
    }
    to = row_major_strides(size);
  }
  /// The dim whose elements are neighbours in the operand.
  size_t near() const {
    return static_cast<size_t>(std::find(from.begin(), from.end(), 1) - from.begin());
  }
};

inline Refusal transpose_refuses(const KernelCall& call) {
  if (auto reason = refuse_more(call, 1, 1, {"perm"})) return reason;
  const Permuted dims(call.in[0].shape, call.node.attrs.ints("perm"));
  if (element_count(call.in[0].shape) == 0) return "moves elements";
  if (dims.size.size() < 2 || dims.near() + 1 == dims.size.size())
    return "turns the last dim to another place";
  if (dims.size.size() > 2 + TransposeTiles<uint8_t>::kMostBatch) return "more dims than its loops";
  return std::nullopt;
}

template <class On>
PreparedKernel prepare_transpose(const KernelCall& call) {
  const Permuted dims(call.in[0].shape, call.node.attrs.ints("perm"));
  PreparedKernel prepared;
  prepared.run = [dims, dtype = call.in[0].dtype](const KernelArgs& args) {
    with_unit(size_of(dtype), [&](auto unit) {
      using U = decltype(unit);
      TransposeTiles<U> body{};
      body.from = args.in[0].as<U>();
      body.to = args.out[0].as<U>();
      const size_t near = dims.near(), last = dims.size.size() - 1;
      body.rows = dims.size[last], body.cols = dims.size[near];
      body.from_row = dims.from[last], body.to_col = dims.to[near];
      int64_t blocks =
          (body.rows + body.kTile - 1) / body.kTile * ((body.cols + body.kTile - 1) / body.kTile);
      for (size_t d = 0; d < last; ++d) {
        if (d == near) continue;
        body.batch_size[body.batch_dims] = dims.size[d];
        body.batch_from[body.batch_dims] = dims.from[d];
        body.batch_to[body.batch_dims++] = dims.to[d];
        blocks *= dims.size[d];
      }
      On::tiles(args, blocks, body, "transpose");
    });
  };
  prepared.impl = "cuda:tiles";
  return prepared;
}

// ---- concat, split ----

template <class On>
PreparedKernel prepare_parts(const KernelCall& call) {
  const bool joins = call.node.op == "concat";
  const TensorType& whole = joins ? call.out[0] : call.in[0];
  const auto axis = call.node.attrs.i("axis");
  const auto bytes_from = [&](const Shape& shape) {  // of a row: from the axis on
    return size_of(whole.dtype) * element_count(Shape(shape.begin() + axis, shape.end()));
  };
  const int64_t rows = element_count(Shape(whole.shape.begin(), whole.shape.begin() + axis)),
                pitch = bytes_from(whole.shape);
  std::vector<int64_t> widths;
  for (const TensorType& type : joins ? call.in : call.out)
    widths.push_back(bytes_from(type.shape));
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    int64_t begin = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      BoxLoops bytes;
      bytes.add(rows, joins ? widths[i] : pitch, joins ? pitch : widths[i]);
      bytes.add(widths[i], 1, 1);
      if (joins) {
        On::copy(args, args.out[0].as<char>() + begin, args.in[i].data, bytes);
      } else {
        On::copy(args, args.out[i].data, args.in[0].as<char>() + begin, bytes);
      }
      begin += widths[i];
    }
  };
  prepared.impl = "cuda:copies";
  return prepared;
}

// ---- pad, tile ----

/// What stands beside a row: the value `outside`, the row again, its ends, or the row mirrored at
/// its first and last element.
enum class Beyond { value, again, edge, mirrored };

/// The dims of a pad or tile, `before` of what is beyond in front of each: neighbours that are one
/// in both tensors are one.
struct SpreadDims {
  static constexpr int kMost = 8;
  struct Dim {
    int64_t size, in_size, before;
    bool untouched() const { return size == in_size && before == 0; }
  };
  Beyond beyond;
  std::vector<Dim> dims;

  SpreadDims(const Shape& out, const Shape& in, const std::vector<int64_t>& before, Beyond beyond)
      : beyond(beyond) {
    const bool linear = beyond == Beyond::value || beyond == Beyond::again;
    for (size_t d = 0; d < out.size(); ++d) {
      const Dim dim{out[d], in[d], before[d]};
      if (!dims.empty() && dim.untouched() && (linear || dims.back().untouched())) {
        dims.back().size *= dim.size, dims.back().in_size *= dim.size;
        dims.back().before *= dim.size;
      } else {
        dims.push_back(dim);
      }
    }
    if (dims.empty()) dims.push_back({1, 1, 0});
  }
  /// The bytes that are moved at once: as many as lie side by side wherever the last dim begins,
  /// ends or begins again.
  int64_t unit(const void* from, const void* to, int64_t element_bytes) const {
    const Dim& last = dims.back();
    const bool turns = (beyond == Beyond::edge || beyond == Beyond::mirrored) && !last.untouched();
    const int64_t lengths = last.size | last.in_size | last.before | (turns ? 1 : 0);
    return unit_of(address_of(from) | address_of(to) |
                   static_cast<uint64_t>(lengths) * static_cast<uint64_t>(element_bytes));
  }
};

/// Each unit of the result from where it lies in the operand, or `outside`.
template <class U>
struct SpreadUnit {
  const U* from;
  U* to;
  U outside;
  Beyond beyond;
  int dims;
  Divisor size[SpreadDims::kMost], in_size[SpreadDims::kMost];
  int64_t extent[SpreadDims::kMost], stride[SpreadDims::kMost], before[SpreadDims::kMost];

  /// `elements` of a unit.
  SpreadUnit(const SpreadDims& of, int64_t elements, int64_t count)
      : beyond(of.beyond), dims(static_cast<int>(of.dims.size())) {
    int64_t step = 1;
    for (int d = dims - 1; d >= 0; --d) {
      SpreadDims::Dim dim = of.dims[static_cast<size_t>(d)];
      if (d == dims - 1) dim.size /= elements, dim.in_size /= elements, dim.before /= elements;
      size[d] = Divisor(dim.size, count), in_size[d] = Divisor(dim.in_size, count);
      extent[d] = dim.in_size, before[d] = dim.before, stride[d] = step;
      step *= dim.in_size;
    }
  }

  SR_HOST_DEVICE void operator()(int64_t i) const {
    int64_t rest = i, at = 0;
    bool inside = true;
    for (int d = dims - 1; d >= 0; --d) {
      int64_t here = d > 0 ? size[d].split(rest) : rest;
      here = in_row(here - before[d], d);
      inside = inside && here >= 0 && here < extent[d];
      at += here * stride[d];
    }
    to[i] = inside ? from[at] : outside;
  }

  /// Position `here`, maybe before or behind dim d, in it.
  SR_HOST_DEVICE int64_t in_row(int64_t here, int d) const {
    const int64_t n = extent[d];
    if (beyond == Beyond::again) return in_size[d].split(here);
    if (beyond == Beyond::edge) return here < 0 ? 0 : here < n ? here : n - 1;
    if (beyond != Beyond::mirrored) return here;
    if (n == 1) return 0;
    const int64_t period = 2 * (n - 1);
    here = (here % period + period) % period;
    return here < n ? here : period - here;
  }
};

inline Beyond beyond_of(const KernelCall& call) {
  if (call.node.op == "tile") return Beyond::again;
  const std::string mode = call.node.attrs.s("mode", "constant");
  if (mode == "constant" || element_count(call.in[0].shape) == 0) return Beyond::value;
  return mode == "edge" ? Beyond::edge : Beyond::mirrored;
}

inline Refusal spread_refuses(const KernelCall& call) {
  if (auto reason = refuse_more(call, 1, 1, {"before", "after", "mode", "value", "repeats"}))
    return reason;
  if (call.in[0].shape.size() > SpreadDims::kMost) return "more dims than its loops";
  const std::string mode = call.node.attrs.s("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect") return "has no mode " + mode;
  return std::nullopt;
}

template <class On>
PreparedKernel prepare_spread(const KernelCall& call) {
  const TensorType in = call.in[0], out = call.out[0];
  const bool repeats = call.node.op == "tile";
  const std::vector<int64_t> before =
      repeats ? std::vector<int64_t>(in.shape.size(), 0) : call.node.attrs.ints("before");
  const double value = repeats ? 0 : call.node.attrs.f("value", 0);
  const SpreadDims dims(out.shape, in.shape, before, beyond_of(call));
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    const int64_t element = size_of(in.dtype),
                  bytes = dims.unit(args.in[0].data, args.out[0].data, element);
    with_unit(bytes, [&](auto unit) {
      using U = decltype(unit);
      const int64_t elements = bytes / element, count = args.out[0].count() / elements;
      SpreadUnit<U> body(dims, elements, count);
      const std::vector<double> values(static_cast<size_t>(elements), value);
      convert(values.data(), DType::f64, &body.outside, in.dtype, elements);
      body.from = args.in[0].as<U>();
      body.to = args.out[0].as<U>();
      On::each(args, count, body, "spread");
    });
  };
  prepared.impl = "cuda:spread";
  return prepared;
}

template <class On>
KernelList movement_kernels_on() {
  return {{"transpose", "cuda:tiles", transpose_refuses, prepare_transpose<On>},
          {"concat", "cuda:copies", nullptr, prepare_parts<On>},
          {"split", "cuda:copies", nullptr, prepare_parts<On>},
          {"pad", "cuda:spread", spread_refuses, prepare_spread<On>},
          {"tile", "cuda:spread", spread_refuses, prepare_spread<On>}};
}

}  // namespace shardrun::cuda
