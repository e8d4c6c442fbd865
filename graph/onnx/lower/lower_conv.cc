// Lowering of convolutions: Conv, ConvTranspose, and the attributes that pools share with them.
#include <algorithm>

#include "graph/onnx/lower/spatial.h"

namespace shardrun::importer {

using Ints = std::vector<int64_t>;

Shape spatial_of(const Shape& shape) { return Shape(shape.begin() + 2, shape.end()); }

void require_image(NodeContext& c, V x) {
  SR_REQUIRE(c.b.rank(x) >= 3, invalid_input, "wants [N, C, d…], got ", c.b.type(x));
  SR_REQUIRE(is_float(c.b.dtype(x)), unsupported, "of ", c.b.type(x),
             " is not supported; only floating images are");
}

namespace {

/// An attribute with one entry per spatial dim (or `each` of them), at least `least`.
Ints read_list(NodeContext& c, const char* name, size_t count, int64_t otherwise, int64_t least) {
  Ints list = c.attr_ints(name);
  if (list.empty()) list.assign(count, otherwise);
  SR_REQUIRE(list.size() == count, invalid_input, "attribute ", name, " is ", to_string(list),
             ", wanted ", count, " entries");
  for (int64_t value : list) {
    SR_REQUIRE(value >= least && value < (int64_t{1} << 31), invalid_input, "attribute ", name,
               " is ", to_string(list), ", wanted entries of at least ", least, " and below 2^31");
  }
  return list;
}

bool is_same(const std::string& auto_pad) {
  return auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
}

std::string read_auto_pad(NodeContext& c) {
  const std::string mode = c.attr_s("auto_pad", "NOTSET");
  SR_REQUIRE(mode == "NOTSET" || mode == "VALID" || is_same(mode), invalid_input,
             "attribute auto_pad is '", mode, "', wanted NOTSET, VALID, SAME_UPPER or SAME_LOWER");
  const Ints pads = c.attr_ints("pads");
  SR_REQUIRE(
      mode == "NOTSET" || std::all_of(pads.begin(), pads.end(), [](int64_t p) { return p == 0; }),
      invalid_input, "attribute pads is ", to_string(pads), " with auto_pad='", mode,
      "'; give one of the two");
  return mode;
}

/// Splits what is padded altogether; the odd one goes to the end under SAME_UPPER.
void set_pads(Window& w, int64_t total, bool upper) {
  w.low = upper ? total / 2 : total - total / 2;
  w.high = total - w.low;
}

}  // namespace

std::vector<Window> read_windows(NodeContext& c, const Shape& spatial, Shape kernel) {
  const size_t dims = spatial.size();
  const Ints given = c.attr_ints("kernel_shape");
  SR_REQUIRE(!given.empty() || !kernel.empty(), invalid_input, "attribute kernel_shape is missing");
  SR_REQUIRE(given.empty() || kernel.empty() || given == kernel, invalid_input,
             "attribute kernel_shape is ", to_string(given), ", but the weights' is ",
             to_string(kernel));
  if (kernel.empty()) kernel = read_list(c, "kernel_shape", dims, 1, 1);
  const Ints strides = read_list(c, "strides", dims, 1, 1);
  const Ints dilations = read_list(c, "dilations", dims, 1, 1);
  const Ints pads = read_list(c, "pads", 2 * dims, 0, 0);
  const std::string auto_pad = read_auto_pad(c);
  std::vector<Window> windows;
  for (size_t d = 0; d < dims; ++d) {
    Window w{kernel[d], strides[d], dilations[d], pads[d], pads[dims + d]};
    SR_REQUIRE(w.kernel >= 1, invalid_input, "kernel is ", to_string(kernel));
    SR_REQUIRE(w.kernel < (int64_t{1} << 31) && w.span() < (int64_t{1} << 31), invalid_input,
               "a window spans ", w.span(), " positions in spatial dim ", d);
    if (is_same(auto_pad)) {
      const int64_t count = (spatial[d] + w.stride - 1) / w.stride;
      set_pads(w, std::max<int64_t>(0, w.high_for(spatial[d], count) + w.low),
               auto_pad == "SAME_UPPER");
    }
    windows.push_back(w);
  }
  return windows;
}

Shape kernel_of(const std::vector<Window>& windows) {
  Shape kernel;
  for (const Window& w : windows) kernel.push_back(w.kernel);
  return kernel;
}

Attrs window_attrs(const std::vector<Window>& windows, bool with_high) {
  Ints strides, dilations;
  for (const Window& w : windows) {
    strides.push_back(w.stride);
    dilations.push_back(w.dilation);
  }
  Attrs attrs{{"strides", strides}, {"dilations", dilations}};
  if (with_high) attrs.set("pads_high", Ints{});
  return with_pads(attrs, windows);
}

namespace {

/// Checks x [N, C, …] against weights whose dim 0 is split over the groups.
int64_t read_groups(NodeContext& c, V x, V w) {
  const int64_t groups = c.attr_i("group", 1);
  require_image(c, x);
  SR_REQUIRE(c.b.rank(w) == c.b.rank(x) && c.b.dtype(w) == c.b.dtype(x), invalid_input,
             "weights are ", c.b.type(w), " for an input of ", c.b.type(x),
             "; wanted the same rank and type");
  SR_REQUIRE(groups >= 1 && c.b.shape(w)[0] % groups == 0 && c.b.shape(x)[1] % groups == 0,
             invalid_input, "group is ", groups, ", which does not divide the channels of ",
             c.b.type(x), " and ", c.b.type(w));
  return groups;
}

/// [A, …] -> [groups, A / groups, …] at `dim`; nothing for one group.
V split_groups(NodeContext& c, V v, size_t dim, int64_t groups) {
  if (groups == 1) return v;
  Shape shape = c.b.shape(v);
  shape[dim] /= groups;
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), groups);
  return c.b.reshape(v, shape);
}

V join_groups(NodeContext& c, V v, int64_t groups) {
  if (groups == 1) return v;
  Shape shape = c.b.shape(v);
  shape[2] *= shape[1];
  shape.erase(shape.begin() + 1);
  return c.b.reshape(v, shape);
}

bool is_zero(const Tensor* tensor) {
  if (tensor == nullptr) return false;
  for (int64_t i = 0; i < tensor->count(); ++i) {
    if (tensor->at(i) != 0) return false;
  }
  return true;
}

/// Adds B [O], unless it is the zeros that an exporter writes where there is no bias, of Conv3d in
/// another shape.
V add_bias(NodeContext& c, V y, int64_t channels) {
  if (!c.has(2) || is_zero(c.b.known(c.in(2)))) return y;
  SR_REQUIRE(c.b.type(c.in(2)) == (TensorType{c.b.dtype(y), {channels}}), invalid_input, "bias is ",
             c.b.type(c.in(2)), ", wanted one number for each of ", channels, " channels");
  Shape per_channel(c.b.shape(y).size() - 1, 1);
  per_channel[0] = channels;
  return c.b.add("add", {y, c.b.reshape(c.in(2), per_channel)});
}

void conv(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0), w = c.in(1);
  const int64_t groups = read_groups(c, x, w), channels = b.shape(w)[0];
  SR_REQUIRE(b.shape(w)[1] * groups == b.shape(x)[1], invalid_input, "weights are ", b.type(w),
             ", of ", b.shape(w)[1], " channels in each of ", groups, " groups, for an input of ",
             b.type(x));
  const Shape spatial = spatial_of(b.shape(x));
  const std::vector<Window> windows = read_windows(c, spatial, spatial_of(b.shape(w)));
  for (size_t d = 0; d < windows.size(); ++d) {
    SR_REQUIRE(windows[d].count(spatial[d]) > 0, invalid_input, "a window of ", windows[d].span(),
               " does not fit spatial dim ", d, " of ", b.type(x), " padded by ", windows[d].low,
               " and ", windows[d].high);
  }
  const V y = b.add("conv", {split_groups(c, x, 1, groups), split_groups(c, w, 0, groups)},
                    window_attrs(windows, true));
  c.out(add_bias(c, join_groups(c, y, groups), channels));
}

/// The gradient of Conv for its data, with output_padding and output_shape.
void conv_transpose(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0), w = c.in(1);  // w [C, O / groups, …]
  const int64_t groups = read_groups(c, x, w), channels = b.shape(w)[1] * groups;
  SR_REQUIRE(b.shape(w)[0] == b.shape(x)[1], invalid_input, "weights are ", b.type(w),
             " for an input of ", b.type(x), "; wanted as many channels in dim 0");
  const Shape spatial = spatial_of(b.shape(x));
  const std::string auto_pad = c.attr_s("auto_pad", "NOTSET");
  // SAME is of the output's size here, and of other rules: read the rest as if it were not there.
  std::vector<Window> windows = read_windows(c, spatial, spatial_of(b.shape(w)));
  const Ints extra = c.attr_ints("output_padding"), wanted = c.attr_ints("output_shape");
  SR_REQUIRE((extra.empty() || extra.size() == spatial.size()) &&
                 (wanted.empty() || wanted.size() == spatial.size()),
             invalid_input, "output_padding and output_shape have ", extra.size(), " and ",
             wanted.size(), " entries, wanted ", spatial.size());
  Ints size;
  for (size_t d = 0; d < windows.size(); ++d) {
    Window& win = windows[d];
    const int64_t more = extra.empty() ? 0 : extra[d];
    const int64_t full = (spatial[d] - 1) * win.stride + more + win.span();
    if (!wanted.empty()) {
      set_pads(win, std::max<int64_t>(0, full - wanted[d]), auto_pad == "SAME_UPPER");
    } else if (is_same(auto_pad)) {
      set_pads(win, full - spatial[d] * win.stride, auto_pad == "SAME_UPPER");
    }
    size.push_back(wanted.empty() ? full - win.low - win.high : wanted[d]);
    SR_REQUIRE(more >= 0 && size.back() >= 1 && size.back() < (int64_t{1} << 31), invalid_input,
               "output has ", size.back(), " positions in spatial dim ", d);
  }
  Attrs attrs = window_attrs(windows, false);
  attrs.set("size", size);
  const V y = b.add("conv_data_grad",
                    {split_groups(c, x, 1, groups), split_groups(c, w, 0, groups)}, attrs);
  c.out(add_bias(c, join_groups(c, y, groups), channels));
}

constexpr Lowering kConvLowerings[] = {{"Conv", 1, conv}, {"ConvTranspose", 1, conv_transpose}};

}  // namespace

std::span<const Lowering> conv_lowerings() { return kConvLowerings; }

}  // namespace shardrun::importer
