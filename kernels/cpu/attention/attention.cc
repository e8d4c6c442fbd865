// Attention in tiles of queries: each thread holds the scores of one tile of one head, never more.
// The products are of fixed shapes (Gemm), one set for each tile position, since with a causal mask
// a tile needs only the keys up to its last query.
//
// Threads divide the tiles of all heads. In the backward pass, where tiles add to the same dk
// and dv, they divide the heads, and where these are few, blocks of a head's keys: given each
// query's log-sum-exp and delta, keys have nothing to do with one another but in dq, which is
// summed at the end. What is cut follows from the shapes, so results do not depend on the number of
// threads.
//
// A product lays out its second operand anew in each call. Where heads are few and keys
// seen by all queries, what many tiles read alike is laid out once, before them: v; going
// backward, v^T of a block and dy of a tile.
#include "graph/ops/attention.h"

#include <map>

#include "base/round_up.h"
#include "kernels/cpu/attention/attention_join.h"
#include "kernels/cpu/attention/attention_pairs.h"
#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/random.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kTile = 64;       // queries
constexpr int64_t kTallTile = 256;  // against packed keys: each tile's sums go through all of dv
constexpr int64_t kFewHeads = 8;    // below, blocks of keys make up for heads
constexpr int64_t kKeyBlock = 128;

using GemmPtr = std::shared_ptr<const Gemm>;

// What a call makes: y and lse; gradients; the highest scores; sums relative to given ones.
enum class Part { whole, grad, top, sums };

// Queries [begin, begin + rows) and the first `keys` of a block of keys.
struct Tile {
  int64_t begin = 0, rows = 0, keys = 0;
  GemmPtr scores, values;  // q k^T; p v (whole and sums)
  GemmPtr dp, dv, dk, dq;  // backward only
};

// Keys [begin, begin + keys) of a head. Forward: all of them, one block.
struct KeyBlock {
  int64_t begin = 0, keys = 0;
  std::vector<Tile> tiles;
};

struct Setup {
  AttentionAttrs attrs;
  Part part = Part::whole;
  int64_t B = 0, H = 0, T = 0, D = 0, S = 0, Dv = 0;
  DType dtype = DType::f32;
  bool boolean_mask = false;
  int64_t mask_stride[4] = {0, 0, 0, 0};
  std::vector<KeyBlock> blocks;
  bool packed = false;                  // second operands that many tiles read
  int64_t packed_v = 0, packed_dy = 0;  // bytes: of a head or block, of a tile
  int64_t tile_rows = 0;                // at most
  int threads = 1;
  int64_t scratch = 0;  // the largest of all gemms

  int64_t block_keys() const { return blocks.empty() ? 0 : blocks[0].keys; }  // at most
};

// Row-major [rows, cols] with cols contiguous, or its transpose; b may be packed instead.
GemmPtr product(std::map<std::vector<int64_t>, GemmPtr>& made, int64_t m, int64_t k, int64_t n,
                Shape a_strides, Shape b_strides, int64_t c_stride, DType in, DType out,
                bool accumulate, bool packed, std::string* why) {
  const std::vector<int64_t> id = {
      m, k, n, a_strides[0], b_strides[0], c_stride, static_cast<int64_t>(out), accumulate, packed};
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
                             /*one_thread=*/true,
                             packed},
                            why);
  }
  return it->second;
}

bool same(const BlockLayout& a, const BlockLayout& b) {
  return a.width == b.width && a.depth == b.depth;
}

// Notes what the packed operands of t take. False: a tile before it wants v in another layout.
bool add_packed(Setup& s, const KeyBlock& block, const Tile& t) {
  const Gemm& of_v = t.values ? *t.values : *t.dp;
  const BlockLayout v = of_v.blocks();
  if (!block.tiles.empty()) {
    const Tile& first = block.tiles[0];
    if (!same(v, (first.values ? *first.values : *first.dp).blocks())) return false;
  }
  const int64_t k = t.values ? t.keys : s.Dv, n = t.values ? s.Dv : t.keys;
  s.packed_v = std::max(s.packed_v, round_up_64(v.bytes(k, n, s.dtype)));
  if (t.dv)
    s.packed_dy = std::max(s.packed_dy, round_up_64(t.dv->blocks().bytes(t.rows, s.Dv, s.dtype)));
  return true;
}

// The operand behind q, k, v and the like: the mask, if there is one.
size_t rest_of(Part part) {
  return part == Part::grad ? 6 : part == Part::top ? 2 : part == Part::sums ? 4 : 3;
}

std::optional<Setup> cut(const KernelCall& call, Part part, bool packed, std::string* why) {
  Setup s;
  s.packed = packed, s.part = part;
  s.attrs = AttentionAttrs::of(call.node);
  const bool grad = part == Part::grad;
  const size_t first = grad ? 1 : 0, rest = rest_of(part);
  const Shape &q = call.in[first].shape, &k = call.in[first + 1].shape,
              &v = part == Part::top ? k : call.in[first + 2].shape;
  s.B = q[0], s.H = q[1], s.T = q[2], s.D = q[3], s.S = k[2], s.Dv = v[3];
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
  const bool few = s.B * s.H < kFewHeads;
  const int64_t width = grad && few ? kKeyBlock : std::max<int64_t>(s.S, 1);
  const int64_t height = grad && packed ? kTallTile : kTile;
  if (packed && (!few || s.attrs.causal || s.T <= height || s.S == 0 || part == Part::top))
    return std::nullopt;
  s.tile_rows = std::min(height, s.T);
  const DType d = s.dtype, f32 = DType::f32;
  std::map<std::vector<int64_t>, GemmPtr> made;
  for (int64_t first_key = 0; first_key == 0 || first_key < s.S; first_key += width) {
    KeyBlock block;
    block.begin = first_key, block.keys = std::min(width, s.S - first_key);
    for (int64_t begin = 0; begin < s.T; begin += height) {
      Tile t;
      t.begin = begin, t.rows = std::min(height, s.T - begin), t.keys = block.keys;
      if (s.attrs.causal) {
        const int64_t seen = begin + t.rows + s.attrs.q_offset - first_key;
        t.keys = std::clamp<int64_t>(seen, 0, block.keys);
      }
      if (t.keys > 0) {
        const int64_t R = t.rows, K = t.keys, W = std::min(width, s.S);
        t.scores = product(made, R, s.D, K, {s.D, 1}, {1, s.D}, W, d, f32, false, false, why);
        if (!t.scores) return std::nullopt;
        std::vector<GemmPtr> all = {t.scores};
        if (part == Part::whole || part == Part::sums) {
          t.values = product(made, R, K, s.Dv, {W, 1}, {s.Dv, 1}, s.Dv, d, d, false, packed, why);
          all.push_back(t.values);
        } else if (grad) {
          const DType sum = width < s.S ? f32 : d;  // dq of some keys, or of all
          t.dp = product(made, R, s.Dv, K, {s.Dv, 1}, {1, s.Dv}, W, d, f32, false, packed, why);
          t.dv = product(made, K, R, s.Dv, {1, W}, {s.Dv, 1}, s.Dv, d, f32, true, packed, why);
          t.dk = product(made, K, R, s.D, {1, W}, {s.D, 1}, s.D, d, f32, true, false, why);
          t.dq = product(made, R, K, s.D, {W, 1}, {s.D, 1}, s.D, d, sum, false, false, why);
          all.insert(all.end(), {t.dp, t.dv, t.dk, t.dq});
        }
        for (const GemmPtr& gemm : all) {
          if (!gemm) return std::nullopt;
          s.scratch = std::max(s.scratch, round_up_64(gemm->scratch_bytes()));
        }
        if (packed && !add_packed(s, block, t)) return std::nullopt;
      }
      block.tiles.push_back(t);
    }
    s.blocks.push_back(std::move(block));
  }
  const auto each = static_cast<int64_t>(grad ? s.blocks.size() : s.blocks[0].tiles.size());
  s.threads = static_cast<int>(std::clamp<int64_t>(s.B * s.H * each, 1, omp_get_max_threads()));
  return s;
}

std::optional<Setup> set_up(const KernelCall& call, Part part, std::string* why) {
  if (auto packed = cut(call, part, true, why)) return packed;
  return cut(call, part, false, why);
}

// Turns raw scores of one query into scale * score, activated, + mask over keys [first, first +
// keys), and returns how many leading ones of them it sees; those behind are not touched. Where
// scores are activated, `slopes` receives the slopes, unless it is null.
int64_t finish_scores(const Setup& s, const TensorView* mask, int64_t b, int64_t h, int64_t t,
                      int64_t first, int64_t keys, float* row, float* slopes) {
  const int64_t seen =
      s.attrs.causal ? std::clamp<int64_t>(t + s.attrs.q_offset + 1 - first, 0, keys) : keys;
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
    const int64_t step = s.mask_stride[3];
    const int64_t at =
        b * s.mask_stride[0] + h * s.mask_stride[1] + t * s.mask_stride[2] + first * step;
    if (s.boolean_mask) {
      // Bytes and a fixed step: a choice without a branch, which no processor could foresee.
      const uint8_t* m = mask->as<uint8_t>() + at;
      if (step == 0) {
        if (m[0] == 0) std::fill_n(row, seen, kNever);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < seen; ++i) row[i] = m[i] != 0 ? row[i] : kNever;
      }
    } else if (step == 0) {
      const float m = get(*mask, at);
      for (int64_t i = 0; i < seen; ++i) row[i] += m;
    } else {
      alignas(64) float buffer[kBlock];
      for_blocks(seen, [&](int64_t i, int64_t n) {
        const float* m = floats(*mask, at + i, n, buffer);
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) row[i + j] += m[j];
      });
    }
  }
  return seen;
}

// Multiplies row[0, n) by the dropout's keep factors of query (b, h, t) and keys from `first` on.
void apply_dropout(const Setup& s, const RandomStream& stream, int64_t b, int64_t h, int64_t t,
                   int64_t first, int64_t n, float* row) {
  alignas(64) float keep[kBlock];
  const auto factor = static_cast<float>(1 / (1 - s.attrs.dropout));
  const uint64_t position = s.attrs.dropout_row(b, h, t) + static_cast<uint64_t>(first);
  for_blocks(n, [&](int64_t i, int64_t count) {
    draw_keep(stream, position + static_cast<uint64_t>(i), count, s.attrs.dropout, factor, keep);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) row[i + j] *= keep[j];
  });
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

// Calls f(head, part, thread) for each of `parts` parts of each head.
template <class F>
void for_each_part(const Setup& s, size_t parts, F&& f) {
  const int64_t each = static_cast<int64_t>(parts), all = s.B * s.H * each;
#pragma omp parallel for num_threads(s.threads) schedule(dynamic) if (s.threads > 1)
  for (int64_t i = 0; i < all; ++i)
    f(i / each, static_cast<size_t>(i % each), omp_get_thread_num());
}

// Packed v of each head. Per thread: scores f32 [tile, S]; for bf16 the probabilities again,
// rounded; oneDNN's scratch.
struct ForwardSpace {
  int64_t v, scores, narrow, per_thread, total;
  explicit ForwardSpace(const Setup& s)
      : v(s.B * s.H * s.packed_v),
        scores(round_up_64(s.tile_rows * s.S * 4)),
        narrow(s.dtype == DType::bf16 ? round_up_64(s.tile_rows * s.S * 2) : 0),
        per_thread(scores + narrow + s.scratch),
        total(v + per_thread * s.threads) {}
};

// `count` rows of v or dy [.., Dv] from `row` on.
MatrixView rows_of(const Setup& s, const TensorView& x, int64_t row, int64_t count) {
  return {x.as<char>() + row * s.Dv * size_of(s.dtype), s.dtype, count, s.Dv, s.Dv, 1};
}

MatrixView transposed(const MatrixView& m) {
  return {m.data, m.dtype, m.cols, m.rows, m.col_stride, m.row_stride};
}

// Raw scores of a query become weights of the values; `each` receives its lse, sum or highest
// score. False: no weights are wanted.
bool weigh_row(const Setup& s, const KernelArgs& args, const TensorView* mask,
               const RandomStream& stream, int64_t head, int64_t t, int64_t keys, float* row,
               float* each) {
  const int64_t b = head / s.H, h = head % s.H;
  const int64_t seen = finish_scores(s, mask, b, h, t, 0, keys, row, nullptr);
  float top = kNever;
  if (s.part == Part::sums) {
    top = args.in[3].as<float>()[head * s.T + t];
  } else {
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < seen; ++i) top = row[i] > top ? row[i] : top;
  }
  if (s.part == Part::top) {
    *each = top;
    return false;
  }
  const ExpRow sums = exp_row(row, seen, top);
  *each = s.part == Part::sums ? sums.sum : sums.lse;
  if (s.part == Part::whole) {
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) row[i] *= sums.inverse;
  }
  std::fill(row + seen, row + keys, 0.0f);
  if (s.attrs.dropout > 0) apply_dropout(s, stream, b, h, t, 0, seen, row);
  return true;
}

void forward(const Setup& s, const KernelArgs& args) {
  const ForwardSpace space(s);
  const int64_t bytes = size_of(s.dtype);
  auto* packed_v = static_cast<char*>(args.workspace);
  const TensorView* mask = s.attrs.has_mask ? &args.in[rest_of(s.part)] : nullptr;
  const bool values = s.part != Part::top;
  const RandomStream stream = stream_of(s, args);
  const std::vector<Tile>& tiles = s.blocks[0].tiles;
  if (s.packed) {
    for (int64_t head = 0; head < s.B * s.H; ++head) {
      pack_blocks(rows_of(s, args.in[2], head * s.S, s.S), s.dtype, tiles[0].values->blocks(),
                  packed_v + head * s.packed_v);
    }
  }
  for_each_part(s, tiles.size(), [&](int64_t head, size_t part, int thread) {
    const Tile& tile = tiles[part];
    char* work = packed_v + space.v + thread * space.per_thread;
    auto* scores = reinterpret_cast<float*>(work);
    auto* narrow = reinterpret_cast<uint16_t*>(work + space.scores);
    char* scratch = work + space.scores + space.narrow;
    const char* q = args.in[0].as<char>() + (head * s.T + tile.begin) * s.D * bytes;
    const char* k = args.in[1].as<char>() + head * s.S * s.D * bytes;
    float* each = args.out[values ? 1 : 0].as<float>() + head * s.T + tile.begin;
    char* y = values ? args.out[0].as<char>() + (head * s.T + tile.begin) * s.Dv * bytes : nullptr;
    if (!tile.scores) {
      if (values) std::memset(y, 0, static_cast<size_t>(tile.rows * s.Dv * bytes));
      std::fill_n(each, tile.rows, s.part == Part::sums ? 0.0f : kNever);
      return;
    }
    tile.scores->run(q, k, scores, scratch);
    for (int64_t r = 0; r < tile.rows; ++r) {
      float* row = scores + r * s.S;
      if (weigh_row(s, args, mask, stream, head, tile.begin + r, tile.keys, row, each + r) &&
          s.dtype == DType::bf16)
        narrow_row(row, tile.keys, narrow + r * s.S);
    }
    if (!values) return;
    const void* v =
        s.packed ? packed_v + head * s.packed_v : rows_of(s, args.in[2], head * s.S, s.S).data;
    const void* p = s.dtype == DType::bf16 ? static_cast<const void*>(narrow) : scores;
    tile.values->run(p, v, y, scratch);
  });
}

// For all: each query's delta, packed dy of each tile, and where keys are in blocks each block's
// dq. Per thread: packed v^T; p and dp f32 [tile, keys]; for bf16 both again, rounded, and f32 sums
// of dk and dv; the slopes of one query's scores.
struct BackwardSpace {
  int64_t delta, dy, dq, scores, narrow, dk, dv, slopes, per_thread, total;
  explicit BackwardSpace(const Setup& s) {
    const bool bf16 = s.dtype == DType::bf16;
    const int64_t keys = s.block_keys(), count = static_cast<int64_t>(s.blocks.size());
    delta = round_up_64(s.B * s.H * s.T * 4);
    dy = s.B * s.H * static_cast<int64_t>(s.blocks[0].tiles.size()) * s.packed_dy;
    dq = count > 1 ? round_up_64(s.B * s.H * count * s.T * s.D * 4) : 0;
    scores = round_up_64(s.tile_rows * keys * 4);
    narrow = bf16 ? round_up_64(s.tile_rows * keys * 2) : 0;
    dk = bf16 ? round_up_64(keys * s.D * 4) : 0;
    dv = bf16 ? round_up_64(keys * s.Dv * 4) : 0;
    slopes = s.attrs.slope != 1 ? round_up_64(keys * 4) : 0;
    per_thread = s.packed_v + 2 * scores + 2 * narrow + dk + dv + slopes + s.scratch;
    total = delta + dy + dq + s.threads * per_thread;
  }
};

// Of each query: dy . y.
void find_deltas(const Setup& s, const KernelArgs& args, float* delta) {
  parallel_ranges(s.B * s.H * s.T, row_grain(s.Dv), [&](int64_t begin, int64_t end) {
    alignas(64) float dy_buffer[kBlock], y_buffer[kBlock];
    for (int64_t row = begin; row < end; ++row) {
      float sum = 0;
      for (int64_t d = 0; d < s.Dv; d += kBlock) {
        const int64_t n = std::min(kBlock, s.Dv - d);
        const float* a = floats(args.in[0], row * s.Dv + d, n, dy_buffer);
        const float* c = floats(args.in[4], row * s.Dv + d, n, y_buffer);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) sum += a[i] * c[i];
      }
      delta[row] = sum;
    }
  });
}

// dq of all blocks [heads, blocks, T, D], added in their order.
void sum_blocks(const Setup& s, const float* parts, const TensorView& dq) {
  const int64_t each = s.T * s.D, count = static_cast<int64_t>(s.blocks.size());
  parallel_ranges(s.B * s.H * s.T, row_grain(s.D * count), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* first = parts + row / s.T * count * each + row % s.T * s.D;
      for (int64_t d = 0; d < s.D; ++d) {
        float sum = 0;
        for (int64_t block = 0; block < count; ++block) sum += first[block * each + d];
        set(dq, row * s.D + d, sum);
      }
    }
  });
}

// The gradients of one call: what all threads read, and a method for each loop inside the next.
class Backward {
 public:
  Backward(const Setup& setup, const KernelArgs& kernel_args)
      : s_(setup),
        args_(kernel_args),
        space_(setup),
        stream_(stream_of(setup, kernel_args)),
        mask_(setup.attrs.has_mask ? &kernel_args.in[6] : nullptr),
        deltas_(static_cast<float*>(kernel_args.workspace)),
        packed_dy_(static_cast<char*>(kernel_args.workspace) + space_.delta),
        dq_parts_(reinterpret_cast<float*>(packed_dy_ + space_.dy)) {}

  void run() const {
    find_deltas(s_, args_, deltas_);
    if (s_.packed) {
      for (int64_t head = 0; head < s_.B * s_.H; ++head) {
        for (const Tile& tile : s_.blocks[0].tiles)
          pack_blocks(dy_of(head, tile), s_.dtype, tile.dv->blocks(), packed_dy_of(head, tile));
      }
    }
    for_each_part(s_, s_.blocks.size(),
                  [&](int64_t head, size_t part, int thread) { run_block(head, part, thread); });
    if (!whole_) sum_blocks(s_, dq_parts_, args_.out[0]);
  }

 private:
  // A thread's part of the workspace.
  struct Scratch {
    char* packed_v;
    float *p, *dp;
    uint16_t *p_narrow, *ds_narrow;
    float *dk, *dv;  // of bf16
    float* slopes;
    char* products;  // oneDNN's
  };

  Scratch scratch_of(int thread) const {
    char* packed_v = packed_dy_ + space_.dy + space_.dq + thread * space_.per_thread;
    char* work = packed_v + s_.packed_v;
    char* narrow = work + 2 * space_.scores;
    char* sums = narrow + 2 * space_.narrow;
    return {packed_v,
            reinterpret_cast<float*>(work),
            reinterpret_cast<float*>(work + space_.scores),
            reinterpret_cast<uint16_t*>(narrow),
            reinterpret_cast<uint16_t*>(narrow + space_.narrow),
            reinterpret_cast<float*>(sums),
            reinterpret_cast<float*>(sums + space_.dk),
            reinterpret_cast<float*>(sums + space_.dk + space_.dv),
            sums + space_.dk + space_.dv + space_.slopes};
  }

  MatrixView dy_of(int64_t head, const Tile& tile) const {
    return rows_of(s_, args_.in[0], head * s_.T + tile.begin, tile.rows);
  }
  char* packed_dy_of(int64_t head, const Tile& tile) const {
    const int64_t tiles = (s_.T + s_.tile_rows - 1) / s_.tile_rows;
    return packed_dy_ + (head * tiles + tile.begin / s_.tile_rows) * s_.packed_dy;
  }
  // Where a tile's dq goes: into the result, or to the other blocks' to be added.
  char* dq_of(int64_t head, size_t part, const Tile& tile) const {
    if (whole_) return args_.out[0].as<char>() + (head * s_.T + tile.begin) * s_.D * bytes_;
    const int64_t block =
        head * static_cast<int64_t>(s_.blocks.size()) + static_cast<int64_t>(part);
    return reinterpret_cast<char*>(dq_parts_ + (block * s_.T + tile.begin) * s_.D);
  }

  void run_block(int64_t head, size_t part, int thread) const {
    const KeyBlock& block = s_.blocks[part];
    const Scratch own = scratch_of(thread);
    const int64_t key = head * s_.S + block.begin;
    const char* k = args_.in[2].as<char>() + key * s_.D * bytes_;
    const MatrixView of_v = rows_of(s_, args_.in[3], key, block.keys);
    if (s_.packed)
      pack_blocks(transposed(of_v), s_.dtype, block.tiles[0].dp->blocks(), own.packed_v);
    const void* v = s_.packed ? own.packed_v : of_v.data;
    float* dk = bf16_ ? own.dk : args_.out[1].as<float>() + key * s_.D;
    float* dv = bf16_ ? own.dv : args_.out[2].as<float>() + key * s_.Dv;
    std::fill_n(dk, block.keys * s_.D, 0.0f);
    std::fill_n(dv, block.keys * s_.Dv, 0.0f);
    for (const Tile& tile : block.tiles) {
      char* dq = dq_of(head, part, tile);
      if (!tile.scores) {
        std::memset(dq, 0, static_cast<size_t>(tile.rows * s_.D * (whole_ ? bytes_ : 4)));
        continue;
      }
      const char* q = args_.in[1].as<char>() + (head * s_.T + tile.begin) * s_.D * bytes_;
      const void* dy = dy_of(head, tile).data;
      tile.scores->run(q, k, own.p, own.products);
      tile.dp->run(dy, v, own.dp, own.products);
      for (int64_t r = 0; r < tile.rows; ++r) finish_row(head, block, tile, r, own);
      const void* probs = bf16_ ? static_cast<const void*>(own.p_narrow) : own.p;
      const void* ds = bf16_ ? static_cast<const void*>(own.ds_narrow) : own.dp;
      tile.dv->run(probs, s_.packed ? packed_dy_of(head, tile) : dy, dv, own.products);
      tile.dk->run(ds, q, dk, own.products);
      tile.dq->run(ds, k, dq, own.products);
    }
    if (bf16_) {
      put(args_.out[1], key * s_.D, block.keys * s_.D, dk);
      put(args_.out[2], key * s_.Dv, block.keys * s_.Dv, dv);
    }
  }

  // Of one query of a tile: scores become probabilities, dp becomes the scores' gradient.
  void finish_row(int64_t head, const KeyBlock& block, const Tile& tile, int64_t r,
                  const Scratch& own) const {
    const int64_t b = head / s_.H, h = head % s_.H, t = tile.begin + r, at = head * s_.T + t;
    const auto scale = static_cast<float>(s_.attrs.scale);
    const float* slopes = own.slopes;
    float *p_row = own.p + r * width_, *dp_row = own.dp + r * width_;
    const int64_t seen =
        finish_scores(s_, mask_, b, h, t, block.begin, tile.keys, p_row, own.slopes);
    const float lse = args_.in[5].as<float>()[at], delta = deltas_[at];
    // A query that sees nothing has lse = -inf; its probabilities are 0.
    const float shift = lse == kNever ? std::numeric_limits<float>::infinity() : lse;
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) p_row[i] = p_row[i] == kNever ? 0.0f : exp(p_row[i] - shift);
    if (s_.attrs.dropout > 0) apply_dropout(s_, stream_, b, h, t, block.begin, seen, dp_row);
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) dp_row[i] = p_row[i] * (dp_row[i] - delta) * scale;
    if (s_.attrs.slope != 1) {
#pragma omp simd
      for (int64_t i = 0; i < seen; ++i) dp_row[i] *= slopes[i];
    }
    if (s_.attrs.dropout > 0) apply_dropout(s_, stream_, b, h, t, block.begin, seen, p_row);
    std::fill(p_row + seen, p_row + tile.keys, 0.0f);
    std::fill(dp_row + seen, dp_row + tile.keys, 0.0f);
    if (bf16_) {
      narrow_row(p_row, tile.keys, own.p_narrow + r * width_);
      narrow_row(dp_row, tile.keys, own.ds_narrow + r * width_);
    }
  }

  const Setup& s_;
  const KernelArgs& args_;
  const BackwardSpace space_;
  const RandomStream stream_;
  const TensorView* mask_;
  float* deltas_;
  char* packed_dy_;
  float* dq_parts_;
  const int64_t bytes_ = size_of(s_.dtype), width_ = s_.block_keys();
  const bool bf16_ = s_.dtype == DType::bf16, whole_ = s_.blocks.size() == 1;
};

KernelImpl tiled(const char* op, Part part) {
  const auto refuses = [=](const KernelCall& call) -> std::optional<std::string> {
    std::string why;
    if (auto reason = refuse_other_floats(call)) return reason;
    return set_up(call, part, &why) ? std::nullopt : std::optional(why);
  };
  const auto prepare = [=](const KernelCall& call) -> PreparedKernel {
    std::string why;
    const auto s = set_up(call, part, &why);
    SR_REQUIRE(s.has_value(), internal, call.node.op, " '", call.node.name, "' was refused: ", why);
    if (part == Part::grad)
      return {[s = *s](const KernelArgs& args) { Backward(s, args).run(); },
              BackwardSpace(*s).total, "cpu:tiled"};
    return {[s = *s](const KernelArgs& args) { forward(s, args); }, ForwardSpace(*s).total,
            "cpu:tiled"};
  };
  return {op, "cpu:tiled", refuses, prepare};
}

}  // namespace

KernelList attention_kernels() {
  const KernelImpl forward = tiled("attention", Part::whole),
                   backward = tiled("attention_grad", Part::grad);
  return {by_pairs(forward),
          by_pairs(backward),
          forward,
          backward,
          tiled("attention_top", Part::top),
          tiled("attention_sums", Part::sums),
          attention_join()};
}

}  // namespace shardrun::cpu
