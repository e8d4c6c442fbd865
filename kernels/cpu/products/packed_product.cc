// Chunks of a product, and the oneDNN matmul of each.
#include "kernels/cpu/products/packed_product.h"

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "base/round_up.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/tile_product.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kLeast = 64;  // rows, columns and terms
constexpr int64_t kChunkOfA = int64_t{4} << 20;
constexpr int64_t kAlongK = 32;  // chunks along k begin at such elements

/// About equal chunks of [0, extent), of a multiple of `multiple`, at least `least` each.
int64_t chunk_of(int64_t extent, double parts, int64_t multiple, int64_t least) {
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(parts)));
  const int64_t size = std::max(least, round_up((extent + count - 1) / count, multiple));
  return std::min(size, extent);
}

class Chunked : public PackedProduct {
 public:
  explicit Chunked(const ProductShape& shape) : s_(shape) {
    const int64_t size = size_of(s_.in);
    const double parts = s_.packed ? 1  // there is nothing to hold in cache
                                   : static_cast<double>(s_.k) * static_cast<double>(s_.n * size) /
                                         static_cast<double>(s_.chunk_bytes);
    mc_ = s_.m, nc_ = s_.n, kc_ = s_.k;
    if (s_.n >= s_.k) {
      nc_ = chunk_of(s_.n, parts, kLeast, 4 * kLeast);
    } else {
      kc_ = chunk_of(s_.k, parts, kAlongK, 16 * kAlongK);
    }
    // oneDNN's fast products want operands and result dense.
    packs_a_ = s_.a_col != 1 || s_.a_row != s_.k || s_.a != s_.in || kc_ < s_.k;
    if (packs_a_) {
      mc_ = chunk_of(s_.m, static_cast<double>(s_.m * kc_ * size) / kChunkOfA, kLeast, 4 * kLeast);
      bytes_a_ = round_up(mc_ * kc_ * size, 64);
    }
    if (nc_ < s_.n) bytes_c_ = round_up(mc_ * nc_ * size_of(s_.out), 64);
    if (kc_ < s_.k && s_.out != DType::f32) bytes_c_ = round_up(s_.m * s_.n * 4, 64);
  }

  bool prepare(std::string* why) {
    bool good = true;
    for (const GemmPost& post : s_.post) {
      if (post.count == s_.m * s_.n && nc_ < s_.n) {
        *why = post.op + " behind it has an operand of which a chunk of columns is not dense";
        return false;
      }
    }
    for_chunks([&](const Chunk& c) {
      if (!good) return;
      const Key key = key_of(c);
      if (gemms_.count(key)) return;
      std::shared_ptr<const Gemm>& gemm = gemms_[key];
      GemmShape g;
      g.a = {c.m, c.k}, g.b = {c.k, c.n}, g.c = {c.m, c.n};
      g.a_strides = {c.k, 1}, g.c_strides = {c.n, 1};
      g.in = s_.in, g.out = kc_ < s_.k ? DType::f32 : s_.out;
      g.accumulate = c.k0 > 0;
      g.b_in_blocks = true;
      if (is_last(c)) g.post = posts_of(c);
      gemm = Gemm::make(g, why);
      good = gemm != nullptr;
      if (!good) return;
      if (!s_.packed)
        bytes_b_ = std::max(bytes_b_, round_up(gemm->blocks().bytes(c.k, c.n, s_.in), 64));
      scratch_ = std::max(scratch_, gemm->scratch_bytes());
      // What is packed for one chunk of rows serves all of them.
      const auto [it, fresh] = layouts_.try_emplace({c.n, c.k}, gemm->blocks());
      if (!fresh &&
          (it->second.width != gemm->blocks().width || it->second.depth != gemm->blocks().depth)) {
        *why = "oneDNN lays out the second operand otherwise for other rows";
        good = false;
      }
    });
    return good;
  }

  int64_t workspace_bytes() const override { return bytes_a_ + bytes_b_ + bytes_c_ + scratch_; }

  BlockLayout blocks() const override { return layouts_.at({s_.n, s_.k}); }

  void run(const void* a, const void* b, void* c, void* workspace,
           std::span<const void* const> operands) const override {
    char* packed_a = static_cast<char*>(workspace);
    char *packed_b = packed_a + bytes_a_, *separate = packed_b + bytes_b_,
         *scratch = separate + bytes_c_;
    const bool sums = kc_ < s_.k;  // in f32, rounded once where the result is not
    char* result = sums && bytes_c_ > 0 ? separate : static_cast<char*>(c);
    const int64_t size = size_of(sums ? DType::f32 : s_.out);
    for_chunks([&](const Chunk& at) {
      const Gemm& gemm = *gemms_.at(key_of(at));
      const MatrixView of_b = part(b, s_.b, s_.b_row, s_.b_col, at.k0, at.n0, at.k, at.n);
      if (at.m0 == 0 && !s_.packed) pack_blocks(of_b, s_.in, gemm.blocks(), packed_b);
      const MatrixView of_a = part(a, s_.a, s_.a_row, s_.a_col, at.m0, at.k0, at.m, at.k);
      if (packs_a_) pack_rows(of_a, s_.in, packed_a);
      const void* left = packs_a_ ? packed_a : of_a.data;
      const void* here[kMostPosts];
      const size_t count = is_last(at) ? operands_of(at, operands, here) : 0;
      const std::span<const void* const> post(here, count);
      char* to = result + (at.m0 * s_.n + at.n0) * size;
      if (at.n == s_.n) {
        gemm.run(left, s_.packed ? b : packed_b, to, scratch, post);
      } else {
        gemm.run(left, packed_b, separate, scratch, post);
        spread(separate, at, to);
      }
    });
    if (result != c) narrow(reinterpret_cast<const float*>(result), c);
  }

 private:
  struct Chunk {
    int64_t m0, n0, k0, m, n, k;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool>;
  Key key_of(const Chunk& c) const { return {c.m, c.n, c.k, c.k0 > 0, is_last(c)}; }
  bool is_last(const Chunk& c) const { return c.k0 + c.k == s_.k; }

  /// The post-ops on a chunk, and where their operands begin there.
  std::vector<GemmPost> posts_of(const Chunk& c) const {
    std::vector<GemmPost> out = s_.post;
    for (GemmPost& post : out) {
      if (post.count == s_.m * s_.n) {
        post.count = c.m * c.n;
      } else if (post.count > 1) {
        post.count = c.n;
      }
    }
    return out;
  }
  size_t operands_of(const Chunk& c, std::span<const void* const> operands,
                     const void** here) const {
    size_t count = 0;
    for (const GemmPost& post : s_.post) {
      if (post.count == 0) continue;
      const int64_t at = post.count == s_.m * s_.n ? c.m0 * s_.n : post.count > 1 ? c.n0 : 0;
      here[count] = static_cast<const char*>(operands[count]) + at * size_of(post.dtype);
      ++count;
    }
    return count;
  }

  template <class F>
  void for_chunks(F&& f) const {
    for (int64_t k0 = 0; k0 < s_.k; k0 += kc_) {
      for (int64_t n0 = 0; n0 < s_.n; n0 += nc_) {
        for (int64_t m0 = 0; m0 < s_.m; m0 += mc_) {
          f(Chunk{m0, n0, k0, std::min(mc_, s_.m - m0), std::min(nc_, s_.n - n0),
                  std::min(kc_, s_.k - k0)});
        }
      }
    }
  }

  static MatrixView part(const void* data, DType dtype, int64_t row, int64_t col, int64_t r0,
                         int64_t c0, int64_t rows, int64_t cols) {
    return {static_cast<const char*>(data) + (r0 * row + c0 * col) * size_of(dtype),
            dtype,
            rows,
            cols,
            row,
            col};
  }

  /// A dense chunk to its columns of the result.
  void spread(const char* from, const Chunk& at, char* to) const {
    const int64_t size = size_of(s_.out);
    parallel_ranges(at.m, row_grain(at.n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(to + r * s_.n * size, from + r * at.n * size, static_cast<size_t>(at.n * size));
    });
  }

  void narrow(const float* from, void* c) const {
    auto* to = static_cast<uint16_t*>(c);
    parallel_ranges(s_.m * s_.n, 16384, [&](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) to[i] = round_to_bf16(from[i]);
    });
  }

  ProductShape s_;
  int64_t mc_ = 0, nc_ = 0, kc_ = 0;
  bool packs_a_ = false;
  int64_t bytes_a_ = 0, bytes_b_ = 0, bytes_c_ = 0, scratch_ = 0;
  std::map<Key, std::shared_ptr<const Gemm>> gemms_;
  std::map<std::pair<int64_t, int64_t>, BlockLayout> layouts_;
};

}  // namespace

std::shared_ptr<const PackedProduct> PackedProduct::make(const ProductShape& shape,
                                                         std::string* why) {
  if (shape.tiles) return make_tile_product(shape, why);
  if (shape.m < kLeast || shape.n < kLeast || shape.k < kLeast) {
    *why = str("packs products of at least ", kLeast, " rows, columns and terms");
    return nullptr;
  }
  if (!multiplies_blocks()) {
    *why = "this processor's products read no blocks";
    return nullptr;
  }
  auto out = std::make_shared<Chunked>(shape);
  if (!out->prepare(why)) return nullptr;
  return out;
}

}  // namespace shardrun::cpu
