// Arithmetic of windows.
#include "graph/ops/window.h"

#include <algorithm>

namespace shardrun {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

Range clamped(int64_t begin, int64_t end, int64_t size) {
  begin = std::clamp<int64_t>(begin, 0, size);
  return {begin, std::clamp<int64_t>(end, begin, size) - begin};
}

}  // namespace

int64_t Window::count(int64_t size) const {
  return std::max<int64_t>(0, floor_div(size + low + high - span(), stride) + 1);
}

int64_t Window::high_for(int64_t size, int64_t count) const {
  // No results: one position short of the first.
  return (count > 0 ? (count - 1) * stride : -1) + span() - size - low;
}

Range Window::reads(Range out, int64_t size) const {
  if (out.size == 0) return clamped(out.begin * stride - low, out.begin * stride - low, size);
  return clamped(out.begin * stride - low, (out.end() - 1) * stride - low + span(), size);
}

Range Window::read_by(Range in, int64_t count) const {
  const int64_t first = ceil_div(in.begin + low - span() + 1, stride);
  if (in.size == 0) return clamped(first, first, count);
  return clamped(first, floor_div(in.end() - 1 + low, stride) + 1, count);
}

Range Window::inside(int64_t k, int64_t size, int64_t count) const {
  const int64_t shift = low - k * dilation;  // o * stride >= shift, o * stride < size + shift
  return clamped(ceil_div(shift, stride), ceil_div(size + shift, stride), count);
}

Shape ImageDims::sizes(const Shape& image) const {
  Shape out(spatial);
  for (size_t s = 0; s < spatial; ++s) out[s] = image[at(s)];
  return out;
}

Shape ImageDims::kernel_sizes(const Shape& weights) const {
  Shape out(spatial);
  for (size_t s = 0; s < spatial; ++s) out[s] = weights[kernel_at(s)];
  return out;
}

bool channels_last(const Node& node) { return node.attrs.i("channels_last", 0) != 0; }

std::vector<Window> windows_of(const Node& node, const Shape& kernel) {
  const std::vector<int64_t>&strides = node.attrs.ints("strides"),
        &dilations = node.attrs.ints("dilations");
  const std::vector<int64_t>& low = node.attrs.ints("pads_low");
  const std::vector<int64_t> high = node.attrs.has("pads_high")
                                        ? node.attrs.ints("pads_high")
                                        : std::vector<int64_t>(low.size(), 0);
  const size_t dims = kernel.size();
  SR_REQUIRE(strides.size() == dims && dilations.size() == dims && low.size() == dims &&
                 high.size() == dims,
             invalid_input, "strides, dilations, pads_low and pads_high have ", strides.size(),
             ", ", dilations.size(), ", ", low.size(), " and ", high.size(),
             " entries, wanted one for each of the kernel's dims ", to_string(kernel));
  std::vector<Window> windows;
  for (size_t d = 0; d < dims; ++d) {
    windows.push_back({kernel[d], strides[d], dilations[d], low[d], high[d]});
    SR_REQUIRE(kernel[d] >= 1 && strides[d] >= 1 && dilations[d] >= 1, invalid_input,
               "kernel, stride and dilation of spatial dim ", d, " are ", kernel[d], ", ",
               strides[d], " and ", dilations[d], ", wanted at least 1");
  }
  return windows;
}

Attrs with_pads(const Attrs& attrs, const std::vector<Window>& windows) {
  std::vector<int64_t> low, high;
  for (const Window& w : windows) {
    low.push_back(w.low);
    high.push_back(w.high);
  }
  Attrs out = attrs;
  out.set("pads_low", low);
  if (attrs.has("pads_high")) out.set("pads_high", high);
  return out;
}

SmallWindow shrink_window(const Window& window, int64_t in, int64_t out, int64_t proposed) {
  if (in <= 1 || out <= 1) return {in, out};
  const int64_t high = window.high_for(in, out);
  // Three windows or more that padding does not clip: from those one sees the window. Two proposals
  // that differ make two sizes.
  const int64_t clipped = std::max<int64_t>(0, ceil_div(window.low, window.stride)) +
                          std::max<int64_t>(0, ceil_div(high, window.stride));
  int64_t small_out = clipped + std::max<int64_t>(proposed, 3);
  auto size = [&] { return (small_out - 1) * window.stride + window.span() - window.low - high; };
  // Shards of different sizes do not line up; where the small ones are equal they would seem to.
  while (size() < 2 || (in != out && size() == small_out)) small_out += 3;
  return {size(), small_out};
}

}  // namespace shardrun
