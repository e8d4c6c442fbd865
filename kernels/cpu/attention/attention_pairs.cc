// Finding the pairs in the mask, once for all heads; their softmax and its gradient row by row.
#include "kernels/cpu/attention/attention_pairs.h"

#include <atomic>
#include <cstring>

#include "base/round_up.h"
#include "graph/ops/attention.h"
#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/random.h"

namespace shardrun::cpu {
namespace {

/// One in eight.
int64_t most_pairs(int64_t queries, int64_t keys) { return queries * keys / 8; }

struct Setup {
  AttentionAttrs attrs;
  int64_t B = 0, H = 0, T = 0, D = 0, S = 0, Dv = 0;
  int64_t query_stride = 0;  // of the mask
  int threads = 1;

  Setup(const KernelCall& call, size_t first, size_t rest) : attrs(AttentionAttrs::of(call.node)) {
    const Shape &q = call.in[first].shape, &v = call.in[first + 2].shape;
    B = q[0], H = q[1], T = q[2], D = q[3], S = v[2], Dv = v[3];
    query_stride = call.in[rest].shape[2] == 1 ? 0 : S;
    threads = static_cast<int>(std::clamp<int64_t>(B * H, 1, omp_get_max_threads()));
  }
  // Where the pairs of each query begin, the keys of all pairs, and for each thread the scores and
  // keep factors of at most S pairs at a time.
  int64_t begin_bytes() const { return round_up_64((T + 1) * 8); }
  int64_t key_bytes() const { return round_up_64(most_pairs(T, S) * 4); }
  int64_t row_bytes() const { return round_up_64(S * 4); }
  int64_t workspace_bytes() const {
    return begin_bytes() + key_bytes() + threads * 2 * row_bytes();
  }
};

/// The keys that query t sees are keys[begin[t]] to keys[begin[t + 1] - 1], ascending.
struct Pairs {
  int64_t* begin;
  int32_t* keys;
};

/// Calls f(s) for each of the n bytes that is not 0 until it returns false; returns whether it did
/// not. Eight words are looked at together, since most are 0.
template <class F>
bool for_each_seen(const uint8_t* mask, int64_t n, F&& f) {
  constexpr int64_t kWord = 8, kWords = 8;
  for (int64_t s = 0; s < n; s += kWord * kWords) {
    uint64_t words[kWords] = {}, any = 0;
    const bool whole = s + kWord * kWords <= n;
    std::memcpy(words, mask + s, whole ? sizeof words : static_cast<size_t>(n - s));
    for (const uint64_t word : words) any |= word;
    if (any == 0) continue;
    for (int64_t w = 0; w < kWords; ++w) {
      if (words[w] == 0) continue;
      const int64_t begin = s + w * kWord, end = std::min(begin + kWord, n);
      for (int64_t i = begin; i < end; ++i) {
        if (mask[i] != 0 && !f(i)) return false;
      }
    }
  }
  return true;
}

/// False where a block of queries sees more than most_pairs of it.
bool find_pairs(const Setup& s, const uint8_t* mask, const Pairs& pairs) {
  constexpr int64_t kBlock = 64;  // queries; each block has memory of its own for its keys
  const auto keys_of = [&](int64_t block) {
    return pairs.keys + most_pairs(std::min(block * kBlock, s.T), s.S);
  };
  const int64_t blocks = (s.T + kBlock - 1) / kBlock;
  std::atomic<bool> few{true};
  parallel_ranges(blocks, row_grain(s.S * kBlock), [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end && few; ++block) {
      int32_t *key = keys_of(block), *const limit = keys_of(block + 1);
      for (int64_t t = block * kBlock; t < std::min((block + 1) * kBlock, s.T); ++t) {
        const int32_t* const before = key;
        const bool fit = for_each_seen(mask + t * s.query_stride, s.S, [&](int64_t i) {
          if (key == limit) return false;
          *key++ = static_cast<int32_t>(i);
          return true;
        });
        if (!fit) few = false;
        pairs.begin[t + 1] = key - before;
      }
    }
  });
  if (!few) return false;
  pairs.begin[0] = 0;
  for (int64_t block = 0; block < blocks; ++block) {  // move them together
    const int64_t first = block * kBlock, end = std::min(first + kBlock, s.T);
    for (int64_t t = first; t < end; ++t) pairs.begin[t + 1] += pairs.begin[t];
    const int64_t count = pairs.begin[end] - pairs.begin[first];
    std::memmove(pairs.keys + pairs.begin[first], keys_of(block),
                 static_cast<size_t>(count) * sizeof(int32_t));
  }
  return true;
}

/// A head's width, known to the compiler where it is small and common; 0: only when it runs. Loops
/// over a few numbers cost more around them than in them.
template <int64_t kWidth>
struct Width {
  int64_t given;
  int64_t get() const { return kWidth > 0 ? kWidth : given; }

  float dot(const float* a, const float* b) const {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < get(); ++i) sum += a[i] * b[i];
    return sum;
  }
  void add_scaled(float by, const float* x, float* y) const {
#pragma omp simd
    for (int64_t i = 0; i < get(); ++i) y[i] += by * x[i];
  }
};

/// Calls f(D, Dv) with the Widths of q and k and of v.
template <class F>
void with_widths(int64_t D, int64_t Dv, F&& f) {
  if (D == 2 && Dv == 8) return f(Width<2>{D}, Width<8>{Dv});
  if (D == 2) return f(Width<2>{D}, Width<0>{Dv});
  f(Width<0>{D}, Width<0>{Dv});
}

/// What one thread needs for the pairs of one head.
struct Head {
  const Setup& s;
  const Pairs& pairs;
  const float *q, *k, *v;
  RandomStream stream;
  int64_t b, h;
  float scale, slope;
  float *p, *keep;  // for the pairs of the queries in hand

  Head(const Setup& s, const Pairs& pairs, const KernelArgs& args, size_t first, int64_t head,
       char* scratch)
      : s(s),
        pairs(pairs),
        q(args.in[first].as<float>() + head * s.T * s.D),
        k(args.in[first + 1].as<float>() + head * s.S * s.D),
        v(args.in[first + 2].as<float>() + head * s.S * s.Dv),
        b(head / s.H),
        h(head % s.H),
        scale(static_cast<float>(s.attrs.scale)),
        slope(static_cast<float>(s.attrs.slope)),
        p(reinterpret_cast<float*>(scratch)),
        keep(reinterpret_cast<float*>(scratch + s.row_bytes())) {
    if (s.attrs.dropout > 0)
      stream = {s.attrs.seed, s.attrs.key, static_cast<uint64_t>(*args.in.back().as<int64_t>())};
  }

  /// Calls f(t, keys, count, p, keep) for each query: `count` keys, their keep factors, and memory
  /// for as many numbers. Factors are drawn for many queries at a time.
  template <class F>
  void for_each_query(F&& f) const {
    for (int64_t t = 0, end = 0; t < s.T; t = end) {
      const int64_t first = pairs.begin[t];
      for (end = t + 1; end < s.T && pairs.begin[end + 1] - first <= s.S;) ++end;
      draw(t, end);
      for (int64_t i = t; i < end; ++i) {
        const int64_t at = pairs.begin[i];
        f(i, pairs.keys + at, pairs.begin[i + 1] - at, p + (at - first), keep + (at - first));
      }
    }
  }

  template <class WidthD>
  float raw_score(WidthD D, int64_t t, int64_t key) const {
    return scale * D.dot(q + t * D.get(), k + key * D.get());
  }

 private:
  void draw(int64_t t, int64_t end) const {
    const int64_t first = pairs.begin[t], count = pairs.begin[end] - first;
    if (s.attrs.dropout <= 0) {
      std::fill_n(keep, count, 1.0f);
      return;
    }
    constexpr int64_t kDrawn = 64;
    uint64_t positions[kDrawn];
    const auto factor = static_cast<float>(1 / (1 - s.attrs.dropout));
    for (int64_t i = 0; i < count; i += kDrawn) {
      const int64_t n = std::min(kDrawn, count - i);
      for (int64_t j = 0; j < n; ++j) {
        while (first + i + j >= pairs.begin[t + 1]) ++t;
        positions[j] =
            s.attrs.dropout_row(b, h, t) + static_cast<uint64_t>(pairs.keys[first + i + j]);
      }
      draw_keep_at(stream, positions, n, s.attrs.dropout, factor, keep + i);
    }
  }
};

template <class WidthD, class WidthDv>
void attend(const Head& head, WidthD D, WidthDv width, float* y, float* lse) {
  const int64_t Dv = width.get();
  head.for_each_query([&](int64_t t, const int32_t* keys, int64_t n, float* p, const float* keep) {
    float top = kNever;
    for (int64_t i = 0; i < n; ++i) {
      const float raw = head.raw_score(D, t, keys[i]);
      p[i] = raw > 0 ? raw : head.slope * raw;
      top = p[i] > top ? p[i] : top;
    }
    const ExpRow row = exp_row(p, n, top);
    lse[t] = row.lse;
    std::fill_n(y + t * Dv, Dv, 0.0f);
    for (int64_t i = 0; i < n; ++i)
      width.add_scaled(p[i] * row.inverse * keep[i], head.v + keys[i] * Dv, y + t * Dv);
  });
}

// The formulas of the reference kernel.
template <class WidthD, class WidthDv>
void attend_grad(const Head& head, WidthD narrow, WidthDv width, const float* dy, const float* y,
                 const float* lse, float* dq, float* dk, float* dv) {
  const int64_t D = narrow.get(), Dv = width.get();
  std::fill_n(dq, head.s.T * D, 0.0f);
  std::fill_n(dk, head.s.S * D, 0.0f);
  std::fill_n(dv, head.s.S * Dv, 0.0f);
  head.for_each_query([&](int64_t t, const int32_t* keys, int64_t n, float*, const float* keep) {
    const float* dy_row = dy + t * Dv;
    const float delta = width.dot(dy_row, y + t * Dv);
    // A query that sees nothing has lse = -inf; its probabilities are 0.
    const float shift = lse[t] == kNever ? std::numeric_limits<float>::infinity() : lse[t];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t key = keys[i];
      const float raw = head.raw_score(narrow, t, key), slope = raw > 0 ? 1.0f : head.slope;
      const float p = exp(raw * slope - shift);
      const float dp = keep[i] * width.dot(dy_row, head.v + key * Dv);
      const float ds = p * (dp - delta) * slope * head.scale;
      width.add_scaled(p * keep[i], dy_row, dv + key * Dv);
      narrow.add_scaled(ds, head.k + key * D, dq + t * D);
      narrow.add_scaled(ds, head.q + t * D, dk + key * D);
    }
  });
}

template <bool kGrad>
void run(const Setup& s, const PreparedKernel& otherwise, const KernelArgs& args) {
  constexpr size_t kFirst = kGrad ? 1 : 0, kRest = kGrad ? 6 : 3;
  char* work = static_cast<char*>(args.workspace);
  const Pairs pairs{reinterpret_cast<int64_t*>(work),
                    reinterpret_cast<int32_t*>(work + s.begin_bytes())};
  if (!find_pairs(s, args.in[kRest].as<uint8_t>(), pairs)) {
    otherwise.run(args);
    return;
  }
  work += s.begin_bytes() + s.key_bytes();
  const int64_t heads = s.B * s.H;
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
  for (int64_t i = 0; i < heads; ++i) {
    const Head head(s, pairs, args, kFirst, i, work + omp_get_thread_num() * 2 * s.row_bytes());
    const auto in = [&](size_t k, int64_t each) { return args.in[k].as<float>() + i * each; };
    const auto out = [&](size_t k, int64_t each) { return args.out[k].as<float>() + i * each; };
    with_widths(s.D, s.Dv, [&](auto D, auto Dv) {
      if constexpr (kGrad) {
        attend_grad(head, D, Dv, in(0, s.T * s.Dv), in(4, s.T * s.Dv), in(5, s.T),
                    out(0, s.T * s.D), out(1, s.S * s.D), out(2, s.S * s.Dv));
      } else {
        attend(head, D, Dv, out(0, s.T * s.Dv), out(1, s.T));
      }
    });
  }
}

std::optional<std::string> wants_one_mask(const KernelCall& call, size_t rest) {
  const AttentionAttrs attrs = AttentionAttrs::of(call.node);
  if (!attrs.has_mask || call.in[rest].dtype != DType::boolean) return "wants a boolean mask";
  const TensorType& v = call.in[rest == 3 ? 2 : 3];
  const Shape& mask = call.in[rest].shape;
  if (mask[0] != 1 || mask[1] != 1 || mask[3] != v.shape[2]) {
    return str("wants one mask for all heads over ", v.shape[2], " keys, got ", to_string(mask));
  }
  if (attrs.causal) return "wants no causal mask in addition to the other";
  if (v.dtype != DType::f32) return str("computes in f32, not ", v.dtype);
  return std::nullopt;
}

}  // namespace

KernelImpl by_pairs(const KernelImpl& otherwise) {
  const bool grad = otherwise.op == "attention_grad";
  const size_t first = grad ? 1 : 0, rest = grad ? 6 : 3;
  return {otherwise.op, "cpu:pairs",
          [=](const KernelCall& call) {
            const std::optional<std::string> reason = otherwise.refuses(call);
            return reason ? reason : wants_one_mask(call, rest);
          },
          [=](const KernelCall& call) {
            const Setup s(call, first, rest);
            const PreparedKernel tiled = otherwise.prepare(call);
            return PreparedKernel{[=](const KernelArgs& args) {
                                    grad ? run<true>(s, tiled, args) : run<false>(s, tiled, args);
                                  },
                                  std::max(s.workspace_bytes(), tiled.workspace_bytes),
                                  "cpu:pairs"};
          }};
}

}  // namespace shardrun::cpu
