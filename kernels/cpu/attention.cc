// Attention in tiles of queries: each thread holds the scores of one tile of one head, never more.
// The products are oneDNN matmuls of fixed shape, one set for each tile position, since with a
// causal mask a tile needs only the keys up to its last query.
#include "graph/ops/attention.h"

#include <map>

#include "kernels/cpu/attention_pairs.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/random.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kTile = 64;  // queries

int64_t round64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

using GemmPtr = std::shared_ptr<const Gemm>;

// Tile i covers queries [begin, begin + rows) and keys [0, keys).
struct Tile {
  int64_t begin = 0, rows = 0, keys = 0;
  GemmPtr scores, values;  // q k^T; p v (forward only)
  GemmPtr dp, dv, dk, dq;  // backward only
};

struct Setup {
  AttentionAttrs attrs;
  int64_t B = 0, H = 0, T = 0, D = 0, S = 0, Dv = 0;
  DType dtype = DType::f32;
  bool boolean_mask = false;
  int64_t mask_stride[4] = {0, 0, 0, 0};
  std::vector<Tile> tiles;
  int threads = 1;
  int64_t scratch = 0;  // the largest of all gemms

  int64_t tile_rows() const { return std::min(kTile, T); }
};

// Row-major [rows, cols] with cols contiguous, or its transpose.
GemmPtr product(std::map<std::vector<int64_t>, GemmPtr>& made, int64_t m, int64_t k, int64_t n,
                Shape a_strides, Shape b_strides, int64_t c_stride, DType in, DType out,
                bool accumulate, std::string* why) {
  const std::vector<int64_t> id = {
      m, k, n, a_strides[0], b_strides[0], c_stride, static_cast<int64_t>(out), accumulate};
  auto [it, fresh] = made.try_emplace(id);
  if (fresh) {
    it->second = Gemm::make({{m, k},
                             std::move(a_strides),
                             {k, n},
                             std::move(b_strides),
                             {m, n},
                             {c_stride, 1},
                             in,
                             out,
                             accumulate,
                             /*one_thread=*/true},
                            why);
  }
  return it->second;
}

std::optional<Setup> set_up(const KernelCall& call, bool grad, std::string* why) {
  Setup s;
  s.attrs = AttentionAttrs::of(call.node);
  const size_t first = grad ? 1 : 0, rest = grad ? 6 : 3;
  const Shape &q = call.in[first].shape, &v = call.in[first + 2].shape;
  s.B = q[0], s.H = q[1], s.T = q[2], s.D = q[3], s.S = v[2], s.Dv = v[3];
  s.dtype = call.in[first].dtype;
  if (s.D == 0 || s.Dv == 0) {
    *why = "wants heads of at least one dim";
    return std::nullopt;
  }
  if (s.attrs.has_mask) {
    const TensorType& mask = call.in[rest];
    s.boolean_mask = mask.dtype == DType::boolean;
    const Shape strides = row_major_strides(mask.shape);
    for (size_t d = 0; d < 4; ++d) s.mask_stride[d] = mask.shape[d] == 1 ? 0 : strides[d];
  }
  s.threads =
      static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(omp_get_max_threads(), s.B * s.H)));
  const DType d = s.dtype, f32 = DType::f32;
  std::map<std::vector<int64_t>, GemmPtr> made;
  for (int64_t begin = 0; begin < s.T; begin += kTile) {
    Tile t;
    t.begin = begin, t.rows = std::min(kTile, s.T - begin), t.keys = s.S;
    if (s.attrs.causal) t.keys = std::clamp<int64_t>(begin + t.rows + s.attrs.q_offset, 0, s.S);
    if (t.keys > 0) {
      const int64_t R = t.rows, K = t.keys, S = s.S;
      t.scores = product(made, R, s.D, K, {s.D, 1}, {1, s.D}, S, d, f32, false, why);
      if (!t.scores) return std::nullopt;
      std::vector<GemmPtr> all = {t.scores};
      if (!grad) {
        t.values = product(made, R, K, s.Dv, {S, 1}, {s.Dv, 1}, s.Dv, d, d, false, why);
        all.push_back(t.values);
      } else {
        t.dp = product(made, R, s.Dv, K, {s.Dv, 1}, {1, s.Dv}, S, d, f32, false, why);
        t.dv = product(made, K, R, s.Dv, {1, S}, {s.Dv, 1}, s.Dv, d, f32, true, why);
        t.dk = product(made, K, R, s.D, {1, S}, {s.D, 1}, s.D, d, f32, true, why);
        t.dq = product(made, R, K, s.D, {S, 1}, {s.D, 1}, s.D, d, d, false, why);
        all.insert(all.end(), {t.dp, t.dv, t.dk, t.dq});
      }
      for (const GemmPtr& gemm : all) {
        if (!gemm) return std::nullopt;
        s.scratch = std::max(s.scratch, round64(gemm->scratch_bytes()));
      }
    }
    s.tiles.push_back(t);
  }
  return s;
}

// Turns raw scores of one query into scale * score, activated, + mask over [0, keys), and returns
// how many leading keys it sees; those behind are not touched. Where scores are activated, `slopes`
// receives the slopes, unless it is null.
int64_t finish_scores(const Setup& s, const TensorView* mask, int64_t b, int64_t h, int64_t t,
                      int64_t keys, float* row, float* slopes) {
  const int64_t seen =
      s.attrs.causal ? std::clamp<int64_t>(t + s.attrs.q_offset + 1, 0, keys) : keys;
  const auto scale = static_cast<float>(s.attrs.scale);
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) row[i] *= scale;
  if (s.attrs.slope != 1) {
    const auto slope = static_cast<float>(s.attrs.slope);
    if (slopes != nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < seen; ++i) slopes[i] = row[i] > 0 ? 1.0f : slope;
    }
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) row[i] = row[i] > 0 ? row[i] : slope * row[i];
  }
  if (mask != nullptr) {
    const int64_t at = b * s.mask_stride[0] + h * s.mask_stride[1] + t * s.mask_stride[2],
                  step = s.mask_stride[3];
    if (s.boolean_mask) {
      const bool* m = mask->as<bool>() + at;
      for (int64_t i = 0; i < seen; ++i) row[i] = m[i * step] ? row[i] : kNever;
    } else if (step == 0) {
      const float m = get(*mask, at);
      for (int64_t i = 0; i < seen; ++i) row[i] += m;
    } else {
      alignas(64) float buffer[kBlock];
      for (int64_t i = 0; i < seen; i += kBlock) {
        const int64_t n = std::min(kBlock, seen - i);
        const float* m = floats(*mask, at + i, n, buffer);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) row[i + j] += m[j];
      }
    }
  }
  return seen;
}

// Multiplies row[0, n) by the dropout's keep factors of query (b, h, t).
void apply_dropout(const Setup& s, const RandomStream& stream, int64_t b, int64_t h, int64_t t,
                   int64_t n, float* row) {
  alignas(64) float keep[kBlock];
  const auto factor = static_cast<float>(1 / (1 - s.attrs.dropout));
  const uint64_t position = s.attrs.dropout_row(b, h, t);
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    draw_keep(stream, position + static_cast<uint64_t>(i), count, s.attrs.dropout, factor, keep);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) row[i + j] *= keep[j];
  }
}

// row as the operand type of the next product: in place for f32, else rounded into `narrow`.
void narrow_row(const float* row, int64_t n, uint16_t* narrow) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) narrow[i] = round_to_bf16(row[i]);
}

RandomStream stream_of(const Setup& s, const KernelArgs& args) {
  if (s.attrs.dropout <= 0) return {};
  return {s.attrs.seed, s.attrs.key, static_cast<uint64_t>(*args.in.back().as<int64_t>())};
}

template <class F>
void for_each_head(const Setup& s, F&& f) {
  const int64_t heads = s.B * s.H;
#pragma omp parallel for num_threads(s.threads) schedule(static) if (s.threads > 1)
  for (int64_t head = 0; head < heads; ++head) f(head, omp_get_thread_num());
}

// Per thread: scores f32 [tile, S]; for bf16 the probabilities again, rounded; oneDNN's scratch.
struct ForwardSpace {
  int64_t scores, narrow, total;
  explicit ForwardSpace(const Setup& s)
      : scores(round64(s.tile_rows() * s.S * 4)),
        narrow(s.dtype == DType::bf16 ? round64(s.tile_rows() * s.S * 2) : 0),
        total(scores + narrow + s.scratch) {}
};

void forward(const Setup& s, const KernelArgs& args) {
  const ForwardSpace space(s);
  const int64_t bytes = size_of(s.dtype);
  const TensorView* mask = s.attrs.has_mask ? &args.in[3] : nullptr;
  const RandomStream stream = stream_of(s, args);
  for_each_head(s, [&](int64_t head, int thread) {
    char* work = static_cast<char*>(args.workspace) + thread * space.total;
    auto* scores = reinterpret_cast<float*>(work);
    auto* narrow = reinterpret_cast<uint16_t*>(work + space.scores);
    char* scratch = work + space.scores + space.narrow;
    const char* q = args.in[0].as<char>() + head * s.T * s.D * bytes;
    const char* k = args.in[1].as<char>() + head * s.S * s.D * bytes;
    const char* v = args.in[2].as<char>() + head * s.S * s.Dv * bytes;
    for (const Tile& tile : s.tiles) {
      char* y = args.out[0].as<char>() + (head * s.T + tile.begin) * s.Dv * bytes;
      float* lse = args.out[1].as<float>() + head * s.T + tile.begin;
      if (!tile.scores) {
        std::memset(y, 0, static_cast<size_t>(tile.rows * s.Dv * bytes));
        std::fill_n(lse, tile.rows, kNever);
        continue;
      }
      tile.scores->run(q + tile.begin * s.D * bytes, k, scores, scratch);
      for (int64_t r = 0; r < tile.rows; ++r) {
        const int64_t b = head / s.H, h = head % s.H, t = tile.begin + r;
        float* row = scores + r * s.S;
        const int64_t seen = finish_scores(s, mask, b, h, t, tile.keys, row, nullptr);
        float top = kNever;
#pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < seen; ++i) top = row[i] > top ? row[i] : top;
        const ExpRow sums = exp_row(row, seen, top);
        lse[r] = sums.lse;
#pragma omp simd
        for (int64_t i = 0; i < seen; ++i) row[i] *= sums.inverse;
        std::fill(row + seen, row + tile.keys, 0.0f);
        if (s.attrs.dropout > 0) apply_dropout(s, stream, b, h, t, seen, row);
        if (s.dtype == DType::bf16) narrow_row(row, tile.keys, narrow + r * s.S);
      }
      const void* p = s.dtype == DType::bf16 ? static_cast<const void*>(narrow) : scores;
      tile.values->run(p, v, y, scratch);
    }
  });
}

// Per thread: p and dp f32 [tile, S]; for bf16 both again, rounded, and f32 sums of dk and dv; the
// slopes of one query's scores.
struct BackwardSpace {
  int64_t scores, narrow, dk, dv, slopes, total;
  explicit BackwardSpace(const Setup& s) : scores(round64(s.tile_rows() * s.S * 4)) {
    const bool bf16 = s.dtype == DType::bf16;
    narrow = bf16 ? round64(s.tile_rows() * s.S * 2) : 0;
    dk = bf16 ? round64(s.S * s.D * 4) : 0;
    dv = bf16 ? round64(s.S * s.Dv * 4) : 0;
    slopes = s.attrs.slope != 1 ? round64(s.S * 4) : 0;
    total = 2 * scores + 2 * narrow + dk + dv + slopes + s.scratch;
  }
};

void backward(const Setup& s, const KernelArgs& args) {
  const BackwardSpace space(s);
  const int64_t bytes = size_of(s.dtype);
  const bool bf16 = s.dtype == DType::bf16;
  const TensorView* mask = s.attrs.has_mask ? &args.in[6] : nullptr;
  const RandomStream stream = stream_of(s, args);
  const auto scale = static_cast<float>(s.attrs.scale);
  for_each_head(s, [&](int64_t head, int thread) {
    char* work = static_cast<char*>(args.workspace) + thread * space.total;
    auto* p = reinterpret_cast<float*>(work);
    auto* dp = reinterpret_cast<float*>(work + space.scores);
    auto* p_narrow = reinterpret_cast<uint16_t*>(work + 2 * space.scores);
    auto* ds_narrow = reinterpret_cast<uint16_t*>(work + 2 * space.scores + space.narrow);
    char* sums = work + 2 * space.scores + 2 * space.narrow;
    auto* slopes = reinterpret_cast<float*>(sums + space.dk + space.dv);
    char* scratch = sums + space.dk + space.dv + space.slopes;
    const char* q = args.in[1].as<char>() + head * s.T * s.D * bytes;
    const char* k = args.in[2].as<char>() + head * s.S * s.D * bytes;
    const char* v = args.in[3].as<char>() + head * s.S * s.Dv * bytes;
    float* dk = bf16 ? reinterpret_cast<float*>(sums) : args.out[1].as<float>() + head * s.S * s.D;
    float* dv = bf16 ? reinterpret_cast<float*>(sums + space.dk)
                     : args.out[2].as<float>() + head * s.S * s.Dv;
    std::fill_n(dk, s.S * s.D, 0.0f);
    std::fill_n(dv, s.S * s.Dv, 0.0f);
    for (const Tile& tile : s.tiles) {
      const int64_t at = head * s.T + tile.begin;
      char* dq = args.out[0].as<char>() + at * s.D * bytes;
      if (!tile.scores) {
        std::memset(dq, 0, static_cast<size_t>(tile.rows * s.D * bytes));
        continue;
      }
      const char* q_tile = q + tile.begin * s.D * bytes;
      const char* dy = args.in[0].as<char>() + at * s.Dv * bytes;
      tile.scores->run(q_tile, k, p, scratch);
      tile.dp->run(dy, v, dp, scratch);
      for (int64_t r = 0; r < tile.rows; ++r) {
        const int64_t b = head / s.H, h = head % s.H, t = tile.begin + r;
        float *p_row = p + r * s.S, *dp_row = dp + r * s.S;
        const int64_t seen = finish_scores(s, mask, b, h, t, tile.keys, p_row, slopes);
        const float lse = args.in[5].as<float>()[at + r];
        float delta = 0;
        alignas(64) float dy_buffer[kBlock], y_buffer[kBlock];
        for (int64_t d = 0; d < s.Dv; d += kBlock) {
          const int64_t n = std::min(kBlock, s.Dv - d);
          const float* a = floats(args.in[0], (at + r) * s.Dv + d, n, dy_buffer);
          const float* c = floats(args.in[4], (at + r) * s.Dv + d, n, y_buffer);
#pragma omp simd reduction(+ : delta)
          for (int64_t i = 0; i < n; ++i) delta += a[i] * c[i];
        }
        // A query that sees nothing has lse = -inf; its probabilities are 0.
        const float shift = lse == kNever ? std::numeric_limits<float>::infinity() : lse;
#pragma omp simd
        for (int64_t i = 0; i < seen; ++i)
          p_row[i] = p_row[i] == kNever ? 0.0f : exp(p_row[i] - shift);
        if (s.attrs.dropout > 0) {
          apply_dropout(s, stream, b, h, t, seen, dp_row);
        }
#pragma omp simd
        for (int64_t i = 0; i < seen; ++i) dp_row[i] = p_row[i] * (dp_row[i] - delta) * scale;
        if (s.attrs.slope != 1) {
#pragma omp simd
          for (int64_t i = 0; i < seen; ++i) dp_row[i] *= slopes[i];
        }
        if (s.attrs.dropout > 0) apply_dropout(s, stream, b, h, t, seen, p_row);
        std::fill(p_row + seen, p_row + tile.keys, 0.0f);
        std::fill(dp_row + seen, dp_row + tile.keys, 0.0f);
        if (bf16) {
          narrow_row(p_row, tile.keys, p_narrow + r * s.S);
          narrow_row(dp_row, tile.keys, ds_narrow + r * s.S);
        }
      }
      const void* probs = bf16 ? static_cast<const void*>(p_narrow) : p;
      const void* ds = bf16 ? static_cast<const void*>(ds_narrow) : dp;
      tile.dv->run(probs, dy, dv, scratch);
      tile.dk->run(ds, q_tile, dk, scratch);
      tile.dq->run(ds, k, dq, scratch);
    }
    if (bf16) {
      put(args.out[1], head * s.S * s.D, s.S * s.D, dk);
      put(args.out[2], head * s.S * s.Dv, s.S * s.Dv, dv);
    }
  });
}

template <bool kGrad>
std::optional<std::string> refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  std::string why;
  if (!set_up(call, kGrad, &why)) return why;
  return std::nullopt;
}

template <bool kGrad>
PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  auto s = set_up(call, kGrad, &why);
  SR_REQUIRE(s.has_value(), internal, call.node.op, " '", call.node.name, "' was refused: ", why);
  const int64_t per_thread = kGrad ? BackwardSpace(*s).total : ForwardSpace(*s).total;
  return {[s = *s](const KernelArgs& args) { kGrad ? backward(s, args) : forward(s, args); },
          s->threads * per_thread, "cpu:tiled"};
}

}  // namespace

KernelList attention_kernels() {
  const KernelImpl forward{"attention", "cpu:tiled", refuses<false>, prepare<false>};
  const KernelImpl backward{"attention_grad", "cpu:tiled", refuses<true>, prepare<true>};
  return {by_pairs(forward), by_pairs(backward), forward, backward};
}

}  // namespace shardrun::cpu
