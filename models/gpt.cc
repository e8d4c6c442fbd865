// GPT-2 (Radford et al., 2019) node by node.
#include "models/gpt.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "models/onnx_writer.h"

namespace shardrun {
namespace {

constexpr int kFloat = 1, kInt64 = 7;  // TensorProto.DataType

struct Preset {
  const char* name;
  int64_t layers, heads, hidden, vocab, context;
};
constexpr Preset kPresets[] = {{"tiny", 4, 4, 128, 256, 64},
                               {"gpt2-124m", 12, 12, 768, 50257, 1024},
                               {"gpt2-350m", 24, 16, 1024, 50257, 1024},
                               {"gpt2-774m", 36, 20, 1280, 50257, 1024},
                               {"gpt2-1558m", 48, 25, 1600, 50257, 1024}};

class GptWriter {
 public:
  explicit GptWriter(const GptOptions& options)
      : o_(options), w_("gpt", {.weights = options.weights, .seed = options.seed}) {}

  int64_t write(const std::string& path) {
    const std::string batch = o_.batch ? std::to_string(*o_.batch) : "batch";
    w_.input("tokens", kInt64, {batch, std::to_string(o_.context)});
    // Position s is seen from position t if t >= s.
    std::vector<int64_t> positions(static_cast<size_t>(o_.context));
    std::iota(positions.begin(), positions.end(), 0);
    const std::string at = w_.ints(positions);
    mask_ = w_.node("GreaterOrEqual", {w_.node("Unsqueeze", {at, w_.ints({1})}),
                                       w_.node("Unsqueeze", {at, w_.ints({0})})});

    const std::string wte = w_.normal("wte.weight", {o_.vocab, o_.hidden}, 0.02);
    const std::string wpe = w_.normal("wpe.weight", {o_.context, o_.hidden}, 0.02);
    std::string x = drop(w_.node("Add", {w_.node("Gather", {wte, "tokens"}), wpe}));
    for (int64_t layer = 0; layer < o_.layers; ++layer) {
      w_.prefix = str("h.", layer, ".");
      x = w_.node("Add", {x, attention(norm(x, "ln_1"))});
      x = w_.node("Add", {x, mlp(norm(x, "ln_2"))});
    }
    w_.prefix = "";
    x = norm(x, "ln_f");
    const std::string head = w_.node("Transpose", {wte}, {{"perm", std::vector<int64_t>{1, 0}}});
    w_.node("MatMul", {x, head}, {}, "logits");
    w_.output("logits", kFloat, {batch, std::to_string(o_.context), std::to_string(o_.vocab)});
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  std::string norm(const std::string& x, const std::string& name) {
    const std::string scale = w_.filled(w_.prefix + name + ".weight", {o_.hidden}, 1);
    const std::string bias = w_.filled(w_.prefix + name + ".bias", {o_.hidden}, 0);
    return w_.node("LayerNormalization", {x, scale, bias},
                   {{"axis", int64_t{-1}}, {"epsilon", 1e-5}});
  }

  std::string linear(const std::string& x, const std::string& name, int64_t in, int64_t out,
                     double deviation) {
    const std::string weight = w_.normal(w_.prefix + name + ".weight", {in, out}, deviation);
    const std::string bias = w_.filled(w_.prefix + name + ".bias", {out}, 0);
    return w_.node("Add", {w_.node("MatMul", {x, weight}), bias});
  }

  std::string drop(const std::string& x) {
    return o_.dropout == 0 ? x : w_.node("Dropout", {x, w_.scalar(o_.dropout), w_.boolean(true)});
  }

  double residual_deviation() const {
    return 0.02 / std::sqrt(2.0 * static_cast<double>(o_.layers));
  }

  /// The projection's columns are ordered head by head (q, k and v of head 0, of head 1, …), so
  /// that a cut of the columns is a cut of the heads.
  std::string attention(const std::string& x) {
    const int64_t size = o_.hidden / o_.heads;
    std::string qkv = linear(x, "attn.c_attn", o_.hidden, 3 * o_.hidden, 0.02);
    qkv = w_.node("Reshape", {qkv, w_.ints({0, o_.context, o_.heads, 3, size})});
    qkv = w_.node(
        "Transpose", {qkv},
        {{"perm", std::vector<int64_t>{3, 0, 2, 1, 4}}});  // [3, batch, head, position, size]
    std::vector<std::string> parts =
        w_.node_n("Split", {qkv, w_.ints({1, 1, 1})}, 3, {{"axis", int64_t{0}}});
    for (std::string& part : parts) part = w_.node("Squeeze", {part, w_.ints({0})});
    const std::string keys =
        w_.node("Transpose", {parts[1]}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
    std::string scores = w_.node("MatMul", {parts[0], keys});
    scores = w_.node("Mul", {scores, w_.scalar(1 / std::sqrt(static_cast<double>(size)))});
    scores = w_.node("Where", {mask_, scores, w_.scalar(-std::numeric_limits<double>::infinity())});
    const std::string seen = drop(w_.node("Softmax", {scores}, {{"axis", int64_t{-1}}}));
    std::string y = w_.node("MatMul", {seen, parts[2]});
    y = w_.node("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    y = w_.node("Reshape", {y, w_.ints({0, o_.context, o_.hidden})});
    return drop(linear(y, "attn.c_proj", o_.hidden, o_.hidden, residual_deviation()));
  }

  std::string mlp(const std::string& x) {
    std::string y = linear(x, "mlp.c_fc", o_.hidden, 4 * o_.hidden, 0.02);
    y = w_.node("Gelu", {y}, {{"approximate", std::string("tanh")}});
    return drop(linear(y, "mlp.c_proj", 4 * o_.hidden, o_.hidden, residual_deviation()));
  }

  GptOptions o_;
  OnnxWriter w_;
  std::string mask_;
};

}  // namespace

std::vector<std::string> gpt_presets() {
  std::vector<std::string> out;
  for (const Preset& preset : kPresets) out.push_back(preset.name);
  return out;
}

GptOptions gpt_preset(const std::string& name) {
  std::string all;
  for (const Preset& preset : kPresets) {
    if (name == preset.name) {
      GptOptions options;
      options.layers = preset.layers;
      options.heads = preset.heads;
      options.hidden = preset.hidden;
      options.vocab = preset.vocab;
      options.context = preset.context;
      return options;
    }
    all += str(all.empty() ? "" : ", ", preset.name);
  }
  fail(ErrorKind::invalid_input, "no preset is named '", name, "'; there are ", all);
}

int64_t write_gpt(const GptOptions& options, const std::string& path) {
  for (int64_t size : {options.layers, options.heads, options.hidden, options.vocab,
                       options.context, options.batch.value_or(1)}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "layers, heads, hidden, vocab, context and batch must be at least 1, got ", size);
  }
  SR_REQUIRE(options.hidden % options.heads == 0, invalid_input, "hidden=", options.hidden,
             " is not a multiple of heads=", options.heads);
  SR_REQUIRE(options.dropout >= 0 && options.dropout < 1, invalid_input, "dropout is ",
             options.dropout, ", wanted at least 0 and below 1");
  return GptWriter(options).write(path);
}

}  // namespace shardrun
