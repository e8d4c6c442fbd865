// y = A' [(G w G') . (B' x B)] A, summed over channels: images are transformed tile by tile,
// weights once, and each of the 36 places of a tile is a product of [tiles, channels in] with
// [channels in, channels out]. The gradient of the weights is the same read backwards: dw = G' [sum
// over tiles of (A dy A') . (B' x B)] G.
//
// Points are 0, ±1/√2, ±√2 and infinity: they lose fewer digits than integers do (Barabasz et al.,
// "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks",
// 2020).
//
// All of a place lies in panels of 16 channels, [channels / 16][rows][16]: rows are tiles, or the
// other side's channels for weights. So the products read and write whole lines in order.
#include "kernels/cpu/images/winograd.h"

#include <algorithm>

#include "base/round_up.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

using Pass = ConvolutionShape::Pass;

constexpr int kOut = 4, kKernel = 3, kIn = kOut + kKernel - 1;  // of a tile, along each side
constexpr int kPlaces = kIn * kIn, kTaps = kKernel * kKernel;
constexpr float kA = 0.70710678118654752f, kB = 1.41421356237309505f;  // kA kB = 1

// Rows of a product's tile: as many as there are registers for.
#ifdef __AVX512F__
constexpr int kRows = 12, kRowsOfPanel = 8;
#else
constexpr int kRows = 2, kRowsOfPanel = 2;
#endif
constexpr int64_t kTilesOfThread = 72;  // transformed at a time
constexpr int64_t kTilesOfGrad = 180;   // the same, by all threads: two panels stay in L1
// Of result channels at a time. A gradient from all tiles at once need not keep its sums for the
// next: those of two panels are still near when they are gathered.
constexpr int64_t kPanelsOfThread = 4, kPanelsOfGrad = 8, kPanelsOfWholeGrad = 2;

/// Floats from one place to the next, for `floats` of each: not a whole number of pages, or all 36
/// would meet in the same few lines of cache.
constexpr int64_t plane_of(int64_t floats) { return (floats + 1023) / 1024 * 1024 + kLanes; }
// ---- transforms of a line

struct ImageLine {  // B'
  static constexpr int kFrom = kIn, kTo = kIn;
  [[gnu::always_inline]] static inline void run(const Lanes* d, Lanes* out) {
    const Lanes d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3], d4 = d[4], d5 = d[5];
    const Lanes even1 = d4 - 2.0f * d2, odd1 = kA * d3 - kB * d1;
    const Lanes even2 = d4 - 0.5f * d2, odd2 = kB * d3 - kA * d1;
    out[0] = d0 - 2.5f * d2 + d4;
    out[1] = even1 + odd1;
    out[2] = even1 - odd1;
    out[3] = even2 + odd2;
    out[4] = even2 - odd2;
    out[5] = d1 - 2.5f * d3 + d5;
  }
};

struct ResultLine {  // A'
  static constexpr int kFrom = kIn, kTo = kOut;
  [[gnu::always_inline]] static inline void run(const Lanes* m, Lanes* out) {
    const Lanes sum1 = m[1] + m[2], difference1 = m[1] - m[2];
    const Lanes sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    out[0] = m[0] + sum1 + sum2;
    out[1] = kA * difference1 + kB * difference2;
    out[2] = 0.5f * sum1 + 2.0f * sum2;
    out[3] = 0.5f * kA * difference1 + 2.0f * kB * difference2 + m[5];
  }
};

struct ResultGradLine {  // A
  static constexpr int kFrom = kOut, kTo = kIn;
  [[gnu::always_inline]] static inline void run(const Lanes* y, Lanes* out) {
    const Lanes y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
    const Lanes even1 = y0 + 0.5f * y2, odd1 = kA * y1 + 0.5f * kA * y3;
    const Lanes even2 = y0 + 2.0f * y2, odd2 = kB * y1 + 2.0f * kB * y3;
    out[0] = y0;
    out[1] = even1 + odd1;
    out[2] = even1 - odd1;
    out[3] = even2 + odd2;
    out[4] = even2 - odd2;
    out[5] = y3;
  }
};

struct WeightsLine {  // G
  static constexpr int kFrom = kKernel, kTo = kIn;
  [[gnu::always_inline]] static inline void run(const Lanes* g, Lanes* out) {
    const Lanes g0 = g[0], g1 = g[1], g2 = g[2];
    const Lanes even1 = (-2.0f / 3) * g0 - (1.0f / 3) * g2, odd1 = (-2.0f / 3) * kA * g1;
    const Lanes even2 = (1.0f / 6) * g0 + (1.0f / 3) * g2, odd2 = (1.0f / 6) * kB * g1;
    out[0] = g0;
    out[1] = even1 + odd1;
    out[2] = even1 - odd1;
    out[3] = even2 + odd2;
    out[4] = even2 - odd2;
    out[5] = g2;
  }
};

struct WeightsGradLine {  // G'
  static constexpr int kFrom = kIn, kTo = kKernel;
  [[gnu::always_inline]] static inline void run(const Lanes* u, Lanes* out) {
    const Lanes sum1 = u[1] + u[2], difference1 = u[1] - u[2];
    const Lanes sum2 = u[3] + u[4], difference2 = u[3] - u[4];
    out[0] = u[0] - (2.0f / 3) * sum1 + (1.0f / 6) * sum2;
    out[1] = (-2.0f / 3) * kA * difference1 + (1.0f / 6) * kB * difference2;
    out[2] = (1.0f / 3) * (sum2 - sum1) + u[5];
  }
};

/// Along columns, then along rows: takes load(i, j) and gives store(i, j, value).
template <class Line, class Load, class Store>
[[gnu::always_inline]] inline void transform(Load&& load, Store&& store) {
  constexpr int kFrom = Line::kFrom, kTo = Line::kTo;
  Lanes half[kTo][kFrom];
#pragma GCC unroll 6
  for (int j = 0; j < kFrom; ++j) {
    Lanes in[kFrom], out[kTo];
#pragma GCC unroll 6
    for (int i = 0; i < kFrom; ++i) in[i] = load(i, j);
    Line::run(in, out);
#pragma GCC unroll 6
    for (int i = 0; i < kTo; ++i) half[i][j] = out[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTo; ++i) {
    Lanes out[kTo];
    Line::run(half[i], out);
#pragma GCC unroll 6
    for (int j = 0; j < kTo; ++j) store(i, j, out[j]);
  }
}

// ---- products

/// c[i] (+)= sum over k of a(i, k) b[k] for kRowCount rows and kPanels panels of 16 columns. a(i,
/// k) is at a[k / terms * group + i * kRow + k % terms * kTerm].
template <int kRowCount, int kPanels, int kRow, int kTerm>
void product_tile(const float* a, int64_t groups, int64_t group, int64_t terms, const float* b,
                  int64_t b_panel, float* c, int64_t c_panel, bool add) {
  Lanes sums[kRowCount][kPanels];
#pragma GCC unroll 16
  for (int i = 0; i < kRowCount; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kPanels; ++j)
      sums[i][j] = add ? load_lanes(c + j * c_panel + i * kLanes) : Lanes{};
  }
  for (int64_t g = 0; g < groups; ++g) {
    const float* at = a + g * group;
    for (int64_t k = 0; k < terms; ++k, at += kTerm, b += kLanes) {
      Lanes columns[kPanels];
#pragma GCC unroll 2
      for (int j = 0; j < kPanels; ++j) columns[j] = load_lanes(b + j * b_panel);
#pragma GCC unroll 16
      for (int i = 0; i < kRowCount; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kPanels; ++j) sums[i][j] += at[i * kRow] * columns[j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRowCount; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kPanels; ++j) store_lanes(c + j * c_panel + i * kLanes, sums[i][j]);
  }
}

/// Rows are tiles, terms channels: c[tiles, 16 columns] from blocks of kRows tiles of `panels`
/// panels. What stands behind the last tile of a block comes to nothing.
void product_over_channels(const float* a, int64_t tiles, int64_t panels, const float* b,
                           int64_t columns, float* c, int64_t c_rows) {
  constexpr int64_t kBlock = kRows * kLanes;
  const int64_t b_panel = panels * kLanes * kLanes, c_panel = c_rows * kLanes;
  for (int64_t p = 0; p < columns; p += 2) {
    const auto tile =
        p + 2 <= columns ? product_tile<kRows, 2, kLanes, 1> : product_tile<kRows, 1, kLanes, 1>;
    for (int64_t i = 0; i < tiles; i += kRows) {
      tile(a + i * panels * kLanes, panels, kBlock, kLanes, b + p * b_panel, b_panel,
           c + p * c_panel + i * kLanes, c_panel, false);
    }
  }
}

/// Rows are channels, terms tiles: c[16 panels, 16 columns], one or two of these.
void product_over_tiles(const float* a, int64_t rows, int64_t tiles, int64_t panels, const float* b,
                        int64_t columns, float* c, bool add) {
  const int64_t panel = rows * kLanes, c_panel = panels * kLanes * kLanes;
  for (int64_t p = 0; p < panels; ++p) {
    for (int64_t i = 0; i < kLanes; i += kRowsOfPanel) {
      const auto tile = columns == 2 ? product_tile<kRowsOfPanel, 2, 1, kLanes>
                                     : product_tile<kRowsOfPanel, 1, 1, kLanes>;
      tile(a + p * panel + i, 1, 0, tiles, b, panel, c + (p * kLanes + i) * kLanes, c_panel, add);
    }
  }
}

// ---- a convolution

/// An image [batch, height, width, channels] in tiles of kSide x kSide that begin kOut apart, the
/// first at (-low[0], -low[1]).
struct Tiled {
  int64_t height = 0, width = 0, channels = 0;
  int64_t down = 0, across = 0;  // tiles of an image
  int64_t low[2] = {0, 0};

  struct Place {
    int64_t image, row, column;
  };
  Place at(int64_t tile) const {
    return {tile / (down * across), tile / across % down * kOut - low[0],
            tile % across * kOut - low[1]};
  }
  int64_t panels() const { return channels / kLanes; }
};

class Tiles : public Convolution {
 public:
  explicit Tiles(const ConvolutionShape& s) : s_(s), threads_(omp_get_max_threads()) {
    const bool back = s.pass == Pass::data, grad = s.pass == Pass::weights;
    // What is read with kernel and padding, and what is counted in tiles of 4 x 4. dx[i] reads
    // dy[i + low - k]: the same with the kernel reversed.
    const Shape &wide = back ? s.out : s.in, &counted = back ? s.in : s.out;
    wide_ = {wide[0], wide[1], back ? s.out_channels : s.in_channels};
    counted_ = {counted[0], counted[1], back ? s.in_channels : s.out_channels};
    for (size_t d = 0; d < 2; ++d) wide_.low[d] = back ? kKernel - 1 - s.low[d] : s.low[d];
    wide_.down = counted_.down = divide_up(counted[0], kOut);
    wide_.across = counted_.across = divide_up(counted[1], kOut);
    tiles_ = s.batch * wide_.down * wide_.across;
    // Each thread has its own tiles, and takes all of the weights in turn; of few tiles all, and
    // its own part of the weights. Sums over tiles are not to depend on the number of threads.
    groups_ = grad || tiles_ <= kTilesOfThread ? 1 : threads_;
    chunks_ = divide_up(tiles_, grad ? kTilesOfGrad : kTilesOfThread * groups_);
    rows_ = round_up(divide_up(tiles_, chunks_), kRows * groups_);
    chunks_ = divide_up(tiles_, rows_);
    block_ = std::min(!grad         ? kPanelsOfThread
                      : chunks_ > 1 ? kPanelsOfGrad
                                    : kPanelsOfWholeGrad,
                      counted_.panels());
    weights_ = kPlaces * weights_plane() * (chunks_ > 1 ? blocks() : grad ? 1 : threads_);
    image_ = kPlaces * image_plane();
    results_ = kPlaces * (grad ? results_grad_plane() : results_plane() * threads_);
    // A chunk's rows of tiles, the first and the last in part.
    if (s.epilogue && s.dtype != DType::f32)
      sums_ = (rows_ / counted_.across + 2) * kOut * counted_.width * counted_.channels;
  }

  int64_t scratch_bytes() const override {
    return (outside() + weights_ + image_ + results_ + sums_) * 4;
  }

  void run(const KernelArgs& args) const override {
    const void *a = args.in[0].data, *b = args.in[1].data;
    void* result = args.out[0].data;
    auto* scratch = static_cast<float*>(args.workspace);
    const auto typed = [&]<class T>(T) {
      if (s_.pass != Pass::weights) {
        convolve(static_cast<const T*>(a), static_cast<const T*>(b), args);
      } else if (s_.weights_dtype == DType::f32) {
        differentiate(static_cast<const T*>(a), static_cast<const T*>(b),
                      static_cast<float*>(result), scratch);
      } else {
        differentiate(static_cast<const T*>(a), static_cast<const T*>(b),
                      static_cast<uint16_t*>(result), scratch);
      }
    };
    if (s_.dtype == DType::f32) {
      typed(float{});
    } else {
      typed(uint16_t{});
    }
  }

 private:
  /// Calls f(first tile, tiles) for each chunk.
  template <class F>
  void for_chunks(F&& f) const {
    for (int64_t first = 0; first < tiles_; first += rows_)
      f(first, std::min(rows_, tiles_ - first));
  }
  // Zeros that stand for what lies outside of an image.
  int64_t outside() const { return std::max(wide_.channels, counted_.channels); }
  int64_t blocks() const { return divide_up(counted_.panels(), block_); }
  int64_t panels_of(int64_t block) const {
    return std::min(block_, counted_.panels() - block * block_);
  }
  // Floats of one place: of a block's weights [panel][channel in][16], of tiles, of a thread's
  // results [panel][tile][16].
  int64_t weights_plane() const { return plane_of(block_ * wide_.channels * kLanes); }
  int64_t image_plane() const { return plane_of(wide_.channels * rows_); }
  int64_t results_plane() const { return plane_of(block_ * kLanes * rows_ / groups_); }
  int64_t results_grad_plane() const { return plane_of(counted_.channels * rows_); }

  template <class T>
  void convolve(const T* x, const T* w, const KernelArgs& args) const {
    auto* nothing = static_cast<float*>(args.workspace);
    float *weights = nothing + outside(), *image = weights + weights_, *results = image + image_;
    std::fill(nothing, weights, 0.0f);
    Ending ending(*this, args, results + results_);
    const int64_t in = wide_.panels(), items = groups_ * blocks(), most = rows_ / groups_;
    if (chunks_ > 1) {
      for (int64_t b = 0; b < blocks(); ++b)
        transform_weights(w, b * block_, panels_of(b), weights + b * kPlaces * weights_plane());
    }
    for_chunks([&](int64_t first, int64_t tiles) {
      const int64_t group = round_up(divide_up(tiles, groups_), kRows);
      read_tiles<ImageLine>(wide_, x, first, tiles, kRows, nothing, image, image_plane());
      parallel_ranges(threads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread) {
          float* mine = results + kPlaces * results_plane() * thread;
          for (int64_t i = items * thread / threads_; i < items * (thread + 1) / threads_; ++i) {
            const int64_t b = i % blocks(), panels = panels_of(b), from = i / blocks() * group,
                          count = std::min(group, tiles - from);
            if (count <= 0) continue;
            float* block = weights + (chunks_ > 1 ? b : thread) * kPlaces * weights_plane();
            if (chunks_ == 1) transform_weights(w, b * block_, panels, block);
            for (int64_t place = 0; place < kPlaces; ++place) {
              product_over_channels(image + place * image_plane() + from * wide_.channels, count,
                                    in, block + place * weights_plane(), panels,
                                    mine + place * results_plane(), most);
            }
            if (s_.epilogue) {
              write_tiles(ending.sums(), first + from, count, b * block_, panels, mine);
            } else {
              write_tiles(args.out[0].as<T>(), first + from, count, b * block_, panels, mine);
            }
          }
        }
      });
      if (s_.epilogue) ending.follow(first + tiles);
    });
  }

  /// What follows a convolution, behind each chunk on the rows of tiles that are whole by then.
  class Ending {
   public:
    /// `scratch`: for `sums_` numbers.
    Ending(const Tiles& tiles, const KernelArgs& args, float* scratch)
        : t_(tiles),
          args_(args),
          scratch_(tiles.sums_ > 0 ? scratch : nullptr),
          sums_(scratch_ ? scratch_ : static_cast<float*>(args.out[0].data)) {}

    /// Where the result's first number would lie.
    float* sums() const { return sums_; }

    /// `tiles` of them are made.
    void follow(int64_t tiles) {
      const int64_t begin = done_ * t_.counted_.width, rows = tiles / t_.counted_.across,
                    image = rows / t_.counted_.down;
      done_ = image * t_.counted_.height + rows % t_.counted_.down * kOut;
      const int64_t end = done_ * t_.counted_.width;
      t_.s_.epilogue->run(args_, sums_, begin, end);
      if (!scratch_) return;
      // The row of tiles that is made in part comes to the front.
      const int64_t channels = t_.counted_.channels;
      const float* rest = sums_ + end * channels;
      sums_ = scratch_ - end * channels;
      if (tiles % t_.counted_.across > 0)
        std::memmove(scratch_, rest,
                     static_cast<size_t>(kOut * t_.counted_.width * channels) * sizeof(float));
    }

   private:
    const Tiles& t_;
    const KernelArgs& args_;
    float *scratch_, *sums_;
    int64_t done_ = 0;  // rows of pixels
  };

  template <class T, class W>
  void differentiate(const T* x, const T* dy, W* dw, float* scratch) const {
    float* nothing = scratch;
    float *weights = nothing + outside(), *image = weights + weights_, *results = image + image_;
    std::fill(nothing, weights, 0.0f);
    const int64_t in = wide_.panels();
    for_chunks([&](int64_t first, int64_t tiles) {
      read_tiles<ImageLine>(wide_, x, first, tiles, rows_, nothing, image, image_plane());
      read_tiles<ResultGradLine>(counted_, dy, first, tiles, rows_, nothing, results,
                                 results_grad_plane());
      for (int64_t b = 0; b < blocks(); ++b) {
        const int64_t panels = panels_of(b), pairs = divide_up(panels, 2);
        float* block = weights + (chunks_ > 1 ? b : 0) * kPlaces * weights_plane();
        parallel_ranges(kPlaces * pairs, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t place = i / pairs, p = i % pairs * 2;
            product_over_tiles(
                image + place * image_plane(), rows_, tiles, in,
                results + place * results_grad_plane() + (b * block_ + p) * rows_ * kLanes,
                std::min<int64_t>(2, panels - p),
                block + place * weights_plane() + p * wide_.channels * kLanes, first > 0);
          }
        });
        if (first + tiles == tiles_) gather_weights(block, b * block_, panels, dw);
      }
    });
  }

  /// Tiles [first, first + tiles) of an image, transformed: [place][block][panel][tile][16] with so
  /// many tiles in a block. `nothing` is what lies outside of the image.
  template <class Line, class T>
  static void read_tiles(const Tiled& image, const T* data, int64_t first, int64_t tiles,
                         int64_t block, const float* nothing, float* out, int64_t plane) {
    constexpr int kSide = Line::kFrom;
    const int64_t panels = image.panels();
    parallel_ranges(divide_up(tiles, kRows), 1, [&](int64_t begin, int64_t end) {
      const T* from[kRows][kSide][kSide];
      for (int64_t t0 = begin * kRows; t0 < std::min(end * kRows, tiles); t0 += kRows) {
        const int64_t count = std::min<int64_t>(kRows, tiles - t0);
        for (int64_t t = 0; t < count; ++t) {
          const Tiled::Place at = image.at(first + t0 + t);
          for (int64_t i = 0; i < kSide; ++i) {
            for (int64_t j = 0; j < kSide; ++j) {
              const int64_t row = at.row + i, column = at.column + j;
              const bool inside =
                  row >= 0 && row < image.height && column >= 0 && column < image.width;
              from[t][i][j] =
                  inside ? data + ((at.image * image.height + row) * image.width + column) *
                                      image.channels
                         : reinterpret_cast<const T*>(nothing);
            }
          }
        }
        // In the order in which they lie.
        float* to = out + (t0 / block * panels * block + t0 % block) * kLanes;
        for (int64_t p = 0; p < panels; ++p, to += block * kLanes) {
          for (int64_t t = 0; t < count; ++t) {
            transform<Line>([&](int i, int j) { return load_lanes(from[t][i][j] + p * kLanes); },
                            [&](int i, int j, const Lanes& v) {
                              store_lanes(to + t * kLanes + (i * kIn + j) * plane, v);
                            });
          }
        }
      }
    });
  }

  /// A block of the results' places to panels [p0, p0 + panels) of the image that they make.
  template <class T>
  void write_tiles(T* y, int64_t first, int64_t tiles, int64_t p0, int64_t panels,
                   const float* results) const {
    const int64_t plane = results_plane(), rows = rows_ / groups_;
    parallel_ranges(tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const Tiled::Place at = counted_.at(first + tile);
        const int64_t down = counted_.height - at.row, across = counted_.width - at.column;
        T* to = y + ((at.image * counted_.height + at.row) * counted_.width + at.column) *
                        counted_.channels;
        for (int64_t p = 0; p < panels; ++p) {
          const float* from = results + (p * rows + tile) * kLanes;
          transform<ResultLine>(
              [&](int i, int j) { return load_lanes(from + (i * kIn + j) * plane); },
              [&](int i, int j, const Lanes& v) {
                if (i >= down || j >= across) return;
                store_lanes(to + (i * counted_.width + j) * counted_.channels + (p0 + p) * kLanes,
                            v);
              });
        }
      }
    });
  }

  /// 16 x 16 channels of w.
  struct Square {
    int64_t panel, channel;  // of the block; of the operand, the first of 16
    int64_t weight;          // of the square's first channels
  };
  /// Elements of w from one channel to the next, of the result and of the operand.
  int64_t weight_step_out() const { return s_.pass == Pass::data ? kTaps : s_.in_channels * kTaps; }
  int64_t weight_step_in() const { return s_.pass == Pass::data ? s_.in_channels * kTaps : kTaps; }
  /// Calls f for each square of the block that has panels [p0, p0 + panels).
  template <class F>
  void for_squares(int64_t p0, int64_t panels, F&& f) const {
    const int64_t in = wide_.panels();
    parallel_ranges(panels * in, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t panel = i / in, channel = i % in * kLanes;
        f(Square{panel, channel,
                 (p0 + panel) * kLanes * weight_step_out() + channel * weight_step_in()});
      }
    });
  }

  /// [place][panel of the block][channel of the operand][16].
  template <class T>
  void transform_weights(const T* w, int64_t p0, int64_t panels, float* out) const {
    const int64_t step_out = weight_step_out(), step_in = weight_step_in(), plane = weights_plane();
    for_squares(p0, panels, [&](const Square& at) {
      alignas(64) T taps[kLanes][kTaps][kLanes];
      for (int64_t o = 0; o < kLanes; ++o) {
        for (int64_t c = 0; c < kLanes; ++c) {
          const T* from = w + at.weight + o * step_out + c * step_in;
          for (int t = 0; t < kTaps; ++t)
            taps[c][s_.pass == Pass::data ? kTaps - 1 - t : t][o] = from[t];
        }
      }
      for (int64_t c = 0; c < kLanes; ++c) {
        float* to = out + (at.panel * wide_.channels + at.channel + c) * kLanes;
        transform<WeightsLine>(
            [&](int i, int j) { return load_lanes(taps[c][i * kKernel + j]); },
            [&](int i, int j, const Lanes& v) { store_lanes(to + (i * kIn + j) * plane, v); });
      }
    });
  }

  template <class W>
  void gather_weights(const float* block, int64_t p0, int64_t panels, W* dw) const {
    const int64_t step_out = weight_step_out(), step_in = weight_step_in(), plane = weights_plane();
    for_squares(p0, panels, [&](const Square& at) {
      alignas(64) W taps[kLanes][kTaps][kLanes];
      for (int64_t c = 0; c < kLanes; ++c) {
        const float* from = block + (at.panel * wide_.channels + at.channel + c) * kLanes;
        transform<WeightsGradLine>(
            [&](int i, int j) { return load_lanes(from + (i * kIn + j) * plane); },
            [&](int i, int j, const Lanes& v) { store_lanes(taps[c][i * kKernel + j], v); });
      }
      for (int64_t o = 0; o < kLanes; ++o) {
        for (int64_t c = 0; c < kLanes; ++c) {
          W* to = dw + at.weight + o * step_out + c * step_in;
          for (int t = 0; t < kTaps; ++t) to[t] = taps[c][t][o];
        }
      }
    });
  }

  ConvolutionShape s_;
  int64_t threads_;
  Tiled wide_, counted_;
  int64_t tiles_ = 0, chunks_ = 0, groups_ = 0;               // groups: of a chunk's tiles
  int64_t rows_ = 0;                                          // that a chunk holds at most
  int64_t block_ = 0;                                         // panels of result channels at a time
  int64_t weights_ = 0, image_ = 0, results_ = 0, sums_ = 0;  // floats of scratch
};

/// Matrix units multiply bf16 sixteen times as fast as vectors multiply f32.
}  // namespace

std::shared_ptr<const Convolution> Winograd::make(const ConvolutionShape& s, std::string* why) {
  if (!kLanesFitRegisters) {
    *why = "wants registers of 16 floats";
    return nullptr;
  }
  if (s.kernel != Shape{kKernel, kKernel} || s.strides != Shape{1, 1} ||
      s.dilations != Shape{1, 1} || s.groups != 1 || !s.channels_last) {
    *why = "convolves 3 x 3, without strides, dilation and groups, with channels last";
    return nullptr;
  }
  if (s.packed) {
    *why = "transforms weights itself, in cache";
    return nullptr;
  }
  const int64_t least = s.dtype == DType::f32 ? 32 : 64;
  if (s.in_channels % kLanes != 0 || s.out_channels % kLanes != 0 ||
      std::min(s.in_channels, s.out_channels) < least) {
    *why = str("wants channels in sixteens, ", least, " or more of both sides");
    return nullptr;
  }
  if (s.dtype == DType::bf16 && has_matrix_units()) {
    *why = "computes in f32, which is slower than bf16 on matrix units";
    return nullptr;
  }
  const Shape& counted = s.pass == Pass::data ? s.in : s.out;
  const int64_t tiles = divide_up(counted[0], kOut) * divide_up(counted[1], kOut);
  // Half of the multiplications saved, at least; bf16 vectors multiply twice as fast as f32.
  if (kPlaces * tiles * (s.dtype == DType::f32 ? 2 : 3) > kTaps * counted[0] * counted[1]) {
    *why = "images are too small for tiles of 4 x 4";
    return nullptr;
  }
  if (s.dtype == DType::bf16 && s.pass != Pass::weights &&
      s.batch * tiles * 2 < std::max(s.in_channels, s.out_channels)) {
    *why = "tiles are too few to make up for transforming the weights";
    return nullptr;
  }
  return std::make_shared<Tiles>(s);
}

}  // namespace shardrun::cpu
