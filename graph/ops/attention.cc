// Scaled dot-product attention and its gradient.
//
// attention(q [B,H,T,D], k [B,H,S,D], v [B,H,S,Dv], mask?, step?) -> y [B,H,T,Dv], lse [B,H,T]
//   p = softmax(leaky_relu(scale * q k^T, slope) + mask), y = dropout(p) v. lse, the log of the sum
//   of exponentials, lets the gradient recompute p row by row (Dao et al., "FlashAttention", 2022).
//   A query that sees no key gives y = 0 and lse = -inf. A slope of 1, the usual one, leaves scores
//   alone; graph attention (Velickovic et al., 2018) has 0.2, and the sum of a number for the query
//   and one for the key as the product of [a, 1] and [1, b].
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
// right for the gradient only: with lse given, every key's part stands alone and dq is a partial
// sum.)
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

std::vector<OpDef::Sample> samples(bool grad) {
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
    if (!c.mask.empty()) s.in.push_back({c.mask_type, c.mask});
    if (c.dropout > 0) {
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
       .localise = attention_localise<0>,
       .shrink = attention_shrink<0>,
       .samples = samples(false)},
      {.name = "attention_grad",
       .infer = attention_grad_infer,
       .flops = attention_flops<1, 3, 2>,
       .cost = CostClass::attention_grad,
       .precision = Precision::follows,
       .localise = attention_localise<1>,
       .shrink = attention_shrink<1>,
       .samples = samples(true)},
  };
}

}  // namespace shardrun
