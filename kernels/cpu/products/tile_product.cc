// Squares of 32 x 32 sums stay in four tile registers while all terms go by. Both operands are in
// squares, too: all rows of the left one, and of the right one as many columns as lie in the second
// cache. The processor multiplies tiles beside all else, so the square before is written meanwhile.
#include "kernels/cpu/products/tile_product.h"

#ifdef __x86_64__

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "base/round_up.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/simd.h"

// oneDNN has asked the system for the registers when has_matrix_units() says that they are there.
#define SHARDRUN_TILES __attribute__((target("amx-tile,amx-bf16")))

namespace shardrun::cpu {
namespace {

constexpr int64_t kLeast = 32;  // rows, columns and terms
constexpr int64_t kMostTerms = 1536, kFewTerms = 512;
constexpr int64_t kMostColumns = 1024;  // where terms are in parts
constexpr int64_t kBytesOfA = int64_t{4} << 20;
constexpr int64_t kBytesPastCaches = int64_t{1} << 20;  // results of so much are not read at once
constexpr int64_t kBytesOfRows = int64_t{768} << 10;    // of a, and
constexpr int64_t kBytesOfPanel = int64_t{512} << 10;   // of b, both in the second cache
constexpr int64_t kMostAcross = 16;                     // squares of such a panel

int64_t squares(int64_t extent) { return (extent + kSquare - 1) / kSquare; }

/// Equal parts of [0, extent), of whole squares, of at most `most` unless that is less than one.
int64_t part_of(int64_t extent, int64_t most) {
  const int64_t parts =
      (squares(extent) + most / kSquare - 1) / std::max(most / kSquare, int64_t{1});
  return (squares(extent) + parts - 1) / parts * kSquare;
}

// ---- post-ops

/// Rows of `count` sums, `row` from one to the next; an operand's are `step` bytes apart.
struct PostRows {
  float* sums;
  int64_t row, rows, count;
  const char* operand;
  int64_t step;
  float alpha;
};
using Post = void (*)(const PostRows&);

template <class F>
void for_sums(const PostRows& r, F&& f) {
  for (int64_t i = 0; i < r.rows; ++i) {
    float* const sums = r.sums + i * r.row;
#pragma omp simd
    for (int64_t j = 0; j < r.count; ++j) f(sums[j]);
  }
}

template <class Op, class T, bool kOne>
void apply_pair(const PostRows& r) {
  for (int64_t i = 0; i < r.rows; ++i) {
    float* const sums = r.sums + i * r.row;
    const T* const with = reinterpret_cast<const T*>(r.operand + i * r.step);
#pragma omp simd
    for (int64_t j = 0; j < r.count; ++j) sums[j] = Op{}(sums[j], as_float(with[kOne ? 0 : j]));
  }
}

struct GeluGrad {
  float operator()(float dy, float x) const { return gelu_erf_grad(x, dy); }
};
struct GeluTanhGrad {
  float operator()(float dy, float x) const { return gelu_tanh_grad(x, dy); }
};

template <class Op>
Post pair(const GemmPost& post) {
  const bool one = post.count == 1;
  if (post.dtype == DType::f32)
    return one ? apply_pair<Op, float, true> : apply_pair<Op, float, false>;
  return one ? apply_pair<Op, uint16_t, true> : apply_pair<Op, uint16_t, false>;
}

template <float (*kOf)(float)>
void apply(const PostRows& r) {
  for_sums(r, [](float& sum) { sum = kOf(sum); });
}

void apply_elu(const PostRows& r) {
  for_sums(r, [alpha = r.alpha](float& sum) { sum = sum < 0.0f ? alpha * expm1(sum) : sum; });
}

/// Null: not known.
Post post_of(const GemmPost& post) {
  if (post.count > 0) {
    if (post.op == "add") return pair<std::plus<>>(post);
    if (post.op == "sub") return pair<std::minus<>>(post);
    if (post.op == "mul") return pair<std::multiplies<>>(post);
    if (post.op == "div") return pair<std::divides<>>(post);
    if (post.op == "gelu_erf_grad") return pair<GeluGrad>(post);
    if (post.op == "gelu_tanh_grad") return pair<GeluTanhGrad>(post);
    return nullptr;
  }
  static const std::map<std::string, Post> single = {
      {"gelu", apply<gelu_erf>}, {"gelu_tanh", apply<gelu_tanh>},
      {"tanh", apply<tanh>},     {"sigmoid", apply<sigmoid>},
      {"exp", apply<exp>},       {"elu", apply_elu}};
  const auto found = single.find(post.op);
  return found == single.end() ? nullptr : found->second;
}

// ---- tiles

/// The calling thread's tiles are 16 lines of 64 bytes each while this lives.
class Tiles {
 public:
  SHARDRUN_TILES Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
  }
  SHARDRUN_TILES ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// Memory that is read soon: rows of lines, brought into the second cache.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0, rows = 0, row_bytes = 0;  // of a row; bytes from row to row
  int64_t line = 0, lines_a_step = 1;

  void step() {
    for (int64_t i = 0; i < lines_a_step && rows > 0; ++i) {
      __builtin_prefetch(at + 64 * line, 0, 2);
      if (++line < lines) continue;
      line = 0, at += row_bytes, --rows;
    }
  }
};

/// What a thread does while its tiles multiply, a little at every step: sums are written, 32 of a
/// row at a time, and memory comes nearer.
struct Chores {
  const void* sums = nullptr;
  void (*write)(const void* sums, int64_t piece) = nullptr;
  int64_t piece = 0, pieces = 0, pieces_a_step = 1;
  Ahead b, operand;

  void step() {
    for (int64_t i = 0; i < pieces_a_step && piece < pieces; ++i) write(sums, piece++);
    b.step();
    operand.step();
  }
  void finish_pieces() {
    while (piece < pieces) write(sums, piece++);
  }
};

/// A square of numbers, `bytes` from row to row.
struct Square {
  float* at = nullptr;
  int64_t bytes = kSquare * 4;
};

/// to = from + a b, of `steps` squares of each operand. `from`: none for zeros.
SHARDRUN_TILES void multiply(const char* a, const char* b, int64_t steps, const Square& from,
                             const Square& to, Chores& chores) {
  if (from.at != nullptr) {
    const char *top = reinterpret_cast<const char*>(from.at), *low = top + 16 * from.bytes;
    _tile_loadd(0, top, from.bytes);
    _tile_loadd(1, top + 64, from.bytes);
    _tile_loadd(2, low, from.bytes);
    _tile_loadd(3, low + 64, from.bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < steps; ++i, a += kSquareBytes, b += kSquareBytes) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 128);
    _tile_loadd(7, b + 64, 128);
    _tile_loadd(5, a + 1024, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    chores.step();
  }
  char *top = reinterpret_cast<char*>(to.at), *low = top + 16 * to.bytes;
  _tile_stored(0, top, to.bytes);
  _tile_stored(1, top + 64, to.bytes);
  _tile_stored(2, low, to.bytes);
  _tile_stored(3, low + 64, to.bytes);
}

// ---- the product

class TileProduct : public PackedProduct {
 public:
  TileProduct(const ProductShape& s, std::vector<Post> posts)
      : s_(s), posts_(std::move(posts)), threads_(omp_get_max_threads()) {
    kc_ = part_of(s.k, kMostTerms);
    const bool parts = kc_ < s.k;
    const int64_t deep = squares(kc_) * kSquareBytes;
    mc_ = part_of(s.m, kBytesOfA / deep * kSquare);
    nc_ = parts ? part_of(s.n, kMostColumns) : s.n;
    down_ = std::clamp(kBytesOfRows / deep, int64_t{1}, squares(mc_));
    across_ = std::clamp(kBytesOfPanel / deep, int64_t{1}, std::min(squares(nc_), kMostAcross));
    const bool lines = s.n * size_of(s.out) % 64 == 0,
               reads = std::any_of(s.post.begin(), s.post.end(),
                                   [&](const GemmPost&post) { return post.count == s.m * s.n; });
    // Long pieces of rows are written fast, short ones stay in the first cache until then.
    beside_ = !lines || reads ? across_ : std::min(across_, kc_ < kFewTerms ? int64_t{1} : 4);
    // A gradient of weights is read much later, and of nothing else is the result f32.
    streams_ = s.out == DType::f32 || s.m * s.n * size_of(s.out) >= kBytesPastCaches;
    bytes_a_ = squares(mc_) * deep;
    if (parts) bytes_sums_ = squares(mc_) * squares(nc_) * kSquare * kSquare * 4;
    bytes_panel_ = s.packed ? 0 : across_ * deep;
    bytes_rows_ = kSquare * row() * 4;
  }

  int64_t workspace_bytes() const override {
    return bytes_a_ + bytes_sums_ + threads_ * (bytes_panel_ + 2 * bytes_rows_);
  }

  BlockLayout blocks() const override { return {kSquare, kSquare}; }

  void run(const void* a, const void* b, void* c, void* workspace,
           std::span<const void* const> operands) const override {
    Run r{a, b, c, operands, static_cast<char*>(workspace)};
    r.sums = reinterpret_cast<float*>(r.a_squares + bytes_a_);
    r.of_threads = r.a_squares + bytes_a_ + bytes_sums_;
    for (r.n0 = 0; r.n0 < s_.n; r.n0 += nc_) {
      r.n = std::min(nc_, s_.n - r.n0);
      for (r.m0 = 0; r.m0 < s_.m; r.m0 += mc_) {
        r.m = std::min(mc_, s_.m - r.m0);
        for (r.k0 = 0; r.k0 < s_.k; r.k0 += kc_) {
          r.k = std::min(kc_, s_.k - r.k0);
          pack_a(r);
          multiply_all(r);
        }
      }
    }
  }

 private:
  struct Run {
    const void *a, *b;
    void* c;
    std::span<const void* const> operands;
    char* a_squares;
    float* sums = nullptr;  // of terms so far, squares of now
    char* of_threads = nullptr;
    int64_t n0 = 0, n = 0, m0 = 0, m = 0, k0 = 0, k = 0;  // of now: columns, rows and terms
  };

  /// At most 32 rows of sums on their way to the result.
  struct Rows {
    const TileProduct& of;
    const Run& run;
    float* at;  // row() numbers from one to the next
    int64_t m = 0, n = 0, rows = 0, columns = 0;

    template <class T, bool kStreams>
    static void write(const void* sums, int64_t piece) {
      const Rows& r = *static_cast<const Rows*>(sums);
      r.of.write_piece<T, kStreams>(r, piece, static_cast<T*>(r.run.c));
    }
  };

  /// Numbers from row to row of a panel's sums: rows that are 4 KiB apart would share lines of the
  /// first cache.
  int64_t row() const { return (beside_ + 1) * kSquare; }

  void pack_a(const Run& r) const {
    const MatrixView from{
        static_cast<const char*>(r.a) + (r.m0 * s_.a_row + r.k0 * s_.a_col) * size_of(s_.a),
        s_.a,
        r.m,
        r.k,
        s_.a_row,
        s_.a_col};
    const PackSquare pack = pack_square_of_a(from);
    const int64_t rows = squares(r.m), deep = squares(r.k);
    const bool along_m = s_.a_row == 1 && s_.a_col != 1;  // memory is read in its order
    parallel_ranges(along_m ? deep : rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t outer = begin; outer < end; ++outer) {
        for (int64_t inner = 0; inner < (along_m ? rows : deep); ++inner) {
          const int64_t i = along_m ? inner : outer, step = along_m ? outer : inner;
          pack(from, i * kSquare, step * kSquare, r.a_squares + (i * deep + step) * kSquareBytes);
        }
      }
    });
  }

  /// Of columns of b, in squares, from the first to the last.
  void pack_b(const Run& r, int64_t first, int64_t last, char* to) const {
    const MatrixView from{static_cast<const char*>(r.b) + r.k0 * s_.b_row * size_of(s_.b),
                          s_.b,
                          r.k,
                          s_.n,
                          s_.b_row,
                          s_.b_col};
    const PackSquare pack = pack_square_of_b(from);
    const int64_t deep = squares(r.k);
    const bool along_n = s_.b_col == 1;
    for (int64_t outer = 0; outer < (along_n ? deep : last - first); ++outer) {
      for (int64_t inner = 0; inner < (along_n ? last - first : deep); ++inner) {
        const int64_t j = along_n ? inner : outer, step = along_n ? outer : inner;
        pack(from, step * kSquare, (first + j) * kSquare, to + (j * deep + step) * kSquareBytes);
      }
    }
  }

  /// Each thread has columns of its own, or rows where there are more of these.
  void multiply_all(const Run& r) const {
    const int64_t rows = squares(r.m), first = r.n0 / kSquare, columns = squares(r.n);
    const bool by_rows = rows > columns;
    const int64_t extent = by_rows ? rows : columns;
    parallel_ranges(extent, (extent + threads_ - 1) / threads_, [&](int64_t begin, int64_t end) {
      if (by_rows) {
        multiply_part(r, begin, end, first, first + columns);
      } else {
        multiply_part(r, 0, rows, first + begin, first + end);
      }
      end_stream();
    });
  }

  /// Squares of rows of now, and of columns of all.
  void multiply_part(const Run& r, int64_t i_begin, int64_t i_end, int64_t j_begin,
                     int64_t j_end) const {
    const Tiles tiles;
    const int64_t steps = squares(r.k), deep = steps * kSquareBytes;
    const bool last_terms = r.k0 + r.k == s_.k;
    char* const panel = r.of_threads + omp_get_thread_num() * (bytes_panel_ + 2 * bytes_rows_);
    auto* const memory = reinterpret_cast<float*>(panel + bytes_panel_);
    Rows here[] = {{*this, r, memory}, {*this, r, memory + bytes_rows_ / 4}};
    size_t turn = 0;
    Chores chores;
    chores.pieces_a_step = (kSquare + steps - 1) / steps;
    const int64_t b_lines_a_step = (kSquare + i_end - i_begin - 1) / (i_end - i_begin);
    for (int64_t first = j_begin; first < j_end; first += across_) {
      const int64_t last = std::min(first + across_, j_end);
      if (!s_.packed) pack_b(r, first, last, panel);
      const auto b = [&](int64_t j) {
        return s_.packed ? packed_before(r, j) : panel + (j - first) * deep;
      };
      for (int64_t i0 = i_begin; i0 < i_end; i0 += down_) {
        for (int64_t j0 = first; j0 < last; j0 += beside_) {
          const int64_t j1 = std::min(j0 + beside_, last);
          for (int64_t i = i0; i < std::min(i0 + down_, i_end); ++i) {
            Rows& rows = here[turn++ % 2];
            if (last_terms) {
              rows.m = r.m0 + i * kSquare, rows.n = j0 * kSquare;
              rows.rows = std::min(kSquare, s_.m - rows.m);
              rows.columns = std::min(j1 * kSquare, s_.n) - rows.n;
              chores.operand = operand_of(rows, (j1 - j0) * steps);
            }
            for (int64_t j = j0; j < j1; ++j) {
              if (s_.packed && i == i_begin && j + 1 < j_end)
                chores.b = {packed_before(r, j + 1), deep / 64, 1, 0, 0, b_lines_a_step};
              const Square so_far = square_of(r, i, j),
                           whole{rows.at + (j - j0) * kSquare, row() * 4};
              multiply(r.a_squares + i * deep, b(j), steps, r.k0 > 0 ? so_far : Square{},
                       last_terms ? whole : so_far, chores);
            }
            if (!last_terms) continue;
            chores.finish_pieces();
            give(rows, chores);
          }
        }
      }
    }
    chores.finish_pieces();
  }

  const char* packed_before(const Run& r, int64_t j) const {
    return static_cast<const char*>(r.b) + (j * squares(s_.k) + r.k0 / kSquare) * kSquareBytes;
  }

  Square square_of(const Run& r, int64_t i, int64_t j) const {
    return {r.sums + (i * squares(r.n) + j - r.n0 / kSquare) * kSquare * kSquare};
  }

  /// What the first post-op with an operand as large as the result will read, within these steps.
  Ahead operand_of(const Rows& rows, int64_t steps) const {
    size_t operand = 0;
    for (const GemmPost& post : s_.post) {
      if (post.count == s_.m * s_.n) {
        const int64_t size = size_of(post.dtype), lines = (rows.columns * size + 63) / 64;
        const char* at = static_cast<const char*>(rows.run.operands[operand]);
        return {at + (rows.m * s_.n + rows.n) * size,   lines, rows.rows, s_.n * size, 0,
                (lines * rows.rows + steps - 1) / steps};
      }
      if (post.count > 0) ++operand;
    }
    return {};
  }

  /// The chores of writing the rows.
  void give(Rows& rows, Chores& chores) const {
    apply_posts(rows);
    chores.sums = &rows;
    chores.piece = 0, chores.pieces = rows.rows * squares(rows.columns);
    const bool f32 = s_.out == DType::f32;
    chores.write = streams_ ? f32 ? Rows::write<float, true> : Rows::write<uint16_t, true>
                   : f32 ? Rows::write<float, false>
                            : Rows::write<uint16_t, false>;
  }

  /// All at once: functions take as long beside tiles as behind them.
  void apply_posts(const Rows& sums) const {
    size_t operand = 0;
    for (size_t i = 0; i < posts_.size(); ++i) {
      const GemmPost& post = s_.post[i];
      const bool all = post.count == s_.m * s_.n;
      const char* with = nullptr;
      if (post.count > 0) {
        const int64_t first = all ? sums.m * s_.n + sums.n : post.count > 1 ? sums.n : 0;
        with = static_cast<const char*>(sums.run.operands[operand++]);
        with += first * size_of(post.dtype);
      }
      posts_[i]({sums.at, row(), sums.rows, sums.columns, with,
                 all ? s_.n * size_of(post.dtype) : 0, static_cast<float>(post.alpha)});
    }
  }

  /// 32 numbers of a row, from left to right.
  template <class T, bool kStreams>
  void write_piece(const Rows& sums, int64_t piece, T* c) const {
    const int64_t across = squares(sums.columns), i = piece / across, j = piece % across * kSquare,
                  count = std::min(kSquare, sums.columns - j);
    const float* from = sums.at + i * row() + j;
    c += (sums.m + i) * s_.n + sums.n + j;
    if constexpr (kStreams) {
      constexpr int64_t kInLine = 64 / sizeof(T);
      // To the end of a line of memory first, then lines.
      const int64_t off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(c) % 64) /
                          static_cast<int64_t>(sizeof(T)),
                    lead = off == 0 ? 0 : kInLine - off;
      if (j == 0) write_few(from, c, std::min(lead, count));
      int64_t at = lead;
      for (; at + kInLine <= sums.columns - j && at < kSquare; at += kInLine) {
        if constexpr (sizeof(T) == sizeof(float)) {
          stream(c + at, load_vector<Units>(from + at));
        } else {
          stream(c + at, narrow_line(from + at));
        }
      }
      if (at < kSquare + lead) write_few(from + at, c + at, sums.columns - j - at);
      return;
    }
    write_few(from, c, count);
  }

  template <class T>
  static void write_few(const float* from, T* to, int64_t count) {
    for (int64_t j = 0; j < count; j += kLanes)
      store_lanes(to + j, load_lanes(from + j), std::min(kLanes, count - j));
  }

  ProductShape s_;
  std::vector<Post> posts_;
  int64_t threads_;
  int64_t nc_ = 0, mc_ = 0, kc_ = 0;            // columns, rows and terms at a time
  int64_t across_ = 0, down_ = 0, beside_ = 0;  // squares: of a panel, rows by it, written together
  bool streams_ = false;                        // the result is written past the caches
  int64_t bytes_a_ = 0, bytes_sums_ = 0;
  int64_t bytes_panel_ = 0, bytes_rows_ = 0;  // of a thread
};

}  // namespace

std::shared_ptr<const PackedProduct> make_tile_product(const ProductShape& s, std::string* why) {
  if (!has_matrix_units()) {
    *why = "this processor has no tiles";
    return nullptr;
  }
  if (s.in != DType::bf16) {
    *why = "tiles are of bf16";
    return nullptr;
  }
  if (s.m < kLeast || s.n < kLeast || s.k < kLeast) {
    *why = str("tiles take products of at least ", kLeast, " rows, columns and terms");
    return nullptr;
  }
  std::vector<Post> posts;
  for (const GemmPost& post : s.post) {
    posts.push_back(post_of(post));
    if (posts.back() != nullptr) continue;
    *why = "tiles know no post-op " + post.op;
    return nullptr;
  }
  return std::make_shared<TileProduct>(s, std::move(posts));
}

}  // namespace shardrun::cpu

#else

namespace shardrun::cpu {

std::shared_ptr<const PackedProduct> make_tile_product(const ProductShape&, std::string* why) {
  *why = "this processor has no tiles";
  return nullptr;
}

}  // namespace shardrun::cpu

#endif
