// What a matrix product's operands and result look like in memory, and its post-ops.
#include "kernels/cpu/products/tile_product.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/round_up.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/products/tile_multiply.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kBytesPastCaches = int64_t{1} << 20;  // results of so much are not read at once

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

// ---- the product

/// A post-op's operand as large as the result?
bool is_whole(const GemmPost& post, const ProductShape& s) { return post.count == s.m * s.n; }

TileMultiply::Sizes sizes_of(const ProductShape& s) {
  const bool lines = s.n * size_of(s.out) % 64 == 0,
             reads = std::any_of(s.post.begin(), s.post.end(),
                                 [&](const GemmPost&post) { return is_whole(post, s); });
  return {s.m, s.n, s.k, s.packed, 0, !lines || reads};
}

class TileProduct : public PackedProduct {
 public:
  TileProduct(const ProductShape& s, std::vector<Post> posts)
      : s_(s), posts_(std::move(posts)), multiply_(sizes_of(s)) {
    // A result in f32 is a gradient of weights, which is read much later.
    streams_ =
        !s.read_at_once && (s.out == DType::f32 || s.m * s.n * size_of(s.out) >= kBytesPastCaches);
  }

  int64_t workspace_bytes() const override { return multiply_.workspace_bytes(); }

  BlockLayout blocks() const override { return {kSquare, kSquare}; }

  void run(const void* a, const void* b, void* c, void* workspace,
           std::span<const void* const> operands) const override {
    multiply_.run(Operands(*this, a, b, c, operands), workspace);
  }

 private:
  class Operands final : public TileMatrices {
   public:
    Operands(const TileProduct& of, const void* a, const void* b, void* c,
             std::span<const void* const> operands)
        : TileMatrices({a, of.s_.a, of.s_.m, of.s_.k, of.s_.a_row, of.s_.a_col},
                       {b, of.s_.b, of.s_.k, of.s_.n, of.s_.b_row, of.s_.b_col}, of.s_.packed),
          of_(of),
          s_(of.s_),
          c_(c),
          operands_(operands) {}

    Ahead ahead(const TileRows& rows, int64_t steps) const override {
      size_t operand = 0;
      for (const GemmPost& post : s_.post) {
        if (is_whole(post, s_)) {
          const int64_t size = size_of(post.dtype), lines = (rows.columns * size + 63) / 64;
          const char* at = static_cast<const char*>(operands_[operand]);
          return {at + (rows.m * s_.n + rows.n) * size,   lines, rows.rows, s_.n * size, 0,
                  (lines * rows.rows + steps - 1) / steps};
        }
        if (post.count > 0) ++operand;
      }
      return {};
    }

    void finish(const TileRows& rows) const override {
      size_t operand = 0;
      for (size_t i = 0; i < of_.posts_.size(); ++i) {
        const GemmPost& post = s_.post[i];
        const bool whole = is_whole(post, s_);
        const char* with = nullptr;
        if (post.count > 0) {
          const int64_t first = whole ? rows.m * s_.n + rows.n : post.count > 1 ? rows.n : 0;
          with = static_cast<const char*>(operands_[operand++]) + first * size_of(post.dtype);
        }
        of_.posts_[i]({rows.at, rows.row, rows.rows, rows.columns, with,
                       whole ? s_.n * size_of(post.dtype) : 0, static_cast<float>(post.alpha)});
      }
    }

    /// 32 numbers of a row each, from left to right.
    int64_t pieces(const TileRows& rows) const override { return rows.rows * across(rows); }
    void write(const TileRows& rows, int64_t piece) const override {
      if (s_.out == DType::f32) {
        write(rows, piece, static_cast<float*>(c_));
      } else {
        write(rows, piece, static_cast<uint16_t*>(c_));
      }
    }

   private:
    static int64_t across(const TileRows& rows) { return divide_up(rows.columns, kSquare); }

    template <class T>
    void write(const TileRows& rows, int64_t piece, T* c) const {
      const int64_t i = piece / across(rows), j = piece % across(rows) * kSquare,
                    left = rows.columns - j;
      const float* from = rows.at + i * rows.row + j;
      c += (rows.m + i) * s_.n + rows.n + j;
      if (!of_.streams_) return write_few(from, c, std::min(kSquare, left));
      // Lines of memory, behind the numbers up to the first.
      constexpr int64_t kInLine = 64 / sizeof(T);
      const auto off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(c) % 64 / sizeof(T)),
                 lead = off == 0 ? 0 : kInLine - off;
      if (j == 0) write_few(from, c, std::min(lead, left));
      int64_t at = lead;
      for (; at + kInLine <= left && at < kSquare; at += kInLine) {
        if constexpr (sizeof(T) == sizeof(float)) {
          stream(c + at, load_vector<Units>(from + at));
        } else {
          stream(c + at, narrow_line(from + at));
        }
      }
      if (at < kSquare + lead) write_few(from + at, c + at, left - at);
    }

    template <class T>
    static void write_few(const float* from, T* to, int64_t count) {
      for (int64_t j = 0; j < count; j += kLanes)
        store_lanes(to + j, load_lanes(from + j), std::min(kLanes, count - j));
    }

    const TileProduct& of_;
    const ProductShape& s_;
    void* c_;
    std::span<const void* const> operands_;
  };

  ProductShape s_;
  std::vector<Post> posts_;
  TileMultiply multiply_;
  bool streams_ = false;  // the result is written past the caches
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
  constexpr int64_t kLeast = TileMultiply::kLeast;
  if (s.m < kLeast || s.n < kLeast || s.k < kLeast) {
    *why = str("tiles take products of at least ", kLeast, " rows, columns and terms");
    return nullptr;
  }
  std::vector<Post> posts;
  for (const GemmPost& post : s.post) {
    posts.push_back(post_of(post));
    if (posts.back() == nullptr) {
      *why = "tiles know no post-op " + post.op;
      return nullptr;
    }
    if (post.count > 1 && post.count != s.n && !is_whole(post, s)) {
      *why = post.op + " behind it has an operand that is neither the result's size nor a row's";
      return nullptr;
    }
  }
  return std::make_shared<TileProduct>(s, std::move(posts));
}

}  // namespace shardrun::cpu
