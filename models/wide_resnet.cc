// Wide residual networks node by node.
//
// imagenet: torchvision's ResNet (the stride of a bottleneck is in its 3x3 convolution), whose
// wide_resnet50_2 is Zagoruyko and Komodakis' WRN-50-2. cifar: "Wide Residual Networks", 2016,
// Table 1, blocks of type B(3,3).
#include "models/wide_resnet.h"

#include <cmath>

#include "models/onnx_writer.h"
#include "models/presets.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;
using Family = WideResNetOptions::Family;

// Section 3 of the paper: Nesterov momentum, batches of 128, L2 5e-4; a cosine stands in for the
// paper's steps of the rate, over the same 200 epochs of 50,000 images.
constexpr const char* kCifarRecipe =
    "--loss cross-entropy --batch 128 --optimizer sgd --nesterov --momentum 0.9 --lr 0.1 "
    "--schedule cosine --weight-decay 5e-4 --decay-all --augment crop=4,flip --normalise data "
    "--steps 78200 --eval-every 391";

struct Stages {
  int64_t layers;
  bool bottleneck;
  Ints blocks;
};
const std::vector<Stages>& imagenet_stages() {
  static const std::vector<Stages> all = {{18, false, {2, 2, 2, 2}},
                                          {34, false, {3, 4, 6, 3}},
                                          {50, true, {3, 4, 6, 3}},
                                          {101, true, {3, 4, 23, 3}},
                                          {152, true, {3, 8, 36, 3}}};
  return all;
}

class WideResNetWriter {
 public:
  explicit WideResNetWriter(const WideResNetOptions& options)
      : o_(options), w_("wide-resnet", {.weights = options.weights, .seed = options.seed}) {}

  int64_t write(const std::string& path) {
    const std::string batch = o_.batch ? std::to_string(*o_.batch) : "batch";
    const std::string size = std::to_string(o_.image);
    w_.input("images", kFloat, {batch, std::to_string(o_.channels), size, size});
    o_.family == Family::cifar ? cifar() : imagenet();
    w_.output("logits", kFloat, {batch, std::to_string(o_.classes)});
    w_.metadata("shardrun.train", o_.recipe.empty() ? kLossRecipe : o_.recipe);
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  struct Planes {
    std::string x;
    int64_t channels;
  };

  std::string conv(const Planes& in, const std::string& name, int64_t out, int64_t kernel,
                   int64_t stride, int64_t pad) {
    const double fan_out = static_cast<double>(out * kernel * kernel);
    const std::string weight = w_.normal(
        w_.prefix + name + ".weight", {out, in.channels, kernel, kernel}, std::sqrt(2 / fan_out));
    return w_.node("Conv", {in.x, weight},
                   {{"kernel_shape", Ints{kernel, kernel}},
                    {"strides", Ints{stride, stride}},
                    {"pads", Ints{pad, pad, pad, pad}}});
  }

  std::string norm(const std::string& x, const std::string& name, int64_t channels) {
    const std::string at = w_.prefix + name;
    const std::vector<std::string> inputs = {x, w_.filled(at + ".weight", {channels}, 1),
                                             w_.filled(at + ".bias", {channels}, 0),
                                             w_.buffer(at + ".running_mean", {channels}, 0),
                                             w_.buffer(at + ".running_var", {channels}, 1)};
    return w_.node_n("BatchNormalization", inputs, 3,
                     {{"epsilon", 1e-5}, {"momentum", 0.9}, {"training_mode", int64_t{1}}})[0];
  }

  std::string relu(const std::string& x) { return w_.node("Relu", {x}); }

  void head(const std::string& x, int64_t channels) {
    w_.prefix = "";
    const double bound = 1 / std::sqrt(static_cast<double>(channels));
    const std::string weight = w_.uniform("fc.weight", {o_.classes, channels}, bound);
    const std::string bias = w_.uniform("fc.bias", {o_.classes}, bound);
    const std::string pooled = w_.node("GlobalAveragePool", {x});
    const std::string flat = w_.node("Flatten", {pooled}, {{"axis", int64_t{1}}});
    w_.node("Gemm", {flat, weight, bias}, {{"transB", int64_t{1}}}, "logits");
  }

  // ---- imagenet

  void imagenet() {
    const Stages* stages = nullptr;
    for (const Stages& s : imagenet_stages()) {
      if (s.layers == o_.layers) stages = &s;
    }
    constexpr int64_t kStem = 64;
    std::string x =
        relu(norm(conv({"images", o_.channels}, "conv1", kStem, 7, 2, 3), "bn1", kStem));
    x = w_.node(
        "MaxPool", {x},
        {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
    Planes at{x, kStem};
    for (size_t s = 0; s < stages->blocks.size(); ++s) {
      for (int64_t b = 0; b < stages->blocks[s]; ++b) {
        w_.prefix = str("layer", s + 1, ".", b, ".");
        const int64_t stride = s > 0 && b == 0 ? 2 : 1, planes = kStem << s;
        at = stages->bottleneck ? bottleneck(at, planes, stride) : basic(at, planes, stride);
      }
    }
    head(at.x, at.channels);
  }

  std::string shortcut(const Planes& in, int64_t out, int64_t stride) {
    if (stride == 1 && in.channels == out) return in.x;
    return norm(conv(in, "downsample.0", out, 1, stride, 0), "downsample.1", out);
  }

  Planes bottleneck(const Planes& in, int64_t planes, int64_t stride) {
    const int64_t inner = planes * o_.width / 64, out = 4 * planes;
    std::string y = relu(norm(conv(in, "conv1", inner, 1, 1, 0), "bn1", inner));
    y = relu(norm(conv({y, inner}, "conv2", inner, 3, stride, 1), "bn2", inner));
    y = norm(conv({y, inner}, "conv3", out, 1, 1, 0), "bn3", out);
    return {relu(w_.node("Add", {y, shortcut(in, out, stride)})), out};
  }

  Planes basic(const Planes& in, int64_t planes, int64_t stride) {
    std::string y = relu(norm(conv(in, "conv1", planes, 3, stride, 1), "bn1", planes));
    y = norm(conv({y, planes}, "conv2", planes, 3, 1, 1), "bn2", planes);
    return {relu(w_.node("Add", {y, shortcut(in, planes, stride)})), planes};
  }

  // ---- cifar

  void cifar() {
    constexpr int64_t kStem = 16;
    const int64_t blocks = (o_.layers - 4) / 6;
    Planes at{conv({"images", o_.channels}, "conv1", kStem, 3, 1, 1), kStem};
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t b = 0; b < blocks; ++b) {
        w_.prefix = str("layer", s + 1, ".", b, ".");
        at = preactivated(at, (kStem << s) * o_.width, s > 0 && b == 0 ? 2 : 1);
      }
    }
    w_.prefix = "";
    head(relu(norm(at.x, "bn", at.channels)), at.channels);
  }

  /// Where the shape changes, the shortcut's convolution takes the activated input.
  Planes preactivated(const Planes& in, int64_t out, int64_t stride) {
    const std::string active = relu(norm(in.x, "bn1", in.channels));
    const Planes from{active, in.channels};
    std::string y = relu(norm(conv(from, "conv1", out, 3, stride, 1), "bn2", out));
    if (o_.dropout > 0) y = w_.node("Dropout", {y, w_.scalar(o_.dropout), w_.boolean(true)});
    y = conv({y, out}, "conv2", out, 3, 1, 1);
    const bool same = stride == 1 && in.channels == out;
    return {w_.node("Add", {y, same ? in.x : conv(from, "shortcut", out, 1, stride, 0)}), out};
  }

  WideResNetOptions o_;
  OnnxWriter w_;
};

WideResNetOptions imagenet(int64_t layers, int64_t width) {
  WideResNetOptions o;
  o.layers = layers;
  o.width = width;
  return o;
}

WideResNetOptions metadist(int64_t width, int64_t batch) {
  WideResNetOptions o = imagenet(50, width);
  o.batch = batch;
  return o;
}

WideResNetOptions cifar(int64_t layers, int64_t width) {
  WideResNetOptions o;
  o.family = Family::cifar;
  o.layers = layers;
  o.width = width;
  o.image = 32;
  o.classes = 10;
  o.recipe = kCifarRecipe;
  return o;
}

// Table 3 of MetaDist gives width 320 to its models of 1.23 billion parameters; a ResNet-50 of that
// width has 0.33, and one of twice the width 1.23.
Presets<WideResNetOptions> wide_resnet_sizes() {
  return {{"wrn-16-4", cifar(16, 4)},         {"wrn-16-8", cifar(16, 8)},
          {"wrn-22-8", cifar(22, 8)},         {"wrn-28-10", cifar(28, 10)},
          {"wrn-28-12", cifar(28, 12)},       {"wrn-40-1", cifar(40, 1)},
          {"wrn-40-2", cifar(40, 2)},         {"wrn-40-4", cifar(40, 4)},
          {"wrn-50-2", imagenet(50, 128)},    {"wrn-101-2", imagenet(101, 128)},
          {"resnet-18", imagenet(18, 64)},    {"resnet-34", imagenet(34, 64)},
          {"resnet-50", imagenet(50, 64)},    {"resnet-101", imagenet(101, 64)},
          {"resnet-152", imagenet(152, 64)},  {"metadist-1", metadist(448, 64)},
          {"metadist-2", metadist(448, 128)}, {"metadist-4", metadist(640, 128)},
          {"metadist-8", metadist(640, 256)}};
}

void check(const WideResNetOptions& o) {
  for (int64_t size : {o.width, o.channels, o.image, o.classes, o.batch.value_or(1)}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "width, channels, image, classes and batch must be at least 1, got ", size);
  }
  SR_REQUIRE(o.dropout >= 0 && o.dropout < 1, invalid_input, "dropout is ", o.dropout,
             ", wanted at least 0 and below 1");
  if (o.family == Family::cifar) {
    SR_REQUIRE(o.layers >= 10 && (o.layers - 4) % 6 == 0, invalid_input, "layers is ", o.layers,
               "; the family cifar has 6 n + 4: 10, 16, 22, 28, 34, 40");
    return;
  }
  std::string known;
  bool found = false, bottleneck = false;
  for (const Stages& s : imagenet_stages()) {
    known += str(known.empty() ? "" : ", ", s.layers);
    found = found || s.layers == o.layers;
    if (s.layers == o.layers) bottleneck = s.bottleneck;
  }
  SR_REQUIRE(found, invalid_input, "layers is ", o.layers, "; the family imagenet has ", known);
  SR_REQUIRE(bottleneck || o.width == 64, invalid_input, "width is ", o.width, ", but ", o.layers,
             " layers have no bottlenecks to widen; wanted 64");
  SR_REQUIRE(o.dropout == 0, invalid_input, "dropout is ", o.dropout,
             "; the family imagenet has none");
}

}  // namespace

WideResNetOptions wide_resnet_preset(const std::string& name) {
  return preset_named(wide_resnet_sizes(), name);
}

int64_t write_wide_resnet(const WideResNetOptions& options, const std::string& path) {
  check(options);
  return WideResNetWriter(options).write(path);
}

}  // namespace shardrun
