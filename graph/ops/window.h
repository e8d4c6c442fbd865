// Window: which operand positions a position of a convolution or a pool reads, in one spatial dim.
//
// Result position o and kernel offset k meet operand position
//
//   i = o * stride + k * dilation - low,     0 <= i < operand size, else it is padding.
//
// The gradients use the same relation the other way round. So all of them are cut in space alike: a
// rank that holds operand positions from i0 and result positions from o0 runs the same op with
//
//   low' = low + i0 - o0 * stride
//
// and `high'` such that it makes as many results as it should. low' is 0 at an inner cut where the
// operand's box begins with the first row that the window reads, what is left of the image's own
// padding at its border, and negative where the box begins earlier: those rows are skipped. Local
// padding is padding of the global image (zeros; for a maximum, nothing) only if the operand's box
// holds every row of the image that its results read (`reads`); whether it does is for the planner
// to see to. Example, kernel 3, stride 1, padding 1 of 8 rows in two: rank 1 makes rows [4, 8) from
// [3, 8), low' = 1 + 3 - 4 = 0 and high' = 1.
#pragma once

#include "graph/op_def.h"

namespace shardrun {

/// The largest whole number of at most a / b.
constexpr int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

struct Window {
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t low = 0, high = 0;  // padding; negative: the operand is cropped

  int64_t span() const { return (kernel - 1) * dilation + 1; }
  /// Results of an operand of `size`.
  int64_t count(int64_t size) const;
  /// The padding on the high side with which an operand of `size` has `count` results.
  int64_t high_for(int64_t size, int64_t count) const;
  /// Operand positions that results `out` read, in an operand of `size`: without padding.
  Range reads(Range out, int64_t size) const;
  /// Results among `count` that read some operand position in `in`: what a gradient of these reads.
  Range read_by(Range in, int64_t count) const;
  /// Results [begin, end) among `count` for which kernel offset k is inside an operand of `size`.
  Range inside(int64_t k, int64_t size, int64_t count) const;
  /// `low` of a rank that holds these parts of operand and result.
  int64_t local_low(Range in, Range out) const { return low + in.begin - out.begin * stride; }
};

/// Where the dims of an image stand: [N, C, …spatial], with groups [N, G, C, …spatial]; with the
/// attribute channels_last=1, which is how kernels like them best, [N, …spatial, C] or
/// [N, …spatial, G, C]. Weights are [O, C, …kernel] or [G, O, C, …kernel] always.
struct ImageDims {
  size_t spatial = 0;  // how many spatial dims
  bool groups = false;
  bool channels_last = false;

  size_t rank() const { return spatial + (groups ? 3 : 2); }
  size_t at(size_t s) const { return s + (channels_last ? 1 : rank() - spatial); }  // of an image
  size_t group() const { return channels_last ? rank() - 2 : 1; }
  size_t channel() const { return channels_last ? rank() - 1 : rank() - spatial - 1; }
  size_t kernel_at(size_t s) const { return s + rank() - spatial; }  // of weights

  Shape sizes(const Shape& image) const;  // of the spatial dims
  Shape kernel_sizes(const Shape& weights) const;
};
bool channels_last(const Node& node);

/// One per spatial dim, from the attributes strides, dilations, pads_low and, where there is one,
/// pads_high. Throws invalid_input where their lengths differ or a stride, dilation or kernel is
/// below 1.
std::vector<Window> windows_of(const Node& node, const Shape& kernel);

/// The attributes with other padding.
Attrs with_pads(const Attrs& attrs, const std::vector<Window>& windows);

/// For shrinking: the operand's size for discovery where the result has about `proposed` positions.
/// The remainder of the last stride is that of the original, and 1 stays 1.
struct SmallWindow {
  int64_t in, out;
};
SmallWindow shrink_window(const Window& window, int64_t in, int64_t out, int64_t proposed);

}  // namespace shardrun
