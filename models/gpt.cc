// GPT-2, LLaMA and Gemma node by node.
#include "models/gpt.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "models/experts.h"
#include "models/onnx_writer.h"
#include "models/presets.h"

namespace shardrun {
namespace {

/// LLaMA 3's 8B (Grattafiori et al., 2024, table 3), trained at a context of 4096.
GptOptions llama_8b() {
  GptOptions o;
  o.layers = 32;
  o.heads = 32;
  o.hidden = 4096;
  o.vocab = 128256;
  o.context = 4096;
  o.kv_heads = 8;
  o.mlp_width = 14336;
  o.norm = GptOptions::Norm::rms;
  o.mlp = GptOptions::Mlp::swiglu;
  o.positions = GptOptions::Positions::rotary;
  o.rotary_base = 500000;
  o.biases = o.tied = false;
  return o;
}

/// Gemma's 7B (Gemma Team, 2024, table 1), TOAST's T7B. Its hidden size of 49152 counts the gate
/// and the branch that it gates together: 24576 each.
GptOptions t7b() {
  GptOptions o;
  o.layers = 28;
  o.heads = 16;
  o.hidden = 3072;
  o.vocab = 256128;
  o.context = 2048;
  o.head_width = 256;
  o.mlp_width = 49152 / 2;
  o.norm = GptOptions::Norm::rms;
  o.mlp = GptOptions::Mlp::geglu;
  o.positions = GptOptions::Positions::rotary;
  o.biases = false;
  return o;
}

/// Gemma's 2B (the same), TOAST's T2B: one key head for all, 16384 of its 32768 each.
GptOptions t2b() {
  GptOptions o = t7b();
  o.layers = 18;
  o.heads = 8;
  o.kv_heads = 1;
  o.hidden = 2048;
  o.mlp_width = 32768 / 2;
  return o;
}

/// TOAST's ITX, whose vocabulary, layers, heads and sizes these are: one key head for all (Pope et
/// al., 2022). Of its 1024 tokens behind a prompt of 1024 the context has all.
GptOptions itx() {
  GptOptions o;
  o.layers = 32;
  o.heads = 32;
  o.kv_heads = 1;
  o.hidden = 2048;
  o.mlp_width = 4096;
  o.vocab = 50257;
  o.context = 2048;
  o.norm = GptOptions::Norm::rms;
  o.mlp = GptOptions::Mlp::swiglu;
  o.positions = GptOptions::Positions::rotary;
  o.biases = false;
  return o;
}

GptOptions sized(int64_t layers, int64_t heads, int64_t hidden, int64_t vocab, int64_t context,
                 std::optional<int64_t> batch = {}) {
  GptOptions o;
  o.layers = layers;
  o.heads = heads;
  o.hidden = hidden;
  o.vocab = vocab;
  o.context = context;
  o.batch = batch;
  return o;
}

// MetaDist's Table 2 gives no vocabulary and no length: 512 tokens and no vocabulary fit its TFLOP.
Presets<GptOptions> gpt_sizes() {
  return {{"tiny", sized(4, 4, 128, 256, 64)},
          {"gpt2-124m", sized(12, 12, 768, 50257, 1024)},
          {"gpt2-350m", sized(24, 16, 1024, 50257, 1024)},
          {"gpt2-774m", sized(36, 20, 1280, 50257, 1024)},
          {"gpt2-1558m", sized(48, 25, 1600, 50257, 1024)},
          {"metadist-1", sized(1, 40, 10240, 256, 512, 8)},
          {"metadist-2", sized(2, 40, 10240, 256, 512, 8)},
          {"metadist-4", sized(4, 40, 10240, 256, 512, 8)},
          {"metadist-8", sized(4, 56, 14336, 256, 512, 8)},
          {"llama-8b", llama_8b()},
          {"itx", itx()},
          {"t2b", t2b()},
          {"t7b", t7b()}};
}

class GptWriter {
 public:
  explicit GptWriter(const GptOptions& options)
      : o_(options),
        kv_heads_(options.kv_heads.value_or(options.heads)),
        width_(options.head_width.value_or(options.hidden / options.heads)),
        mlp_width_(options.mlp_width.value_or(4 * options.hidden)),
        rotary_(options.positions == GptOptions::Positions::rotary),
        modern_(options.norm == GptOptions::Norm::rms || rotary_ || kv_heads_ != options.heads),
        w_("gpt", {.weights = options.weights, .seed = options.seed, .opset = modern_ ? 23 : 20}) {}

  int64_t write(const std::string& path) {
    const std::string batch = o_.batch ? std::to_string(*o_.batch) : "batch";
    w_.input("tokens", kInt64, {batch, std::to_string(o_.context)});
    if (!attention_operator()) {
      // Position s is seen from position t if t >= s.
      const std::string at = positions();
      mask_ = w_.node("GreaterOrEqual", {w_.node("Unsqueeze", {at, w_.ints({1})}),
                                         w_.node("Unsqueeze", {at, w_.ints({0})})});
    }
    if (rotary_) make_rotation();

    const std::string wte = w_.normal("wte.weight", {o_.vocab, o_.hidden}, 0.02);
    std::string x = w_.node("Gather", {wte, "tokens"});
    if (!rotary_) x = w_.node("Add", {x, w_.normal("wpe.weight", {o_.context, o_.hidden}, 0.02)});
    x = drop(x);
    for (int64_t layer = 0; layer < o_.layers; ++layer) {
      w_.prefix = str("h.", layer, ".");
      x = w_.node("Add", {x, attention(norm(x, "ln_1"))});
      const std::string y = norm(x, "ln_2");
      x = w_.node("Add", {x, drop(o_.experts ? experts(y) : mlp(y, linear_layer()))});
    }
    w_.prefix = "";
    x = norm(x, "ln_f");
    const std::string head =
        o_.tied ? w_.node("Transpose", {wte}, {{"perm", std::vector<int64_t>{1, 0}}})
                : w_.normal("head.weight", {o_.hidden, o_.vocab}, 0.02);
    w_.node("MatMul", {x, head}, {}, "logits");
    w_.output("logits", kFloat, {batch, std::to_string(o_.context), std::to_string(o_.vocab)});
    w_.write(path);
    return w_.parameter_count();
  }

 private:
  std::string positions() {
    std::vector<int64_t> positions(static_cast<size_t>(o_.context));
    std::iota(positions.begin(), positions.end(), 0);
    return w_.ints(positions);
  }

  /// cos and sin of position / base^(2 i / width), [context, width] with both halves alike (Su et
  /// al., 2021).
  void make_rotation() {
    std::vector<double> speeds;
    for (int64_t i = 0; i < width_ / 2; ++i)
      speeds.push_back(
          std::pow(o_.rotary_base, -2.0 * static_cast<double>(i) / static_cast<double>(width_)));
    const std::string at = w_.node(
        "Unsqueeze", {w_.node("Cast", {positions()}, {{"to", int64_t{kFloat}}}), w_.ints({1})});
    // Of a node, for an initialiser that the gradient reaches would be trained.
    const std::string turns = w_.node("Constant", {}, {{"value_floats", speeds}});
    const std::string half = w_.node("Mul", {at, turns});
    const std::string angle = w_.node("Concat", {half, half}, {{"axis", int64_t{1}}});
    cos_ = w_.node("Cos", {angle});
    sin_ = w_.node("Sin", {angle});
  }

  /// x [batch, heads, context, width]: the pair (i, i + width / 2) turns by position's angle.
  std::string rotate(const std::string& x) {
    if (!rotary_) return x;
    const std::vector<std::string> halves =
        w_.node_n("Split", {x, w_.ints({width_ / 2, width_ / 2})}, 2, {{"axis", int64_t{-1}}});
    const std::string turned =
        w_.node("Concat", {w_.node("Neg", {halves[1]}), halves[0]}, {{"axis", int64_t{-1}}});
    return w_.node("Add", {w_.node("Mul", {x, cos_}), w_.node("Mul", {turned, sin_})});
  }

  std::string norm(const std::string& x, const std::string& name) {
    std::vector<std::string> in = {x, w_.filled(w_.prefix + name + ".weight", {o_.hidden}, 1)};
    if (o_.norm == GptOptions::Norm::rms)
      return w_.node("RMSNormalization", in, {{"axis", int64_t{-1}}, {"epsilon", 1e-5}});
    if (o_.biases) in.push_back(w_.filled(w_.prefix + name + ".bias", {o_.hidden}, 0));
    return w_.node("LayerNormalization", in, {{"axis", int64_t{-1}}, {"epsilon", 1e-5}});
  }

  std::string linear(const std::string& x, const std::string& name, int64_t in, int64_t out,
                     double deviation) {
    const std::string weight = w_.normal(w_.prefix + name + ".weight", {in, out}, deviation);
    const std::string y = w_.node("MatMul", {x, weight});
    if (!o_.biases) return y;
    return w_.node("Add", {y, w_.filled(w_.prefix + name + ".bias", {out}, 0)});
  }

  std::string drop(const std::string& x) {
    return o_.dropout == 0 ? x : w_.node("Dropout", {x, w_.scalar(o_.dropout), w_.boolean(true)});
  }

  double residual_deviation() const {
    return 0.02 / std::sqrt(2.0 * static_cast<double>(o_.layers));
  }

  /// Opset 23's Attention has no dropout.
  bool attention_operator() const { return modern_ && o_.dropout == 0; }

  struct Heads {
    std::string q, k, v;  // [batch, heads or kv_heads, context, width]
  };

  /// One projection whose columns are ordered head by head (q, k and v of head 0, of head 1, …), so
  /// that a cut of the columns is a cut of the heads.
  Heads project_together(const std::string& x) {
    std::string qkv = linear(x, "attn.c_attn", o_.hidden, 3 * o_.heads * width_, 0.02);
    qkv = w_.node("Reshape", {qkv, w_.ints({0, o_.context, o_.heads, 3, width_})});
    qkv = w_.node(
        "Transpose", {qkv},
        {{"perm", std::vector<int64_t>{3, 0, 2, 1, 4}}});  // [3, batch, head, position, width]
    std::vector<std::string> parts =
        w_.node_n("Split", {qkv, w_.ints({1, 1, 1})}, 3, {{"axis", int64_t{0}}});
    for (std::string& part : parts) part = w_.node("Squeeze", {part, w_.ints({0})});
    return {parts[0], parts[1], parts[2]};
  }

  Heads project_apart(const std::string& x) {
    const auto heads = [&](const std::string& name, int64_t count) {
      std::string y = linear(x, name, o_.hidden, count * width_, 0.02);
      y = w_.node("Reshape", {y, w_.ints({0, o_.context, count, width_})});
      return w_.node("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    };
    return {rotate(heads("attn.q_proj", o_.heads)), rotate(heads("attn.k_proj", kv_heads_)),
            heads("attn.v_proj", kv_heads_)};
  }

  /// [batch, kv_heads, context, width] -> [batch, heads, context, width]
  std::string repeat(const std::string& x) {
    if (kv_heads_ == o_.heads) return x;
    const std::string apart = w_.node("Unsqueeze", {x, w_.ints({2})});
    const std::string wide = w_.node(
        "Expand", {apart, w_.ints({1, kv_heads_, o_.heads / kv_heads_, o_.context, width_})});
    return w_.node("Reshape", {wide, w_.ints({0, o_.heads, o_.context, width_})});
  }

  std::string attend(const Heads& heads) {
    const double scale = 1 / std::sqrt(static_cast<double>(width_));
    if (attention_operator())
      return w_.node("Attention", {heads.q, heads.k, heads.v},
                     {{"is_causal", int64_t{1}}, {"scale", scale}});
    const std::string keys =
        w_.node("Transpose", {repeat(heads.k)}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
    std::string scores = w_.node("MatMul", {heads.q, keys});
    scores = w_.node("Mul", {scores, w_.scalar(scale)});
    scores = w_.node("Where", {mask_, scores, w_.scalar(-std::numeric_limits<double>::infinity())});
    const std::string seen = drop(w_.node("Softmax", {scores}, {{"axis", int64_t{-1}}}));
    return w_.node("MatMul", {seen, repeat(heads.v)});
  }

  std::string attention(const std::string& x) {
    const bool together = !rotary_ && kv_heads_ == o_.heads;
    std::string y = attend(together ? project_together(x) : project_apart(x));
    y = w_.node("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
    y = w_.node("Reshape", {y, w_.ints({0, o_.context, o_.heads * width_})});
    return drop(linear(y, "attn.c_proj", o_.heads * width_, o_.hidden, residual_deviation()));
  }

  /// Makes a layer of (x, name, inputs, outputs, the weights' standard deviation).
  using Layer =
      std::function<std::string(const std::string&, const std::string&, int64_t, int64_t, double)>;

  Layer linear_layer() {
    return [this](const std::string& x, const std::string& name, int64_t in, int64_t out,
                  double deviation) { return linear(x, "mlp." + name, in, out, deviation); };
  }

  std::string mlp(const std::string& x, const Layer& layer) {
    std::string y;
    if (o_.mlp == GptOptions::Mlp::gelu) {
      y = gelu(layer(x, "c_fc", o_.hidden, mlp_width_, 0.02));
    } else {
      const std::string gate = layer(x, "gate", o_.hidden, mlp_width_, 0.02);
      const std::string open = o_.mlp == GptOptions::Mlp::geglu
                                   ? gelu(gate)
                                   : w_.node("Mul", {gate, w_.node("Sigmoid", {gate})});
      y = w_.node("Mul", {open, layer(x, "up", o_.hidden, mlp_width_, 0.02)});
    }
    return layer(y, "c_proj", mlp_width_, o_.hidden, residual_deviation());
  }

  /// A weight [experts, in, out] of all experts. What tokens bring is [batch, experts, slots,
  /// hidden], and inside an expert [experts, batch, slots, width].
  std::string expert_layer(const std::string& x, const std::string& name, int64_t in, int64_t out,
                           double deviation) {
    const bool last = name == "c_proj";
    const std::string weight =
        w_.normal(w_.prefix + "mlp.experts." + name + ".weight", {*o_.experts, in, out}, deviation);
    const std::string y =
        w_.node("Einsum", {x, weight},
                {{"equation", std::string(last ? "ebsf,efd->besd" : "besd,edf->ebsf")}});
    if (!o_.biases) return y;
    const Shape shape = last ? Shape{*o_.experts, 1, out} : Shape{*o_.experts, 1, 1, out};
    return w_.node("Add", {y, w_.filled(w_.prefix + "mlp.experts." + name + ".bias", shape, 0)});
  }

  std::string experts(const std::string& x) {
    const ExpertSizes sizes = {*o_.experts, o_.top_k,
                               expert_slots(o_.context, o_.top_k, *o_.experts, o_.capacity),
                               o_.context, o_.hidden};
    const std::string router =
        w_.normal(w_.prefix + "mlp.router.weight", {o_.hidden, *o_.experts}, 0.02);
    const ExpertRoutes routes = route_to_experts(w_, x, router, sizes);
    const std::string y =
        mlp(send_to_experts(w_, x, routes, sizes),
            [this](const std::string& of, const std::string& name, int64_t in, int64_t out,
                   double deviation) { return expert_layer(of, name, in, out, deviation); });
    return bring_from_experts(w_, y, routes, sizes);
  }

  std::string gelu(const std::string& x) {
    return w_.node("Gelu", {x}, {{"approximate", std::string("tanh")}});
  }

  GptOptions o_;
  int64_t kv_heads_, width_, mlp_width_;
  bool rotary_, modern_;
  OnnxWriter w_;
  std::string mask_, cos_, sin_;
};

}  // namespace

GptOptions gpt_preset(const std::string& name) { return preset_named(gpt_sizes(), name); }

int64_t write_gpt(const GptOptions& options, const std::string& path) {
  for (int64_t size :
       {options.layers, options.heads, options.hidden, options.vocab, options.context,
        options.batch.value_or(1), options.kv_heads.value_or(1), options.head_width.value_or(1),
        options.mlp_width.value_or(1), options.experts.value_or(1), options.top_k}) {
    SR_REQUIRE(size >= 1, invalid_input,
               "layers, heads, hidden, vocab, context, batch, kv-heads, head-width, mlp-width, "
               "experts and top-k must be at least 1, got ",
               size);
  }
  SR_REQUIRE(options.head_width || options.hidden % options.heads == 0, invalid_input,
             "hidden=", options.hidden, " is not a multiple of heads=", options.heads,
             "; give --head-width");
  const int64_t kv_heads = options.kv_heads.value_or(options.heads);
  SR_REQUIRE(options.heads % kv_heads == 0, invalid_input, "heads=", options.heads,
             " is not a multiple of kv-heads=", kv_heads);
  const int64_t width = options.head_width.value_or(options.hidden / options.heads);
  SR_REQUIRE(options.positions != GptOptions::Positions::rotary || width % 2 == 0, invalid_input,
             "rotary positions turn pairs: the head's width is ", width, ", wanted an even one");
  SR_REQUIRE(options.dropout >= 0 && options.dropout < 1, invalid_input, "dropout is ",
             options.dropout, ", wanted at least 0 and below 1");
  if (options.experts) {
    SR_REQUIRE(options.top_k <= *options.experts, invalid_input, "top-k=", options.top_k,
               " is more than experts=", *options.experts);
    SR_REQUIRE(options.capacity > 0, invalid_input, "capacity is ", options.capacity,
               ", wanted more than 0");
  }
  return GptWriter(options).write(path);
}

}  // namespace shardrun
