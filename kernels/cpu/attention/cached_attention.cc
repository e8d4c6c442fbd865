// Attention of a few rows to kept keys and values.
//
// A row's scores, their softmax and its sum of values are each computed in one order, which depends
// on nothing but the row: results are the same bits however rows, heads or threads are cut.
#include "base/lanes.h"
#include "base/round_up.h"
#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kRows = 4;     // that read a key or value together
constexpr int64_t kVectors = 4;  // of a row's result at a time

struct Sizes {
  int64_t B = 0, H = 0, R = 0, D = 0, S = 0, Dv = 0;
  int64_t queries = 1;
  float scale = 1;
  bool has_mask = false, boolean = false;
  int64_t mask_stride[4] = {0, 0, 0, 0};

  int64_t heads() const { return B * H; }
  int64_t padded() const { return round_up(D, kLanes); }
  int64_t row() const { return round_up(S, kLanes); }  // of scores: they begin at whole vectors
  /// One position's queries take every key once, heads side by side, as they lie in memory. Where
  /// there are more, a head's keys stay in cache from one block of rows to the next.
  bool side_by_side() const { return R <= kRows; }
  int64_t threads() const {
    return std::clamp<int64_t>(heads(), 1, static_cast<int64_t>(omp_get_max_threads()));
  }
  /// Scores and queries of a block of rows.
  int64_t scratch_of(int64_t heads) const {
    return round_up_64(heads * kRows * (row() + padded()) * static_cast<int64_t>(sizeof(float)));
  }
  int64_t heads_at_once() const {
    return side_by_side() ? (heads() + threads() - 1) / threads() : 1;
  }
};

Sizes sizes_of(const KernelCall& call) {
  Sizes s;
  const Shape &q = call.in[0].shape, &v = call.in[2].shape;
  s.B = q[0], s.H = q[1], s.R = q[2], s.D = q[3], s.S = v[0], s.Dv = v[3];
  s.queries = call.node.attrs.i("queries");
  s.scale = static_cast<float>(call.node.attrs.f("scale"));
  s.has_mask = call.node.attrs.i("has_mask", 0) != 0;
  if (s.has_mask) {
    s.boolean = call.in[4].dtype == DType::boolean;
    const Shape strides = row_major_strides(call.in[4].shape);
    for (size_t d = 0; d < 4; ++d) s.mask_stride[d] = call.in[4].shape[d] == 1 ? 0 : strides[d];
  }
  return s;
}

/// In one order, whatever the compiler's vectors are.
float sum_of(Lanes v) {
  float half[8];
  for (int i = 0; i < 8; ++i) half[i] = v[i] + v[i + 8];
  for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

template <class T>
class Rows {
 public:
  Rows(const Sizes& s, const KernelArgs& args)
      : s_(s),
        args_(args),
        q_(args.in[0].as<T>()),
        k_(args.in[1].as<T>()),
        v_(args.in[2].as<T>()),
        y_(args.out[0].as<T>()) {}

  /// Rows [first, first + rows) of heads [begin, end), rows at most kRows.
  void run(int64_t begin, int64_t end, int64_t first, int64_t rows, float* scratch) const {
    const int64_t width = s_.padded();
    float *scores = scratch, *queries = scratch + (end - begin) * kRows * s_.row();
    const auto row_of = [&](int64_t head, int64_t r) {
      return scores + ((head - begin) * kRows + r) * s_.row();
    };
    const auto query_of = [&](int64_t head, int64_t r) {
      return queries + ((head - begin) * kRows + r) * width;
    };
    int64_t seen[kRows], most = 0;
    for (int64_t r = 0; r < rows; ++r) {
      seen[r] = std::clamp<int64_t>(position((first + r) / s_.queries) + 1, 0, s_.S);
      most = std::max(most, seen[r]);
      for (int64_t head = begin; head < end; ++head)
        take_query(q_ + (head * s_.R + first + r) * s_.D, query_of(head, r));
    }
    for (int64_t s = 0; s < most; ++s) {
      for (int64_t head = begin; head < end; ++head) {
        const T* key = k_ + (s * s_.heads() + head) * s_.D;
        for (int64_t r = 0; r < rows; ++r) row_of(head, r)[s] = dot(query_of(head, r), key);
      }
    }
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t r = 0; r < rows; ++r)
        take_softmax(head, (first + r) / s_.queries, row_of(head, r), seen[r], most);
    }
    for (int64_t d = 0; d < s_.Dv; d += kVectors * kLanes) {
      for (int64_t head = begin; head < end; ++head)
        add_values(head, first, rows, row_of(head, 0), most, d);
    }
  }

 private:
  int64_t position(int64_t p) const {
    return args_.in[3].type.dtype == DType::i64 ? args_.in[3].as<int64_t>()[p]
                                                : args_.in[3].as<int32_t>()[p];
  }

  void take_query(const T* from, float* to) const {
    for (int64_t d = 0; d < s_.D; d += kLanes)
      store_lanes(to + d, load_lanes(from + d, std::min(kLanes, s_.D - d)) * s_.scale);
  }

  float dot(const float* query, const T* key) const {
    Lanes sum{};
    int64_t d = 0;
    for (; d + kLanes <= s_.D; d += kLanes) sum += load_lanes(query + d) * load_lanes(key + d);
    if (d < s_.D) sum += load_lanes(query + d) * load_lanes(key + d, s_.D - d);
    return sum_of(sum);
  }

  /// Scores into weights, of which those behind `seen` are 0 up to `most`.
  void take_softmax(int64_t head, int64_t p, float* row, int64_t seen, int64_t most) const {
    if (s_.has_mask) {
      const int64_t at =
          head / s_.H * s_.mask_stride[0] + head % s_.H * s_.mask_stride[1] + p * s_.mask_stride[2];
      for (int64_t i = 0; i < seen; ++i) add_mask(at + i * s_.mask_stride[3], row[i]);
    }
    float top = kNever;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < seen; ++i) top = row[i] > top ? row[i] : top;
    const float inverse = exp_row(row, seen, top).inverse;
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) row[i] *= inverse;
    std::fill(row + seen, row + most, 0.0f);
  }

  void add_mask(int64_t at, float& score) const {
    const TensorView& mask = args_.in[4];
    if (s_.boolean) {
      if (mask.as<uint8_t>()[at] == 0) score = kNever;
    } else {
      score +=
          mask.type.dtype == DType::f32 ? mask.as<float>()[at] : as_float(mask.as<uint16_t>()[at]);
    }
  }

  /// Columns [d, …) of the head's results, kVectors vectors of them.
  void add_values(int64_t head, int64_t first, int64_t rows, const float* weights, int64_t most,
                  int64_t d) const {
    const int64_t columns = std::min(kVectors * kLanes, s_.Dv - d);
    Lanes sums[kRows][kVectors] = {};
    for (int64_t s = 0; s < most; ++s) {
      const T* value = v_ + (s * s_.heads() + head) * s_.Dv + d;
      Lanes of[kVectors];
      for (int64_t i = 0; i < kVectors; ++i) {
        const int64_t n = std::clamp<int64_t>(columns - i * kLanes, 0, kLanes);
        of[i] = n == 0 ? Lanes{} : load_lanes(value + i * kLanes, n);
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < kVectors; ++i) sums[r][i] += weights[r * s_.row() + s] * of[i];
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      T* y = y_ + (head * s_.R + first + r) * s_.Dv + d;
      for (int64_t i = 0; i * kLanes < columns; ++i)
        store_lanes(y + i * kLanes, sums[r][i], std::min(kLanes, columns - i * kLanes));
    }
  }

  const Sizes& s_;
  const KernelArgs& args_;
  const T *q_, *k_, *v_;
  T* y_;
};

template <class T>
void run(const Sizes& s, const KernelArgs& args) {
  const Rows<T> rows(s, args);
  auto* work = static_cast<char*>(args.workspace);
  const int64_t threads = s.threads(), scratch = s.scratch_of(s.heads_at_once());
  const auto scratch_of = [&](int64_t thread) {
    return reinterpret_cast<float*>(work + thread * scratch);
  };
  if (s.side_by_side()) {
#pragma omp parallel for num_threads(static_cast <int>(threads)) if (threads > 1)
    for (int64_t t = 0; t < threads; ++t) {
      const int64_t begin = s.heads() * t / threads, end = s.heads() * (t + 1) / threads;
      if (begin < end) rows.run(begin, end, 0, s.R, scratch_of(t));
    }
    return;
  }
  const int64_t blocks = (s.R + kRows - 1) / kRows;
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(dynamic) if (threads > 1)
  for (int64_t head = 0; head < s.heads(); ++head) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = block * kRows;
      rows.run(head, head + 1, first, std::min(kRows, s.R - first),
               scratch_of(omp_get_thread_num()));
    }
  }
}

std::optional<std::string> refuses(const KernelCall& call) {
  if (!is_f32_or_bf16(call.in[0].dtype)) return "wants f32 or bf16";
  if (call.in.size() > 4 && call.in[4].dtype != DType::boolean && !is_f32_or_bf16(call.in[4].dtype))
    return "wants a mask of f32, bf16 or booleans";
  return std::nullopt;
}

PreparedKernel prepare(const KernelCall& call) {
  const Sizes s = sizes_of(call);
  const bool bf16 = call.in[0].dtype == DType::bf16;
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            bf16 ? run<uint16_t>(s, args) : run<float>(s, args);
          },
          s.threads() * s.scratch_of(s.heads_at_once()), "cpu:rows"};
}

}  // namespace

KernelList cached_attention_kernels() {
  return {{"cached_attention", "cpu:rows", refuses, prepare}};
}

}  // namespace shardrun::cpu
