// Scaled dot-product attention and its gradient.
//
// attention(q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv], mask?, step?) -> y [B,H,T,Dv], lse [B,H,T]
//   p = softmax(leaky_relu(scale * q k^T, slope) + mask), y = dropout(p) v. lse, the log of the sum
//   of exponentials, lets the gradient recompute p row by row (Dao et al., "FlashAttention", 2022).
//   A query that sees no key gives y = 0 and lse = -inf. A slope of 1, the usual one, leaves scores
//   alone; graph attention (Velickovic et al., 2018) has 0.2, and the sum of a number for the query
//   and one for the key as the product of [a, 1] and [1, b].
//
// and the same in the steps that a mesh needs to cut its keys: what ranks find of theirs joins by
// maximum and sum (split_attention; whole again in Programs that cut no keys):
//
//   attention_top(q, k, mask?) -> top [B,H,T]: the highest score; -inf where a query sees no key
//   attention_sums(q, k, v, top, mask?, step?) -> o [B,H,T,Dv], total [B,H,T]
//     total sums exp(score - top), o the values weighted by it, after dropout
//   attention_join(top, o, total) -> y = o / total, lse = top + log(total)
//
// `keys` is the number of keys in all, S where a rank has all of them.
#include "graph/ops/attention.h"

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {

AttentionAttrs AttentionAttrs::of(const Node& node) {
  const Attrs& a = node.attrs;
  AttentionAttrs out;
  out.scale = a.f("scale");
  out.slope = a.f("slope", 1.0);
  out.causal = a.i("causal", 0) != 0;
  out.has_mask = a.i("has_mask", 0) != 0;
  out.q_offset = a.i("q_offset", 0);
  out.dropout = a.f("dropout", 0.0);
  if (out.dropout > 0) {
    out.seed = static_cast<uint64_t>(a.i("seed", 0));
    out.key = static_cast<uint64_t>(a.i("key", 0));
    out.global_shape = a.ints("global_shape");
    out.start = a.has("start") ? a.ints("start") : std::vector<int64_t>(4, 0);
  }
  return out;
}

std::optional<std::string> refuse_fused_attention(const Node& node, const TensorType& q,
                                                  const TensorType& v) {
  const AttentionAttrs attrs = AttentionAttrs::of(node);
  if (q.dtype != DType::bf16) return str("computes in bf16, not ", q.dtype);
  if (attrs.slope != 1 || attrs.has_mask || attrs.dropout > 0 ||
      (attrs.causal && attrs.q_offset != 0))
    return "has no mask, slope, dropout or offset of a causal mask";
  for (int64_t width : {q.shape[3], v.shape[3]}) {
    if (width % 8 != 0 || width > 128)
      return str("has heads of 8 to 128 in steps of 8, not ", width);
  }
  return std::nullopt;
}

namespace {

// Checks q, k, v at in[first..], then mask and step at in[rest..]; returns lse's type.
TensorType check(const Node& node, std::span<const TensorType> in, size_t first, size_t rest) {
  const AttentionAttrs attrs = AttentionAttrs::of(node);
  const size_t want = rest + (attrs.has_mask ? 1 : 0) + (attrs.dropout > 0 ? 1 : 0);
  SR_REQUIRE(in.size() == want, invalid_input, node.op, " with has_mask=", attrs.has_mask,
             " and dropout=", attrs.dropout, " takes ", want, " operands, got ", in.size());
  const TensorType &q = in[first], &k = in[first + 1], &v = in[first + 2];
  SR_REQUIRE(is_float(q.dtype) && q.dtype == k.dtype && q.dtype == v.dtype, invalid_input, node.op,
             " wants q, k and v of one floating type, got ", q, ", ", k, " and ", v);
  SR_REQUIRE(q.shape.size() == 4 && k.shape.size() == 4 && v.shape.size() == 4, invalid_input,
             node.op, " wants q [B,H,T,D], k [B,H,S,D] and v [B,H,S,Dv], got ", q, ", ", k, " and ",
             v);
  const int64_t B = q.shape[0], H = q.shape[1], T = q.shape[2], D = q.shape[3], S = k.shape[2];
  SR_REQUIRE(k.shape[0] == B && k.shape[1] == H && k.shape[3] == D && v.shape[0] == B &&
                 v.shape[1] == H && v.shape[2] == S,
             invalid_input, node.op, " wants q [B,H,T,D], k [B,H,S,D] and v [B,H,S,Dv], got ", q,
             ", ", k, " and ", v);
  if (attrs.has_mask) {
    const TensorType& mask = in[rest];
    SR_REQUIRE(is_float(mask.dtype) || mask.dtype == DType::boolean, invalid_input, node.op,
               " wants a floating or boolean mask, got ", mask);
    SR_REQUIRE(mask.shape.size() == 4, invalid_input, node.op, " wants a mask of rank 4, got ",
               mask);
    const Shape full = {B, H, T, S};
    for (size_t d = 0; d < 4; ++d) {
      SR_REQUIRE(mask.shape[d] == 1 || mask.shape[d] == full[d], invalid_input, node.op,
                 " wants a mask that broadcasts to ", to_string(full), ", got ", mask);
    }
  }
  if (attrs.dropout > 0) {
    SR_REQUIRE(attrs.dropout < 1, invalid_input, node.op, " has dropout ", attrs.dropout,
               "; it must be below 1");
    SR_REQUIRE((in.back() == TensorType{DType::i64, {}}), invalid_input, node.op,
               " with dropout wants its last operand, step, as i64[], got ", in.back());
    SR_REQUIRE(attrs.global_shape.size() == 4 && attrs.start.size() == 4, invalid_input, node.op,
               " with dropout wants global_shape and start of 4 dims");
  }
  return {statistics_type(q.dtype), {B, H, T}};
}

std::vector<TensorType> attention_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() >= 3, invalid_input, "attention takes at least q, k and v, got ", in.size(),
             " operands");
  const TensorType lse = check(node, in, 0, 3);
  Shape y = in[0].shape;
  y[3] = in[2].shape[3];
  return {{in[0].dtype, y}, lse};
}

std::vector<TensorType> attention_grad_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() >= 6, invalid_input, "attention_grad takes at least 6 operands, got ",
             in.size());
  const TensorType lse = check(node, in, 1, 6);
  Shape y = in[1].shape;
  y[3] = in[3].shape[3];
  const TensorType want{in[1].dtype, y};
  SR_REQUIRE(in[0] == want && in[4] == want && in[5] == lse, invalid_input,
             "attention_grad wants dy and y of ", want, " and lse of ", lse, ", got ", in[0], ", ",
             in[4], " and ", in[5]);
  return {in[1], in[2], in[3]};
}

// ---- in parts ----

std::vector<TensorType> attention_top_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() >= 2, invalid_input, "attention_top takes at least q and k, got ", in.size(),
             " operands");
  std::vector<TensorType> with_values(in.begin(), in.end());
  with_values.insert(with_values.begin() + 2, in[1]);  // keys in the values' place
  return {check(node, with_values, 0, 3)};
}

std::vector<TensorType> attention_sums_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() >= 4, invalid_input, "attention_sums takes at least q, k, v and top, got ",
             in.size(), " operands");
  const TensorType each = check(node, in, 0, 4);
  SR_REQUIRE(in[3] == each, invalid_input, "attention_sums wants top of ", each, ", got ", in[3]);
  Shape o = in[0].shape;
  o[3] = in[2].shape[3];
  return {{in[0].dtype, o}, each};
}

std::vector<TensorType> attention_join_infer(const Node&, std::span<const TensorType> in) {
  require_operands(in, 3);
  require_float(in[1], "o");
  SR_REQUIRE(in[1].shape.size() == 4, invalid_input, "o is ", in[1], ", wanted [B,H,T,Dv]");
  const TensorType each{statistics_type(in[1].dtype),
                        Shape(in[1].shape.begin(), in[1].shape.end() - 1)};
  SR_REQUIRE(in[0] == each && in[2] == each, invalid_input, "top is ", in[0], ", total is ", in[2],
             "; wanted ", each, " for o of ", in[1]);
  return {in[1], each};
}

std::vector<ValueId> attention_gradient(GradientContext& c) {
  SR_REQUIRE(c.out_grads[1] == kNoValue, unsupported, "attention '", c.node.name,
             "' has no gradient through its second result (the log of the sum of exponentials)");
  const std::vector<ValueId>& in = c.node.inputs;
  std::vector<ValueId> operands = {c.out_grads[0],   in[0], in[1], in[2], c.node.outputs[0],
                                   c.node.outputs[1]};
  operands.insert(operands.end(), in.begin() + 3, in.end());
  std::vector<ValueId> grads = c.graph.add_node("attention_grad", operands, c.node.attrs);
  grads.resize(in.size(), kNoValue);
  return grads;
}

// Queries [qb, …) against keys [kb, …): local position t' sees s' <= t' + qb - kb. (Cut keys are
// right for the gradient and for what is in parts: given lse or top, every key's part stands alone
// and the ranks' are summands.)
template <size_t kQ>
Attrs attention_localise(const Node& node, std::span<const TensorType>, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  const Box &q = boxes.in[kQ], &k = boxes.in[kQ + 1];
  attrs.set("q_offset", attrs.i("q_offset", 0) + q[2].begin - k[2].begin);
  if (attrs.f("dropout", 0.0) > 0) {
    std::vector<int64_t> start = AttentionAttrs::of(node).start;
    for (size_t d = 0; d < 3; ++d) start[d] += q[d].begin;
    start[3] += k[2].begin;
    attrs.set("start", start);
  }
  return attrs;
}

template <size_t kQ>
Attrs attention_shrink(const Node& node, std::span<const TensorType>, std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  attrs.set("q_offset", int64_t{0});
  if (attrs.has("keys")) attrs.set("keys", in[kQ + 1].shape[2]);
  if (attrs.f("dropout", 0.0) > 0) {
    const Shape& q = in[kQ].shape;
    attrs.set("global_shape", std::vector<int64_t>{q[0], q[1], q[2], in[kQ + 1].shape[2]});
    attrs.set("start", std::vector<int64_t>(4, 0));
  }
  return attrs;
}

// Forward: q k^T and p v. Backward: q k^T again, dy v^T, and one product each for dq, dk, dv.
template <size_t kQ, int kTimesD, int kTimesDv>
double attention_flops(const Node& node, std::span<const TensorType> in,
                       std::span<const TensorType>) {
  const Shape &q = in[kQ].shape, &v = in[kQ + 2].shape;
  const double pairs = static_cast<double>(q[0] * q[1] * q[2]) * static_cast<double>(v[2]);
  const double seen = node.attrs.i("causal", 0) != 0 && q[2] > 1 ? 0.5 : 1.0;
  return 2.0 * seen * pairs * static_cast<double>(kTimesD * q[3] + kTimesDv * v[3]);
}

// q k^T. Of all keys none: the three parts then are one step, which the sums count.
double attention_top_flops(const Node& node, std::span<const TensorType> in,
                           std::span<const TensorType>) {
  const Shape &q = in[0].shape, &k = in[1].shape;
  if (k[2] == node.attrs.i("keys", k[2])) return 0;
  const double seen = node.attrs.i("causal", 0) != 0 && q[2] > 1 ? 0.5 : 1.0;
  return 2.0 * seen * static_cast<double>(q[0] * q[1] * q[2]) * static_cast<double>(k[2] * q[3]);
}

enum class AttentionPart { whole, grad, top, sums };

std::vector<OpDef::Sample> samples(AttentionPart part) {
  const bool grad = part == AttentionPart::grad;
  struct Case {
    Shape q, k, v;
    bool causal;
    DType mask_type;
    Shape mask;  // empty: none
    double dropout;
    double slope = 1;
  };
  const DType f32 = DType::f32, boolean = DType::boolean;
  const std::vector<Case> cases = {
      {{2, 2, 4, 6}, {2, 2, 4, 6}, {2, 2, 4, 6}, true, f32, {}, 0},
      {{2, 3, 5, 4}, {2, 3, 5, 4}, {2, 3, 5, 4}, true, f32, {}, 0},
      {{1, 2, 3, 4}, {1, 2, 7, 4}, {1, 2, 7, 5}, false, f32, {}, 0},
      {{2, 2, 4, 3}, {2, 2, 5, 3}, {2, 2, 5, 3}, false, f32, {1, 1, 4, 5}, 0},
      {{2, 3, 4, 3}, {2, 3, 5, 3}, {2, 3, 5, 3}, false, f32, {2, 1, 1, 5}, 0},
      {{2, 2, 4, 3}, {2, 2, 4, 3}, {2, 2, 4, 3}, false, boolean, {2, 2, 4, 4}, 0},
      {{2, 2, 4, 3}, {2, 2, 4, 3}, {2, 2, 4, 3}, true, f32, {}, 0.3},
      {{2, 3, 4, 3}, {2, 3, 5, 3}, {2, 3, 5, 2}, false, f32, {1, 3, 4, 5}, 0.25},
      {{2, 2, 4, 2}, {2, 2, 5, 2}, {2, 2, 5, 3}, false, boolean, {1, 1, 4, 5}, 0, 0.2},
      {{2, 1, 5, 2}, {2, 1, 5, 2}, {2, 1, 5, 4}, false, boolean, {1, 1, 5, 5}, 0.3, 0.2},
      {{1, 2, 4, 3}, {1, 2, 3, 3}, {1, 2, 3, 2}, false, f32, {1, 2, 4, 3}, 0, 0.5},
  };
  std::vector<OpDef::Sample> out;
  for (const Case& c : cases) {
    OpDef::Sample s;
    s.in = {{f32, c.q}, {f32, c.k}, {f32, c.v}};
    if (grad) {
      const Shape y = {c.q[0], c.q[1], c.q[2], c.v[3]};
      s.in.insert(s.in.begin(), {f32, y});
      s.in.push_back({f32, y});
      s.in.push_back({f32, {c.q[0], c.q[1], c.q[2]}});
    }
    s.attrs = {
        {"scale", 0.5}, {"causal", int64_t{c.causal}}, {"has_mask", int64_t{!c.mask.empty()}}};
    if (c.slope != 1) s.attrs.set("slope", c.slope);
    if (part == AttentionPart::top) s.in.pop_back();
    if (part == AttentionPart::sums) s.in.push_back({f32, {c.q[0], c.q[1], c.q[2]}});
    if (part == AttentionPart::top || part == AttentionPart::sums) s.attrs.set("keys", c.k[2]);
    if (!c.mask.empty()) s.in.push_back({c.mask_type, c.mask});
    if (c.dropout > 0 && part != AttentionPart::top) {
      s.in.push_back({DType::i64, {}});
      s.attrs.set("dropout", c.dropout);
      s.attrs.set("seed", int64_t{5});
      s.attrs.set("key", int64_t{77});
      s.attrs.set("global_shape", std::vector<int64_t>{c.q[0], c.q[1], c.q[2], c.k[2]});
      s.attrs.set("start", std::vector<int64_t>(4, 0));
    }
    out.push_back(s);
  }
  return out;
}

std::vector<OpDef::Sample> attention_join_samples() {
  std::vector<OpDef::Sample> out;
  for (const Shape& o : {Shape{2, 2, 4, 6}, Shape{2, 3, 5, 4}, Shape{1, 2, 3, 1}}) {
    const TensorType each{DType::f32, {o[0], o[1], o[2]}};
    out.push_back({{each, {DType::f32, o}, each}});
    out.back().low = 0.4;  // totals are well above 0
  }
  return out;
}

}  // namespace

std::vector<OpDef> attention_ops() {
  return {
      {.name = "attention",
       .infer = attention_infer,
       .gradient = attention_gradient,
       .flops = attention_flops<0, 1, 1>,
       .cost = CostClass::attention,
       .precision = Precision::bf16,
       .model_body = true,
       .evaluation = {.drops = "dropout"},
       .localise = attention_localise<0>,
       .shrink = attention_shrink<0>,
       .samples = samples(AttentionPart::whole)},
      {.name = "attention_grad",
       .infer = attention_grad_infer,
       .flops = attention_flops<1, 3, 2>,
       .cost = CostClass::attention_grad,
       .precision = Precision::follows,
       .localise = attention_localise<1>,
       .shrink = attention_shrink<1>,
       .samples = samples(AttentionPart::grad)},
      {.name = "attention_top",
       .infer = attention_top_infer,
       .flops = attention_top_flops,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .localise = attention_localise<0>,
       .shrink = attention_shrink<0>,
       .samples = samples(AttentionPart::top)},
      {.name = "attention_sums",
       .infer = attention_sums_infer,
       .flops = attention_flops<0, 1, 1>,
       .cost = CostClass::attention,
       .precision = Precision::mixed,
       .localise = attention_localise<0>,
       .shrink = attention_shrink<0>,
       .samples = samples(AttentionPart::sums)},
      {.name = "attention_join",
       .infer = attention_join_infer,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .in_place = {{0, 1}},
       .samples = attention_join_samples()},
  };
}

}  // namespace shardrun
