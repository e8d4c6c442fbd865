// transpose, concat and split as copies of boxes, pad and tile unit by unit.
// What other movement there is (slice, expand, fill …) is generated (element_source.h).
#pragma once

#include "base/tensor.h"
#include "device/cuda/boxes.h"
#include "graph/attrs.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

// ---- transpose ----

inline Refusal transpose_refuses(const KernelCall& call) {
  if (auto reason = refuse_more(call, 1, 1, {"perm"})) return reason;
  const Shape& in = call.in[0].shape;
  if (element_count(in) == 0) return "moves elements";
  if (in.size() > BoxLoops::kMost) return "more dims than its loops";
  const BoxLoops loops = turned(in, call.node.attrs.ints("perm"));
  if (loops.dims < 2 || loops.from[loops.dims - 1] == 1)
    return "turns the last dim to another place";
  return std::nullopt;
}

template <class On>
PreparedKernel prepare_transpose(const KernelCall& call) {
  const BoxLoops loops = turned(call.in[0].shape, call.node.attrs.ints("perm"));
  PreparedKernel prepared;
  prepared.run = [loops, bytes = size_of(call.in[0].dtype)](const KernelArgs& args) {
    On::copy(args, args.out[0].data, args.in[0].data, loops, bytes);
  };
  prepared.impl = "cuda:copies";
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
        On::copy(args, args.out[0].as<char>() + begin, args.in[i].data, bytes, 1);
      } else {
        On::copy(args, args.out[i].data, args.in[0].as<char>() + begin, bytes, 1);
      }
      begin += widths[i];
    }
  };
  prepared.impl = "cuda:copies";
  return prepared;
}

// ---- pad, tile ----

/// What stands beyond a row: the value `outside`, the row again, its ends, or the row mirrored at
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
  return {{"transpose", "cuda:copies", transpose_refuses, prepare_transpose<On>},
          {"concat", "cuda:copies", nullptr, prepare_parts<On>},
          {"split", "cuda:copies", nullptr, prepare_parts<On>},
          {"pad", "cuda:spread", spread_refuses, prepare_spread<On>},
          {"tile", "cuda:spread", spread_refuses, prepare_spread<On>}};
}

}  // namespace shardrun::cuda
