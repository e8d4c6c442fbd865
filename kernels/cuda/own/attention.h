// Attention and its gradient as products around rows of scores: any mask, slope, dropout and type.
// Heads are done a group at a time, so that the scores of a group are all that is kept.
#pragma once

#include <cmath>

#include "graph/ops/attention.h"
#include "kernels/cuda/cublas/lt_product.h"
#include "kernels/cuda/elements/math.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// What becomes of one query's products with the keys.
struct ScoreRules {
  int64_t heads_of_batch = 1, queries = 1, keys = 1;  // H, T, S
  float scale = 1, slope = 1;
  bool causal = false;
  int64_t q_offset = 0;
  const void* mask = nullptr;  // null: none
  enum class MaskType { boolean, f32, bf16 } mask_type = MaskType::boolean;
  int64_t mask_stride[4] = {};
  const int64_t* step = nullptr;  // null: no dropout
  math::Word threshold = 0;
  float kept = 1;  // 1 / (1 - p)
  uint64_t seed = 0, key = 0;
  int64_t global_shape[4] = {}, start[4] = {};

  struct Place {
    int64_t head, query, mask;  // among all heads; where its row of the mask begins
    uint64_t random;            // position of key 0's random number
  };
  /// Of row `row` of [heads, T].
  SR_HOST_DEVICE Place place(int64_t row) const {
    Place p{row / queries, row % queries, 0, 0};
    const int64_t b = p.head / heads_of_batch, h = p.head % heads_of_batch;
    p.mask = b * mask_stride[0] + h * mask_stride[1] + p.query * mask_stride[2];
    const int64_t* g = global_shape;
    p.random = static_cast<uint64_t>(
        (((start[0] + b) * g[1] + start[1] + h) * g[2] + start[2] + p.query) * g[3] + start[3]);
    return p;
  }

  /// The score, and the slope of the activation there; -inf where the query must not look.
  struct Score {
    float value, slope;
  };
  SR_HOST_DEVICE Score score(const Place& p, int64_t s, float product) const {
    Score out{product * scale, 1};
    if (!(out.value > 0)) out.slope = slope;
    out.value *= out.slope;
    if (mask != nullptr) {
      const int64_t at = p.mask + s * mask_stride[3];
      if (mask_type == MaskType::boolean) {
        if (!static_cast<const bool*>(mask)[at]) out.value = -INFINITY;
      } else {
        out.value += mask_type == MaskType::f32 ? static_cast<const float*>(mask)[at]
                                                : as_float(static_cast<const Bf16*>(mask)[at]);
      }
    }
    if (causal && s > p.query + q_offset) out.value = -INFINITY;
    return out;
  }

  /// What the dropout multiplies the probabilities of keys s, s + 1, … by.
  template <int N>
  SR_HOST_DEVICE void keep(const Place& p, int64_t s, float (&factors)[N]) const {
    for (float& each : factors) each = 1;
    if (step == nullptr) return;
    const math::Draw<N> draw(p.random + static_cast<uint64_t>(s), 1, seed, key,
                             static_cast<uint64_t>(*step));
    for (int i = 0; i < N; ++i) factors[i] = (draw.bits[i] >> 8) >= threshold ? kept : 0.0f;
  }
};

/// The highest score of a row of products.
template <class Team>
SR_HOST_DEVICE float highest_score(const Team& team, const ScoreRules& rules,
                                   const ScoreRules::Place& place, const float* products,
                                   int64_t at) {
  float top = -INFINITY;
  columns<float>(team, at, rules.keys, [&](auto n, int64_t s) {
    float v[n()];
    read(products + at + s, v);
    for (int i = 0; i < n(); ++i) {
      const float score = rules.score(place, s + i, v[i]).value;
      top = score > top ? score : top;
    }
  });
  return team.max(top);
}

struct HighestScoreRow {
  static constexpr int kMostTeam = 512;
  ScoreRules rules;
  int64_t first_row;  // of the group's among all
  const float* products;
  float* tops;  // of all rows

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const ScoreRules::Place place = rules.place(first_row + row);
    const float top = highest_score(team, rules, place, products, row * rules.keys);
    if (team.rank() == 0) tops[first_row + row] = top;
  }
};

/// From products to weights of the values, which may lie in the same memory if T is float.
template <class T>
struct WeightsRow {
  static constexpr int kMostTeam = 512;  // with 1024 threads registers are spilled
  ScoreRules rules;
  int64_t first_row;  // of the group's among all
  const float* products;
  T* weights;
  const float* tops;  // of all rows, which weights then are relative to; null: this row's own
  float* each;        // of all rows: lse, or with tops the sum

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const ScoreRules::Place place = rules.place(first_row + row);
    const int64_t at = row * rules.keys;
    const float top =
        tops != nullptr ? tops[first_row + row] : highest_score(team, rules, place, products, at);
    const float shift = top == -INFINITY ? 0.0f : top;
    float sum = 0;
    columns<float>(team, at, rules.keys, [&](auto n, int64_t s) {
      float v[n()];
      read(products + at + s, v);
      for (int i = 0; i < n(); ++i) sum += expf(rules.score(place, s + i, v[i]).value - shift);
    });
    sum = team.sum(sum);
    const float inverse = tops != nullptr ? 1.0f : top == -INFINITY ? 0.0f : 1.0f / sum;
    columns<float>(team, at, rules.keys, [&](auto n, int64_t s) {
      float v[n()], keep[n()];
      read(products + at + s, v);
      rules.keep(place, s, keep);
      for (int i = 0; i < n(); ++i)
        v[i] = expf(rules.score(place, s + i, v[i]).value - shift) * inverse * keep[i];
      write(weights + at + s, v);
    });
    if (team.rank() != 0) return;
    each[first_row + row] = tops != nullptr ? sum : top == -INFINITY ? top : top + logf(sum);
  }
};

/// y = o / total, which may lie where o does, and lse.
template <class T>
struct AttentionJoinRow {
  const float *tops, *totals;
  const T* o;
  T* y;
  float* lse;
  int64_t width;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const float top = tops[row], total = totals[row];
    const float inverse = top == -INFINITY ? 0.0f : 1.0f / total;
    const int64_t at = row * width;
    columns<T>(team, at, width, [&](auto n, int64_t c) {
      float v[n()];
      read(o + at + c, v);
      for (float& value : v) value *= inverse;
      write(y + at + c, v);
    });
    if (team.rank() == 0) lse[row] = top == -INFINITY ? top : top + logf(total);
  }
};

/// From products and the gradients of weights (dy v') to the weights, and to the gradients of the
/// products. The latter two may lie where the former do if T is float.
template <class T>
struct WeightsGradRow {
  static constexpr int kMostTeam = 512;
  ScoreRules rules;
  int64_t first_row, value_width;
  const float *products, *dweights;
  const T *y, *dy;   // of all rows
  const float* lse;  // of all rows
  T *weights, *dproducts;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const ScoreRules::Place place = rules.place(first_row + row);
    float delta = 0;
    const int64_t values = (first_row + row) * value_width;
    columns<T>(team, values, value_width, [&](auto n, int64_t c) {
      float a[n()], b[n()];
      read(y + values + c, a);
      read(dy + values + c, b);
      for (int i = 0; i < n(); ++i) delta += a[i] * b[i];
    });
    delta = team.sum(delta);
    const float log_sum = lse[first_row + row];
    const int64_t at = row * rules.keys;
    columns<float>(team, at, rules.keys, [&](auto n, int64_t s) {
      float v[n()], r[n()], keep[n()];
      read(products + at + s, v);
      read(dweights + at + s, r);
      rules.keep(place, s, keep);
      for (int i = 0; i < n(); ++i) {
        const ScoreRules::Score score = rules.score(place, s + i, v[i]);
        const float p = score.value == -INFINITY ? 0.0f : expf(score.value - log_sum);
        v[i] = keep[i] * p;
        r[i] = p == 0 ? 0.0f : rules.scale * score.slope * p * (keep[i] * r[i] - delta);
      }
      write(weights + at + s, v);
      write(dproducts + at + s, r);
    });
  }
};

/// c [m, n] = a [m, k] b [k, n] for each of `batch`, dense and row-major; transposed: it lies [k,
/// m], or [n, k].
inline LtShape dense_product(int64_t batch, int64_t m, int64_t n, int64_t k, bool transposed_a,
                             bool transposed_b, DType in, DType out, bool tf32) {
  LtShape s;
  s.rows = n, s.cols = m, s.depth = k;  // cuBLAS's columns are our rows: its first operand is b
  s.transpose_a = transposed_b, s.transpose_b = transposed_a;
  s.a = {transposed_b ? k : n, n * k}, s.b = {transposed_a ? m : k, m * k}, s.d = {n, m * n};
  s.batch = batch, s.in = in, s.out = out;
  s.tf32 = tf32 && in == DType::f32;
  return s;
}

struct AttentionSizes {
  int64_t heads, queries, keys, width, value_width, heads_of_batch, group;
  bool gradient;
  DType dtype;
  int64_t mask_at = -1, step_at = -1;  // operands, or -1
  bool top, sums;                      // attention_top, attention_sums

  explicit AttentionSizes(const KernelCall& call) {
    gradient = call.node.op == "attention_grad";
    top = call.node.op == "attention_top", sums = call.node.op == "attention_sums";
    const size_t first = gradient ? 1 : 0, rest = gradient ? 6 : top ? 2 : sums ? 4 : 3;
    const Shape &q = call.in[first].shape, &k = call.in[first + 1].shape;
    heads = q[0] * q[1], heads_of_batch = q[1];
    queries = q[2], width = q[3], keys = k[2];
    value_width = top ? 1 : call.in[first + 2].shape[3];
    dtype = call.in[first].dtype;
    const AttentionAttrs attrs = AttentionAttrs::of(call.node);
    if (attrs.has_mask) mask_at = static_cast<int64_t>(rest);
    if (attrs.dropout > 0) step_at = static_cast<int64_t>(call.in.size()) - 1;
    constexpr int64_t kMost = 256 << 20;
    group = std::max<int64_t>(heads, 1);
    const auto much = [&] { return group * score_bytes() > kMost || group > LtShape::kMostBatch; };
    for (int64_t parts = 1; group > 1 && much(); ++parts) {
      if (heads % parts == 0) group = heads / parts;
    }
  }
  bool is_empty() const { return heads * queries * keys * width * value_width == 0; }

  // Parts of the workspace: products and weights' gradients in f32, and both in bf16 where they
  // cannot lie in the same memory.
  int64_t part(int64_t bytes) const { return (group * queries * keys * bytes + 255) / 256 * 256; }
  int64_t wide() const { return part(4); }
  int64_t narrow() const { return dtype == DType::f32 ? 0 : part(2); }
  int64_t score_bytes() const {
    return queries * keys * ((gradient ? 2 : 1) * (dtype == DType::f32 ? 4 : 6));
  }
  int64_t scratch_bytes() const { return (gradient ? 2 : 1) * (wide() + narrow()); }
};

inline ScoreRules rules_of(const Node& node, const AttentionSizes& size, const KernelCall& call) {
  const AttentionAttrs attrs = AttentionAttrs::of(node);
  ScoreRules r;
  r.heads_of_batch = size.heads_of_batch, r.queries = size.queries, r.keys = size.keys;
  r.scale = static_cast<float>(attrs.scale), r.slope = static_cast<float>(attrs.slope);
  r.causal = attrs.causal, r.q_offset = attrs.q_offset;
  if (size.mask_at >= 0) {
    const TensorType& mask = call.in[static_cast<size_t>(size.mask_at)];
    r.mask_type = mask.dtype == DType::boolean ? ScoreRules::MaskType::boolean
                  : mask.dtype == DType::f32   ? ScoreRules::MaskType::f32
                                               : ScoreRules::MaskType::bf16;
    const Shape strides = row_major_strides(mask.shape);
    for (size_t d = 0; d < 4; ++d) r.mask_stride[d] = mask.shape[d] == 1 ? 0 : strides[d];
  }
  if (attrs.dropout > 0) {
    r.threshold = static_cast<math::Word>(std::ceil(attrs.dropout * 0x1p24));
    r.kept = static_cast<float>(1 / (1 - attrs.dropout));
    r.seed = attrs.seed, r.key = attrs.key;
    for (size_t d = 0; d < 4; ++d)
      r.global_shape[d] = attrs.global_shape[d], r.start[d] = attrs.start[d];
  }
  return r;
}

/// `On` also has products (On::Product).
template <class On>
class AttentionByProducts {
 public:
  AttentionByProducts(const KernelCall& call, bool tf32)
      : size_(call), rules_(rules_of(call.node, size_, call)) {
    const auto [heads, t, s, d, dv, h, group, gradient, dtype, mask, step, top, sums] = size_;
    const DType f32 = DType::f32;
    const auto make = [&](int64_t m, int64_t n, int64_t k, bool a, bool b, DType out) {
      products_.emplace_back(dense_product(group, m, n, k, a, b, dtype, out, tf32));
      product_bytes_ = std::max(product_bytes_, products_.back().workspace_bytes());
    };
    make(t, s, d, false, true, f32);  // q k'
    if (top) return;
    if (!gradient) {
      make(t, dv, s, false, false, dtype);  // weights v
    } else {
      make(t, s, dv, false, true, f32);    // dy v'
      make(s, dv, t, true, false, dtype);  // dv = weights' dy
      make(t, d, s, false, false, dtype);  // dq = dproducts k
      make(s, d, t, true, false, dtype);   // dk = dproducts' q
    }
  }

  int64_t workspace_bytes() const { return size_.scratch_bytes() + product_bytes_; }

  void run(const KernelArgs& args) {
    ScoreRules rules = rules_;
    if (size_.mask_at >= 0) rules.mask = args.in[static_cast<size_t>(size_.mask_at)].data;
    if (size_.step_at >= 0)
      rules.step = args.in[static_cast<size_t>(size_.step_at)].template as<int64_t>();
    with_element(size_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t head = 0; head < size_.heads; head += size_.group)
        size_.gradient ? grad<T>(args, rules, head) : forward<T>(args, rules, head);
    });
  }

 private:
  struct Scratch {
    float *first, *second;  // f32; second: gradient's
    void *narrow_first, *narrow_second, *rest;
  };
  Scratch scratch(const KernelArgs& args) const {
    char* at = static_cast<char*>(args.workspace);
    const auto take = [&](int64_t bytes) {
      char* part = at;
      at += bytes;
      return part;
    };
    Scratch s{};
    s.first = reinterpret_cast<float*>(take(size_.wide()));
    if (size_.gradient) s.second = reinterpret_cast<float*>(take(size_.wide()));
    const bool same = size_.dtype == DType::f32;
    s.narrow_first = same ? reinterpret_cast<char*>(s.first) : take(size_.narrow());
    if (size_.gradient)
      s.narrow_second = same ? reinterpret_cast<char*>(s.second) : take(size_.narrow());
    s.rest = at;
    return s;
  }
  /// The part of a tensor [heads, rows, cols] that begins with `head`.
  template <class T>
  T* at(const TensorView& tensor, int64_t head, int64_t rows, int64_t cols) const {
    return tensor.as<T>() + head * rows * cols;
  }

  template <class T>
  void forward(const KernelArgs& args, const ScoreRules& rules, int64_t head) {
    const auto& z = size_;
    const Scratch s = scratch(args);
    const T *q = at<T>(args.in[0], head, z.queries, z.width),
            *k = at<T>(args.in[1], head, z.keys, z.width);
    T* weights = static_cast<T*>(s.narrow_first);
    products_[0].run(args, k, q, s.first, s.rest);
    if (z.top) {
      const HighestScoreRow body{rules, head * z.queries, s.first, args.out[0].as<float>()};
      return On::rows(args, z.group * z.queries, z.keys / 4, body, "attention_top");
    }
    const T* v = at<T>(args.in[2], head, z.keys, z.value_width);
    const WeightsRow<T> body{rules,
                             head * z.queries,
                             s.first,
                             weights,
                             z.sums ? args.in[3].as<float>() : nullptr,
                             args.out[1].as<float>()};
    On::rows(args, z.group * z.queries, z.keys / 4, body, "attention");
    products_[1].run(args, v, weights, at<T>(args.out[0], head, z.queries, z.value_width), s.rest);
  }

  template <class T>
  void grad(const KernelArgs& args, const ScoreRules& rules, int64_t head) {
    const auto& z = size_;
    const Scratch s = scratch(args);
    const T *dy = at<T>(args.in[0], head, z.queries, z.value_width),
            *q = at<T>(args.in[1], head, z.queries, z.width),
            *k = at<T>(args.in[2], head, z.keys, z.width),
            *v = at<T>(args.in[3], head, z.keys, z.value_width);
    T *weights = static_cast<T*>(s.narrow_first), *dproducts = static_cast<T*>(s.narrow_second);
    products_[0].run(args, k, q, s.first, s.rest);
    products_[1].run(args, v, dy, s.second, s.rest);
    const WeightsGradRow<T> body{
        rules,    head * z.queries,   z.value_width,      s.first,
        s.second, args.in[4].as<T>(), args.in[0].as<T>(), args.in[5].as<float>(),
        weights,  dproducts};
    On::rows(args, z.group * z.queries, z.keys / 4, body, "attention_grad");
    products_[2].run(args, dy, weights, at<T>(args.out[2], head, z.keys, z.value_width), s.rest);
    products_[3].run(args, k, dproducts, at<T>(args.out[0], head, z.queries, z.width), s.rest);
    products_[4].run(args, q, dproducts, at<T>(args.out[1], head, z.keys, z.width), s.rest);
  }

  AttentionSizes size_;
  ScoreRules rules_;
  std::vector<typename On::Product> products_;
  int64_t product_bytes_ = 0;
};

template <class On>
PreparedKernel prepare_attention(const KernelCall& call, bool tf32) {
  const auto state = std::make_shared<AttentionByProducts<On>>(call, tf32);
  return {[state](const KernelArgs& args) { state->run(args); }, state->workspace_bytes(),
          "cuda:products"};
}

inline Refusal refuse_attention(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  if (auto reason = refuse_more(call, call.node.op == "attention_grad" ? 8 : 6, 3,
                                {"scale", "slope", "causal", "has_mask", "q_offset", "dropout",
                                 "seed", "key", "global_shape", "start", "keys"}))
    return reason;
  if (AttentionSizes(call).is_empty()) return "has an empty operand";
  return std::nullopt;
}

template <class On>
PreparedKernel prepare_attention_join(const KernelCall& call) {
  const int64_t rows = element_count(call.in[0].shape), width = call.in[1].shape.back();
  const auto run = [=, dtype = call.in[1].dtype](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      const AttentionJoinRow<T> body{args.in[0].as<float>(),  args.in[2].as<float>(),
                                     args.in[1].as<T>(),      args.out[0].as<T>(),
                                     args.out[1].as<float>(), width};
      On::rows(args, rows, width / 4, body, "attention_join");
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
KernelList attention_kernels_on(bool tf32) {
  KernelList list;
  for (const char* op : {"attention", "attention_grad", "attention_top", "attention_sums"}) {
    list.push_back({op, "cuda:products", refuse_attention,
                    [=](const KernelCall& call) { return prepare_attention<On>(call, tf32); }});
  }
  const auto refuses = [](const KernelCall& call) -> Refusal {
    if (auto reason = refuse_other_floats(call)) return reason;
    return refuse_more(call, 3, 2, {});
  };
  list.push_back({"attention_join", "cuda:own", refuses, prepare_attention_join<On>});
  return list;
}

}  // namespace shardrun::cuda
