// Lowering of Attention (opset 23, 24) and RotaryEmbedding (23).
#include <cmath>
#include <limits>

#include "graph/onnx/lower/lowering.h"
#include "graph/passes/match.h"

namespace shardrun::importer {
namespace {

using Ints = std::vector<int64_t>;

/// [B, T, H * D] to [B, H, T, D]; rank 4 stays.
V split_heads(NodeContext& c, V x, int64_t heads, const char* attribute) {
  Builder& b = c.b;
  if (b.rank(x) == 4) return x;
  const Shape s = b.shape(x);
  SR_REQUIRE(s.size() == 3, invalid_input, "operands want rank 3 or 4, got ", b.type(x));
  SR_REQUIRE(heads > 0 && s[2] % heads == 0, invalid_input, "attribute ", attribute, "=", heads,
             " does not divide ", b.type(x));
  return b.transpose(b.reshape(x, {s[0], s[1], heads, s[2] / heads}), {0, 2, 1, 3});
}

/// [B, H, S, D] to [B, H * times, S, D]: each head serves `times` query heads in a row.
V repeat_heads(NodeContext& c, V x, int64_t times) {
  if (times == 1) return x;
  const Shape s = c.b.shape(x);
  const V wide =
      c.b.expand(c.b.reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], times, s[2], s[3]});
  return c.b.reshape(wide, {s[0], s[1] * times, s[2], s[3]});
}

/// The mask with rank 4 and a last dim of `total`: a shorter one hides the rest.
V fit_mask(NodeContext& c, V mask, int64_t total) {
  Builder& b = c.b;
  Shape s = b.shape(mask);
  SR_REQUIRE(s.size() >= 1 && s.size() <= 4, invalid_input, "mask is ", b.type(mask));
  s.insert(s.begin(), 4 - s.size(), 1);
  mask = b.reshape(mask, s);
  if (s[3] == total || s[3] == 1) return mask;
  SR_REQUIRE(s[3] < total, invalid_input, "mask ", b.type(mask), " is longer than ", total,
             " keys");
  Shape rest = s;
  rest[3] = total - s[3];
  const bool is_bool = b.dtype(mask) == DType::boolean;
  const double hidden = is_bool ? 0 : -std::numeric_limits<double>::infinity();
  return b.concat({mask, b.fill(hidden, b.dtype(mask), rest)}, 3);
}

/// true where position t of T sees key s: s <= t + offset. [1, 1, T, S]
V causal_mask(NodeContext& c, int64_t queries, int64_t keys, int64_t offset) {
  const V ones = c.b.fill(1, DType::i32, {1, 1, queries, keys});
  return c.b.cast(c.b.add("trilu", {ones}, {{"upper", int64_t{0}}, {"k", offset}}), DType::boolean);
}

/// Adds a mask to scores: booleans hide with -inf.
V apply_mask(NodeContext& c, V scores, V mask) {
  if (c.b.dtype(mask) != DType::boolean)
    return c.b.add("add", {scores, c.b.cast(mask, c.b.dtype(scores))});
  const V hidden = c.b.scalar(-std::numeric_limits<double>::infinity(), c.b.dtype(scores));
  return c.b.add("where", {mask, scores, hidden});
}

/// The operator has no place for dropout; the call that it came from has.
double dropout_of(NodeContext& c) {
  const std::optional<FxCall> call = fx_call_of(c.proto);
  const double ratio = call ? attention_dropout(*call) : 0;
  if (!(ratio > 0 && ratio < 1) || !c.b.options.training) return 0;
  c.restored(str("dropout_p=", ratio));
  return ratio;
}

/// What the operator is to do with its queries, keys and values, all of rank 4.
struct Attention {
  V q = kNone, k = kNone, v = kNone, mask = kNone;
  int64_t past = 0;  // keys before the queries' own
  double scale = 1, softcap = 0, dropout = 0;
  bool causal = false;
};

/// `mask` and input 6, how many keys each sample of the batch has.
V mask_padding(NodeContext& c, V mask, int64_t batch, int64_t total) {
  Builder& b = c.b;
  const V positions = b.add("iota", {},
                            {{"shape", Shape{1, 1, 1, total}},
                             {"dtype", std::string("i64")},
                             {"axis", int64_t{3}},
                             {"start", int64_t{0}},
                             {"step", int64_t{1}}});
  const V padding =
      b.add("less", {positions, b.reshape(b.cast(c.in(6), DType::i64), {batch, 1, 1, 1})});
  if (mask == kNone) return padding;
  if (b.dtype(mask) == DType::boolean) return b.add("logical_and", {mask, padding});
  return apply_mask(c, b.expand(mask, broadcast(b.shape(mask), b.shape(padding))), padding);
}

/// Op attention has no gradient for its mask; one that trains, such as a table of relative
/// positions, is added to the scores by a node of its own.
bool mask_trains(Builder& b, V mask) {
  return mask != kNone && b.known(mask) == nullptr && b.dtype(mask) != DType::boolean &&
         depends_on_trained(b.graph, b.id(mask));
}

V as_one_op(NodeContext& c, const Attention& a) {
  Builder& b = c.b;
  std::vector<V> inputs = {a.q, a.k, a.v};
  if (a.mask != kNone)
    inputs.push_back(b.dtype(a.mask) != DType::boolean ? b.cast(a.mask, b.dtype(a.q)) : a.mask);
  return b.add_n("attention", inputs,
                 {{"scale", a.scale},
                  {"causal", int64_t{a.causal}},
                  {"q_offset", a.past},
                  {"has_mask", int64_t{a.mask != kNone}},
                  {"dropout", 0.0},
                  {"key", int64_t{0}}})[0];
}

/// Scores, softmax and sum as nodes of their own. `mode`: which of them output 3 is.
V as_nodes(NodeContext& c, const Attention& a, int64_t mode) {
  Builder& b = c.b;
  V scores = b.with(
      "mul", b.add("matmul", {a.q, a.k}, {{"equation", std::string("abmk,abnk->abmn")}}), a.scale);
  if (mode == 0 && c.wants(3)) c.out(3, scores);
  if (a.softcap != 0)
    scores = b.with("mul", b.add("tanh", {b.with("div", scores, a.softcap)}), a.softcap);
  if (c.wants(3) && mode == 1) c.out(3, scores);
  if (a.mask != kNone) scores = apply_mask(c, scores, a.mask);
  if (a.causal)
    scores = apply_mask(c, scores, causal_mask(c, b.shape(a.q)[2], b.shape(a.k)[2], a.past));
  if (mode == 2 && c.wants(3)) c.out(3, scores);
  const V weights = b.add("softmax", {scores}, {{"axis", int64_t{3}}});
  if (mode == 3 && c.wants(3)) c.out(3, weights);
  return b.add("matmul", {dropped(c, weights, a.dropout), a.v},
               {{"equation", std::string("abmk,abkn->abmn")}});
}

void attention(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("softmax_precision");  // softmax is computed in at least f32
  const int64_t q_heads = c.attr_i("q_num_heads", 0), kv_heads = c.attr_i("kv_num_heads", 0);
  const bool flat = b.rank(c.in(0)) == 3;
  Attention a;
  a.q = split_heads(c, c.in(0), q_heads, "q_num_heads");
  a.k = split_heads(c, c.in(1), kv_heads, "kv_num_heads");
  a.v = split_heads(c, c.in(2), kv_heads, "kv_num_heads");
  if (c.has(4) || c.has(5)) {
    a.past = b.shape(c.in(4)).at(2);
    a.k = b.concat({c.in(4), a.k}, 2);
    a.v = b.concat({c.in(5), a.v}, 2);
  }
  if (c.wants(1)) c.out(1, a.k);
  if (c.wants(2)) c.out(2, a.v);
  const Shape qs = b.shape(a.q), ks = b.shape(a.k);
  SR_REQUIRE(ks[1] > 0 && qs[1] % ks[1] == 0, invalid_input, qs[1], " query heads over ", ks[1],
             " key heads");
  a.k = repeat_heads(c, a.k, qs[1] / ks[1]);
  a.v = repeat_heads(c, a.v, qs[1] / ks[1]);
  a.scale = c.attr_f("scale", 1 / std::sqrt(static_cast<double>(qs[3])));
  a.softcap = c.attr_f("softcap", 0);
  a.causal = c.attr_i("is_causal", 0) != 0;
  const int64_t mode = c.attr_i("qk_matmul_output_mode", 0);
  if (c.has(3)) a.mask = fit_mask(c, c.in(3), ks[2]);
  if (c.has(6)) a.mask = mask_padding(c, a.mask, qs[0], ks[2]);
  const bool trains = mask_trains(b, a.mask);
  a.dropout = dropout_of(c);
  const bool is_one_op = a.softcap == 0 && !c.wants(3) && !trains && a.dropout == 0;
  V y = is_one_op ? as_one_op(c, a) : as_nodes(c, a, mode);
  if (flat) {
    const Shape ys = b.shape(y);
    y = b.reshape(b.transpose(y, {0, 2, 1, 3}), {ys[0], ys[2], ys[1] * ys[3]});
  }
  c.out(0, y);
}

/// Rotates pairs of the last dim by position; work is in [B, T, H, D].
void rotary_embedding(NodeContext& c) {
  Builder& b = c.b;
  const V in = c.in(0);
  const Shape original = b.shape(in);
  const int64_t heads = c.attr_i("num_heads", 0);
  V x = in;
  if (original.size() == 4) {
    x = b.transpose(in, {0, 2, 1, 3});
  } else {
    SR_REQUIRE(original.size() == 3 && heads > 0 && original[2] % heads == 0, invalid_input,
               "num_heads=", heads, " does not divide ", b.type(in));
    x = b.reshape(in, {original[0], original[1], heads, original[2] / heads});
  }
  const Shape s = b.shape(x);
  int64_t rotated = c.attr_i("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = s[3];
  SR_REQUIRE(rotated > 0 && rotated <= s[3] && rotated % 2 == 0, invalid_input, "rotates ", rotated,
             " of ", s[3]);
  const int64_t half = rotated / 2;
  const bool interleaved = c.attr_i("interleaved", 0) != 0;
  auto table = [&](size_t input) {
    V cache = c.in(input);
    if (c.has(3)) {
      const V positions = normalise_indices(c, c.in(3), b.shape(cache)[0]);
      cache = b.add("gather", {cache, positions}, {{"axis", int64_t{0}}});
    }
    SR_REQUIRE(b.rank(cache) == 3 && b.shape(cache)[2] == half, invalid_input, "cache ",
               b.type(cache), " wants a last dim of ", half);
    return b.unsqueeze(cache, 2);
  };
  const V cos = table(1), sin = table(2);
  const V turning = b.slice(x, 3, 0, rotated);
  V x1 = kNone, x2 = kNone;
  if (interleaved) {
    const V pairs = b.reshape(turning, {s[0], s[1], s[2], half, 2});
    const Shape flat = {s[0], s[1], s[2], half};
    x1 = b.reshape(b.slice(pairs, 4, 0, 1), flat);
    x2 = b.reshape(b.slice(pairs, 4, 1, 2), flat);
  } else {
    x1 = b.slice(turning, 3, 0, half);
    x2 = b.slice(turning, 3, half, rotated);
  }
  const V real = b.add("sub", {b.add("mul", {cos, x1}), b.add("mul", {sin, x2})});
  const V imaginary = b.add("add", {b.add("mul", {sin, x1}), b.add("mul", {cos, x2})});
  V y = interleaved ? b.reshape(b.concat({b.unsqueeze(real, 4), b.unsqueeze(imaginary, 4)}, 4),
                                {s[0], s[1], s[2], rotated})
                    : b.concat({real, imaginary}, 3);
  if (rotated < s[3]) y = b.concat({y, b.slice(x, 3, rotated, s[3])}, 3);
  c.out(original.size() == 4 ? b.transpose(y, {0, 2, 1, 3}) : b.reshape(y, original));
}

constexpr Lowering kAttentionLowerings[] = {{"Attention", 23, attention},
                                            {"RotaryEmbedding", 23, rotary_embedding}};

}  // namespace

std::span<const Lowering> attention_lowerings() { return kAttentionLowerings; }

}  // namespace shardrun::importer
