// Reference attention and its gradient: one query row at a time in f64.
#include "graph/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// The operands that forward and backward have in common, and the scores of one query row.
struct AttentionOperands {
  AttentionOperands(const Node& node, const KernelArgs& args, size_t first, size_t rest)
      : attrs(AttentionAttrs::of(node)), q(load(args.in[first])), k(load(args.in[first + 1])) {
    const Shape &qs = args.in[first].type.shape, &ks = args.in[first + 1].type.shape;
    B = qs[0], H = qs[1], T = qs[2], D = qs[3], S = ks[2];
    if (rest > first + 2) {  // else the scores alone are wanted
      v = load(args.in[first + 2]);
      Dv = args.in[first + 2].type.shape[3];
    }
    if (attrs.has_mask) {
      mask = load(args.in[rest]);
      boolean_mask = args.in[rest].type.dtype == DType::boolean;
      const Shape& shape = args.in[rest].type.shape;
      const Shape strides = row_major_strides(shape);
      for (size_t d = 0; d < 4; ++d) mask_stride[d] = shape[d] == 1 ? 0 : strides[d];
    }
    if (attrs.dropout > 0)
      stream = {attrs.seed, attrs.key, static_cast<uint64_t>(*args.in.back().as<int64_t>())};
  }

  // scale * q k^T, activated, + mask of one query; -inf where it must not look.
  struct Scores {
    Doubles of;     // [S]
    Doubles slope;  // [S], of the activation there
  };
  Scores scores(int64_t b, int64_t h, int64_t t) const {
    Scores out{Doubles(static_cast<size_t>(S), kNever), Doubles(static_cast<size_t>(S), 1)};
    const double* query = q.data() + ((b * H + h) * T + t) * D;
    for (int64_t s = 0; s < S; ++s) {
      if (attrs.causal && s > t + attrs.q_offset) break;
      const double* key = k.data() + ((b * H + h) * S + s) * D;
      double dot = 0;
      for (int64_t d = 0; d < D; ++d) dot += query[d] * key[d];
      dot *= attrs.scale;
      if (!(dot > 0)) out.slope[static_cast<size_t>(s)] = attrs.slope;
      dot *= out.slope[static_cast<size_t>(s)];
      if (attrs.has_mask) {
        const double m = mask[static_cast<size_t>(b * mask_stride[0] + h * mask_stride[1] +
                                                  t * mask_stride[2] + s * mask_stride[3])];
        dot = boolean_mask ? (m != 0 ? dot : kNever) : dot + m;
      }
      out.of[static_cast<size_t>(s)] = dot;
    }
    return out;
  }

  // 0 where dropped, 1 / (1 - p) where kept.
  double keep(int64_t b, int64_t h, int64_t t, int64_t s) const {
    if (attrs.dropout <= 0) return 1;
    const float u = stream.uniform(attrs.dropout_row(b, h, t) + static_cast<uint64_t>(s));
    return static_cast<double>(u) >= attrs.dropout ? 1 / (1 - attrs.dropout) : 0;
  }

  AttentionAttrs attrs;
  Doubles q, k, v, mask;
  int64_t B = 0, H = 0, T = 0, D = 0, S = 0, Dv = 0;
  bool boolean_mask = false;
  int64_t mask_stride[4] = {0, 0, 0, 0};
  RandomStream stream;
};

double highest_score(const Doubles& scores) {
  double top = kNever;
  for (double s : scores) top = std::max(top, s);
  return top;
}

void attention(const Node& node, const KernelArgs& args) {
  const AttentionOperands p(node, args, 0, 3);
  Doubles y(static_cast<size_t>(args.out[0].count())),
      lse(static_cast<size_t>(args.out[1].count()));
  for (int64_t b = 0, row = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t t = 0; t < p.T; ++t, ++row) {
        const Doubles scores = p.scores(b, h, t).of;
        const double top = highest_score(scores);
        double sum = 0;
        if (top == kNever) {
          lse[static_cast<size_t>(row)] = kNever;
          continue;
        }
        for (double s : scores) sum += std::exp(s - top);
        lse[static_cast<size_t>(row)] = top + std::log(sum);
        for (int64_t s = 0; s < p.S; ++s) {
          const double weight =
              std::exp(scores[static_cast<size_t>(s)] - top) / sum * p.keep(b, h, t, s);
          for (int64_t d = 0; d < p.Dv; ++d) {
            y[static_cast<size_t>(row * p.Dv + d)] +=
                weight * p.v[static_cast<size_t>(((b * p.H + h) * p.S + s) * p.Dv + d)];
          }
        }
      }
    }
  }
  store(y, args.out[0]);
  store(lse, args.out[1]);
}

void attention_top(const Node& node, const KernelArgs& args) {
  const AttentionOperands p(node, args, 0, 2);
  Doubles tops;
  for (int64_t b = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t t = 0; t < p.T; ++t) tops.push_back(highest_score(p.scores(b, h, t).of));
    }
  }
  store(tops, args.out[0]);
}

void attention_sums(const Node& node, const KernelArgs& args) {
  const AttentionOperands p(node, args, 0, 4);
  const Doubles tops = load(args.in[3]);
  Doubles o(static_cast<size_t>(args.out[0].count())), totals(tops.size());
  for (int64_t b = 0, row = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t t = 0; t < p.T; ++t, ++row) {
        const auto r = static_cast<size_t>(row);
        const Doubles scores = p.scores(b, h, t).of;
        for (int64_t s = 0; s < p.S; ++s) {
          if (scores[static_cast<size_t>(s)] == kNever) continue;
          const double weight = std::exp(scores[static_cast<size_t>(s)] - tops[r]);
          totals[r] += weight;
          for (int64_t d = 0; d < p.Dv; ++d) {
            o[static_cast<size_t>(row * p.Dv + d)] +=
                weight * p.keep(b, h, t, s) *
                p.v[static_cast<size_t>(((b * p.H + h) * p.S + s) * p.Dv + d)];
          }
        }
      }
    }
  }
  store(o, args.out[0]);
  store(totals, args.out[1]);
}

void attention_join(const Node&, const KernelArgs& args) {
  const Doubles tops = load(args.in[0]), totals = load(args.in[2]);
  Doubles y = load(args.in[1]), lse(tops.size());
  const size_t width = tops.empty() ? 0 : y.size() / tops.size();
  for (size_t t = 0; t < tops.size(); ++t) {
    const bool none = tops[t] == kNever;
    lse[t] = none ? kNever : tops[t] + std::log(totals[t]);
    for (size_t d = 0; d < width; ++d) y[t * width + d] = none ? 0 : y[t * width + d] / totals[t];
  }
  store(y, args.out[0]);
  store(lse, args.out[1]);
}

// With p the probabilities, r = keep * (dy v^T) and delta = sum(dy y) of the row:
//   ds = slope p (r - delta), dq = scale ds k, dk = scale ds^T q, dv = (keep p)^T dy.
void attention_grad(const Node& node, const KernelArgs& args) {
  const AttentionOperands p(node, args, 1, 6);
  const Doubles dy = load(args.in[0]), y = load(args.in[4]), lse = load(args.in[5]);
  Doubles dq(p.q.size()), dk(p.k.size()), dv(p.v.size());
  for (int64_t b = 0, row = 0; b < p.B; ++b) {
    for (int64_t h = 0; h < p.H; ++h) {
      for (int64_t t = 0; t < p.T; ++t, ++row) {
        const auto [scores, slope] = p.scores(b, h, t);
        const double* dy_row = dy.data() + row * p.Dv;
        double delta = 0;
        for (int64_t d = 0; d < p.Dv; ++d)
          delta += dy_row[d] * y[static_cast<size_t>(row * p.Dv + d)];
        for (int64_t s = 0; s < p.S; ++s) {
          if (scores[static_cast<size_t>(s)] == kNever) continue;
          const int64_t key = (b * p.H + h) * p.S + s;
          const double prob =
              std::exp(scores[static_cast<size_t>(s)] - lse[static_cast<size_t>(row)]);
          const double keep = p.keep(b, h, t, s);
          double r = 0;
          for (int64_t d = 0; d < p.Dv; ++d) {
            r += dy_row[d] * p.v[static_cast<size_t>(key * p.Dv + d)];
            dv[static_cast<size_t>(key * p.Dv + d)] += keep * prob * dy_row[d];
          }
          const double ds =
              p.attrs.scale * slope[static_cast<size_t>(s)] * prob * (keep * r - delta);
          for (int64_t d = 0; d < p.D; ++d) {
            dq[static_cast<size_t>(row * p.D + d)] += ds * p.k[static_cast<size_t>(key * p.D + d)];
            dk[static_cast<size_t>(key * p.D + d)] += ds * p.q[static_cast<size_t>(row * p.D + d)];
          }
        }
      }
    }
  }
  store(dq, args.out[0]);
  store(dk, args.out[1]);
  store(dv, args.out[2]);
}

}  // namespace

KernelList attention_kernels() {
  return {plain("attention", attention), plain("attention_grad", attention_grad),
          plain("attention_top", attention_top), plain("attention_sums", attention_sums),
          plain("attention_join", attention_join)};
}

}  // namespace shardrun::reference
