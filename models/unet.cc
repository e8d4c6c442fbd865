// U-Nets (Ronneberger et al., 2015) of Ho et al., "Denoising Diffusion Probabilistic Models", 2020,
// node by node.
#include "models/unet.h"

#include <cmath>

#include "models/onnx_writer.h"
#include "models/presets.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

// TOAST gives the blocks, the heads and 3.6 billion parameters, but no width. With convolutions
// between the levels and in the shortcuts there are 4305 width^2 weights.
UNetOptions toast_unet() {
  UNetOptions o;
  o.width = 912;
  o.heads = 32;
  o.groups = 16;
  return o;
}

Presets<UNetOptions> unet_sizes() { return {{"toast", toast_unet()}}; }

class UNetWriter {
 public:
  explicit UNetWriter(const UNetOptions& options)
      : o_(options), w_("unet", {.weights = options.weights, .seed = options.seed, .opset = 21}) {}

  int64_t write(const std::string& path) {
    const std::string batch = o_.batch ? std::to_string(*o_.batch) : "batch";
    const std::vector<std::string> dims = {batch, std::to_string(o_.channels),
                                           std::to_string(o_.image), std::to_string(o_.image)};
    w_.input("images", kFloat, dims);
    Planes x = conv({"images", o_.channels}, "conv_in", o_.width, 3, 1);
    std::vector<Planes> kept = {x};
    for (int64_t level = 0; level < o_.levels; ++level) {
      for (int64_t b = 0; b < o_.blocks; ++b)
        kept.push_back(x = block(x, str("down.", level, ".", b, "."), o_.width << level));
      if (level + 1 == o_.levels) continue;
      w_.prefix = str("down.", level, ".");
      kept.push_back(x = conv(x, "downsample", x.channels, 3, 2));
    }
    x = block(x, "middle.0.", x.channels);
    x = attention(x, "middle.attention.");
    x = block(x, "middle.1.", x.channels);
    for (int64_t level = o_.levels; level-- > 0;) {
      for (int64_t b = 0; b <= o_.blocks; ++b) {
        const std::string at = str("up.", level, ".", b, ".");
        x = block(concatenated(x, kept.back(), at), at, o_.width << level);
        kept.pop_back();
      }
      if (level > 0) x = upsample(x, str("up.", level, "."));
    }
    w_.prefix = "";
    x = conv({activated(x, "norm_out"), x.channels}, "conv_out", o_.channels, 3, 1);
    w_.node("Identity", {x.x}, {}, "predictions");
    w_.output("predictions", kFloat, dims);
    w_.metadata("shardrun.train", o_.recipe.empty() ? kRegressionRecipe : o_.recipe);
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  struct Planes {
    std::string x;  // [batch, channels, height, width]
    int64_t channels;
  };
  static constexpr double kSmall = 1e-2;  // of a residual branch's last layer

  Planes conv(const Planes& in, const std::string& name, int64_t out, int64_t kernel,
              int64_t stride, double gain = 1) {
    const auto fan_in = static_cast<double>(in.channels * kernel * kernel);
    const std::string at = w_.prefix + name;
    const std::string weight =
        w_.normal(at + ".weight", {out, in.channels, kernel, kernel}, gain / std::sqrt(fan_in));
    const int64_t pad = kernel / 2;
    return {w_.node("Conv", {in.x, weight, w_.filled(at + ".bias", {out}, 0)},
                    {{"kernel_shape", Ints{kernel, kernel}},
                     {"strides", Ints{stride, stride}},
                     {"pads", Ints{pad, pad, pad, pad}}}),
            out};
  }

  std::string norm(const Planes& in, const std::string& name) {
    const std::string at = w_.prefix + name;
    return w_.node("GroupNormalization",
                   {in.x, w_.filled(at + ".weight", {in.channels}, 1),
                    w_.filled(at + ".bias", {in.channels}, 0)},
                   {{"num_groups", o_.groups}, {"epsilon", 1e-5}});
  }

  /// silu of the group norm
  std::string activated(const Planes& in, const std::string& name) {
    const std::string x = norm(in, name);
    return w_.node("Mul", {x, w_.node("Sigmoid", {x})});
  }

  Planes block(const Planes& in, const std::string& prefix, int64_t out) {
    w_.prefix = prefix;
    const Planes first = conv({activated(in, "norm1"), in.channels}, "conv1", out, 3, 1);
    const Planes second = conv({activated(first, "norm2"), out}, "conv2", out, 3, 1, kSmall);
    const std::string from = in.channels == out ? in.x : conv(in, "shortcut", out, 1, 1).x;
    return {w_.node("Add", {from, second.x}), out};
  }

  Planes concatenated(const Planes& a, const Planes& b, const std::string& prefix) {
    w_.prefix = prefix;
    return {w_.node("Concat", {a.x, b.x}, {{"axis", int64_t{1}}}), a.channels + b.channels};
  }

  Planes upsample(const Planes& in, const std::string& prefix) {
    w_.prefix = prefix;
    const std::string twice =
        w_.node("Resize", {in.x, "", w_.floats({1, 1, 2, 2})},
                {{"mode", std::string("nearest")},
                 {"coordinate_transformation_mode", std::string("asymmetric")},
                 {"nearest_mode", std::string("floor")}});
    return conv({twice, in.channels}, "upsample", in.channels, 3, 1);
  }

  /// The columns of the projection are ordered head by head (q, k and v of head 0, of head 1, …).
  Planes attention(const Planes& in, const std::string& prefix) {
    w_.prefix = prefix;
    const int64_t width = in.channels / o_.heads, side = o_.image >> (o_.levels - 1);
    const Planes qkv = conv({norm(in, "norm"), in.channels}, "qkv", 3 * in.channels, 1, 1);
    const std::string apart =
        w_.node("Reshape", {qkv.x, w_.ints({0, o_.heads, 3, width, side * side})});
    // [3, batch, head, position, width]
    const std::string ordered = w_.node("Transpose", {apart}, {{"perm", Ints{2, 0, 1, 4, 3}}});
    std::vector<std::string> parts =
        w_.node_n("Split", {ordered, w_.ints({1, 1, 1})}, 3, {{"axis", int64_t{0}}});
    for (std::string& part : parts) part = w_.node("Squeeze", {part, w_.ints({0})});
    const std::string keys = w_.node("Transpose", {parts[1]}, {{"perm", Ints{0, 1, 3, 2}}});
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const std::string scores =
        w_.node("Mul", {w_.node("MatMul", {parts[0], keys}), w_.scalar(scale)});
    std::string y =
        w_.node("MatMul", {w_.node("Softmax", {scores}, {{"axis", int64_t{-1}}}), parts[2]});
    y = w_.node("Transpose", {y}, {{"perm", Ints{0, 1, 3, 2}}});
    y = w_.node("Reshape", {y, w_.ints({0, in.channels, side, side})});
    return {w_.node("Add", {in.x, conv({y, in.channels}, "out", in.channels, 1, 1, kSmall).x}),
            in.channels};
  }

  UNetOptions o_;
  OnnxWriter w_;
};

void check(const UNetOptions& o) {
  for (int64_t size :
       {o.width, o.levels, o.blocks, o.heads, o.groups, o.channels, o.image, o.batch.value_or(1)}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "width, levels, blocks, heads, groups, channels, image and batch must be at least "
               "1, got ",
               size);
  }
  constexpr int64_t kMostLevels = 16;
  SR_REQUIRE(o.levels <= kMostLevels, invalid_input, "levels is ", o.levels, ", wanted at most ",
             kMostLevels);
  SR_REQUIRE(o.width % o.groups == 0, invalid_input, "width=", o.width,
             " is not a multiple of groups=", o.groups);
  const int64_t halvings = int64_t{1} << (o.levels - 1);
  SR_REQUIRE(o.image % halvings == 0, invalid_input, "image=", o.image, " is not a multiple of ",
             halvings, ", which ", o.levels, " levels halve it by");
  SR_REQUIRE(o.width * halvings % o.heads == 0, invalid_input, "the last level's ",
             o.width * halvings, " channels are not a multiple of heads=", o.heads);
}

}  // namespace

UNetOptions unet_preset(const std::string& name) { return preset_named(unet_sizes(), name); }

int64_t write_unet(const UNetOptions& options, const std::string& path) {
  check(options);
  return UNetWriter(options).write(path);
}

}  // namespace shardrun
