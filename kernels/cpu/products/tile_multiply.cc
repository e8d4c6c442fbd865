// Squares of 32 x 32 sums stay in four tile registers while all terms go by. Both operands are in
// squares, too: up to 4 MiB of rows of the left one, and of the right one as many columns as lie in
// the second cache. The processor multiplies tiles beside all else, so sums are written meanwhile.
#include "kernels/cpu/products/tile_multiply.h"

#include <algorithm>

#include "base/round_up.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"

#ifdef __x86_64__
#include <immintrin.h>
// oneDNN has asked the system for the registers when has_matrix_units() says that they are there.
#define SHARDRUN_TILES __attribute__((target("amx-tile,amx-bf16")))
#endif

namespace shardrun::cpu {
namespace {

constexpr int64_t kMostTerms = 1536, kFewTerms = 512;
constexpr int64_t kMostColumns = 2048;  // where terms are in parts
constexpr int64_t kBytesOfA = int64_t{4} << 20;
constexpr int64_t kBytesOfRows = int64_t{768} << 10;   // of a, and
constexpr int64_t kBytesOfPanel = int64_t{512} << 10;  // of b, both in the second cache
constexpr int64_t kMostAcross = 16;                    // squares of such a panel, or one group

int64_t squares(int64_t extent) { return divide_up(extent, kSquare); }

/// Equal parts of [0, extent), each of whole groups of squares and of at most `most` unless that is
/// less than a group.
int64_t part_of(int64_t extent, int64_t most, int64_t group = 1) {
  const int64_t groups = divide_up(squares(extent), group),
                in_part = std::max(most / (kSquare * group), int64_t{1}),
                parts = divide_up(groups, in_part);
  return divide_up(groups, parts) * group * kSquare;
}

/// What a thread does while its tiles multiply, a little at every step.
struct SideWork {
  const TileOperands* of = nullptr;
  const TileRows* sums = nullptr;
  int64_t piece = 0, pieces = 0, pieces_a_step = 1;
  Ahead b, ahead;

  void step() {
    for (int64_t i = 0; i < pieces_a_step && piece < pieces; ++i) of->write(*sums, piece++);
    b.step();
    ahead.step();
  }
  void finish_pieces() {
    while (piece < pieces) of->write(*sums, piece++);
  }
};

/// A square of numbers, `bytes` from row to row.
struct Square {
  float* at = nullptr;
  int64_t bytes = kSquare * 4;
};

#ifdef __x86_64__

/// The calling thread's tiles are 16 lines of 64 bytes each while this lives.
class Tiles {
 public:
  SHARDRUN_TILES Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t lines[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config));  // GCC 12's own says that it reads 8 bytes of it
  }
  SHARDRUN_TILES ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

/// to = from + a b, of `steps` squares of each operand. `from`: none for zeros.
SHARDRUN_TILES void multiply(const char* a, const char* b, int64_t steps, const Square& from,
                             const Square& to, SideWork& meanwhile) {
  asm volatile("" ::: "memory");  // operands are in memory: GCC 12 does not say that tiles read it
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
    meanwhile.step();
  }
  char *top = reinterpret_cast<char*>(to.at), *low = top + 16 * to.bytes;
  _tile_stored(0, top, to.bytes);
  _tile_stored(1, top + 64, to.bytes);
  _tile_stored(2, low, to.bytes);
  _tile_stored(3, low + 64, to.bytes);
}

#else

struct Tiles {};
void multiply(const char*, const char*, int64_t, const Square&, const Square&, SideWork&) {
  SR_REQUIRE(false, internal, "this processor has no tiles");
}

#endif

}  // namespace

struct TileMultiply::Run {
  const TileOperands& of;
  char* a_squares;
  float* sums;  // of terms so far, squares of now
  char* of_threads;
  int64_t n0 = 0, n = 0, m0 = 0, m = 0, k0 = 0, k = 0;  // of now: columns, rows and terms

  Square square(int64_t i, int64_t j) const {
    return {sums + (i * squares(n) + j - n0 / kSquare) * kSquare * kSquare};
  }
};

TileMultiply::TileMultiply(const Sizes& s)
    : s_(s), threads_(omp_get_max_threads()), group_(std::max(s.together, int64_t{1})) {
  kc_ = part_of(s.k, std::min(kMostTerms, kBytesOfPanel / (2 * kSquare * group_)));
  const bool parts = kc_ < s.k;
  const int64_t strip = squares(kc_) * kSquareBytes;  // bytes of a row or column of squares
  mc_ = part_of(s.m, kBytesOfA / strip * kSquare);
  nc_ = parts ? part_of(s.n, kMostColumns, group_) : s.n;
  down_ = std::clamp(kBytesOfRows / strip, int64_t{1}, squares(mc_));
  const int64_t fit = std::min({kBytesOfPanel / strip, squares(nc_), kMostAcross});
  across_ = std::max(fit / group_, int64_t{1}) * group_;
  // Long pieces of rows are written fast, short ones stay in the first cache until then.
  together_ = s.together > 0 ? s.together
              : s.long_rows  ? across_
                             : std::min(across_, kc_ < kFewTerms ? int64_t{1} : 4);
  bytes_a_ = squares(mc_) * strip;
  if (parts) bytes_sums_ = squares(mc_) * squares(nc_) * kSquare * kSquare * 4;
  bytes_panel_ = s.packed ? 0 : across_ * strip;
  // Rows that are 4 KiB apart would share lines of the first cache.
  bytes_rows_ = kSquare * (together_ + 1) * kSquare * 4;
}

int64_t TileMultiply::workspace_bytes() const {
  return bytes_a_ + bytes_sums_ + threads_ * (bytes_panel_ + 2 * bytes_rows_);
}

void TileMultiply::run(const TileOperands& operands, void* workspace) const {
  char* const at = static_cast<char*>(workspace);
  Run r{operands, at, reinterpret_cast<float*>(at + bytes_a_), at + bytes_a_ + bytes_sums_};
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

void TileMultiply::pack_a(const Run& r) const {
  const int64_t down = squares(r.m), steps = squares(r.k);
  const bool along_rows = r.of.a_along_rows();  // memory is read in its order
  parallel_ranges(along_rows ? steps : down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t outer = begin; outer < end; ++outer) {
      for (int64_t inner = 0; inner < (along_rows ? down : steps); ++inner) {
        const int64_t i = along_rows ? inner : outer, step = along_rows ? outer : inner;
        r.of.pack_a(r.m0 + i * kSquare, r.k0 + step * kSquare,
                    r.a_squares + (i * steps + step) * kSquareBytes);
      }
    }
  });
}

/// Each thread has columns of its own, or rows where there are more of these.
void TileMultiply::multiply_all(const Run& r) const {
  const int64_t rows = squares(r.m), first = r.n0 / kSquare, columns = squares(r.n),
                groups = divide_up(columns, group_);
  const bool by_rows = rows > groups;
  const int64_t extent = by_rows ? rows : groups;
  const bool within = omp_in_parallel() != 0;  // the caller's threads have workspaces of their own
  parallel_ranges(extent, divide_up(extent, threads_), [&](int64_t begin, int64_t end) {
    char* const panel =
        r.of_threads + (within ? 0 : omp_get_thread_num()) * (bytes_panel_ + 2 * bytes_rows_);
    if (by_rows) {
      multiply_part(r, panel, begin, end, first, first + columns);
    } else {
      multiply_part(r, panel, 0, rows, first + begin * group_,
                    first + std::min(end * group_, columns));
    }
    end_stream();
  });
}

/// Squares of rows of now, and of columns of all.
void TileMultiply::multiply_part(const Run& r, char* panel, int64_t i_begin, int64_t i_end,
                                 int64_t j_begin, int64_t j_end) const {
  [[maybe_unused]] const Tiles tiles;
  const int64_t steps = squares(r.k), strip = steps * kSquareBytes;
  const bool last_terms = r.k0 + r.k == s_.k;
  const char* const packed = r.of.packed_b();
  const auto packed_b = [&](int64_t j) {
    return packed + (j * squares(s_.k) + r.k0 / kSquare) * kSquareBytes;
  };
  TileRows here[2];
  for (TileRows& rows : here) {
    rows.at = reinterpret_cast<float*>(panel + bytes_panel_ + (&rows - here) * bytes_rows_);
    rows.row = (together_ + 1) * kSquare;
  }
  size_t turn = 0;
  SideWork meanwhile;
  meanwhile.of = &r.of;
  const int64_t b_lines_a_step = (kSquare + i_end - i_begin - 1) / (i_end - i_begin);
  for (int64_t first = j_begin; first < j_end; first += across_) {
    const int64_t last = std::min(first + across_, j_end);
    const bool along = r.of.b_along_columns();
    for (int64_t outer = 0; !packed && outer < (along ? steps : last - first); ++outer) {
      for (int64_t inner = 0; inner < (along ? last - first : steps); ++inner) {
        const int64_t j = along ? inner : outer, step = along ? outer : inner;
        r.of.pack_b(r.k0 + step * kSquare, (first + j) * kSquare,
                    panel + (j * steps + step) * kSquareBytes);
      }
    }
    for (int64_t i0 = i_begin; i0 < i_end; i0 += down_) {
      for (int64_t j0 = first; j0 < last; j0 += together_) {
        const int64_t j1 = std::min(j0 + together_, last);
        for (int64_t i = i0; i < std::min(i0 + down_, i_end); ++i) {
          TileRows& rows = here[turn++ % 2];
          if (last_terms) {
            rows.m = r.m0 + i * kSquare, rows.n = j0 * kSquare;
            rows.rows = std::min(kSquare, s_.m - rows.m);
            rows.columns = std::min(j1 * kSquare, s_.n) - rows.n;
            meanwhile.ahead = r.of.ahead(rows, (j1 - j0) * steps);
          }
          for (int64_t j = j0; j < j1; ++j) {
            if (packed && i == i_begin && j + 1 < j_end)
              meanwhile.b = {packed_b(j + 1), strip / 64, 1, 0, 0, b_lines_a_step};
            const Square so_far = r.square(i, j), whole{rows.at + (j - j0) * kSquare, rows.row * 4};
            multiply(r.a_squares + i * strip, packed ? packed_b(j) : panel + (j - first) * strip,
                     steps, r.k0 > 0 ? so_far : Square{}, last_terms ? whole : so_far, meanwhile);
          }
          if (!last_terms) continue;
          meanwhile.finish_pieces();
          r.of.finish(rows);
          meanwhile.sums = &rows;
          meanwhile.piece = 0, meanwhile.pieces = r.of.pieces(rows);
          meanwhile.pieces_a_step =
              (meanwhile.pieces + (j1 - j0) * steps - 1) / ((j1 - j0) * steps);
        }
      }
    }
  }
  meanwhile.finish_pieces();
}

}  // namespace shardrun::cpu
