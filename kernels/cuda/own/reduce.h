// Sums, products, maxima and minima over any dims, in f32 and of integers; the sum of squares;
// argmax, argmin and top_k; cumsum. Where results are few, parts of what makes one are folded side
// by side and their results once more, in an order that the shape alone decides.
#pragma once

#include <cmath>
#include <limits>

#include "graph/attrs.h"
#include "kernels/cuda/own/lines.h"
#include "kernels/cuda/own/many.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// How elements become one.
struct SumFold {
  SR_HOST_DEVICE static float start() { return 0; }
  SR_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct ProductFold {
  SR_HOST_DEVICE static float start() { return 1; }
  SR_HOST_DEVICE float operator()(float a, float b) const { return a * b; }
};
struct MaxFold {  // NaN stays
  SR_HOST_DEVICE static float start() { return -INFINITY; }
  SR_HOST_DEVICE float operator()(float a, float b) const { return a != a || a > b ? a : b; }
};
struct MinFold {
  SR_HOST_DEVICE static float start() { return INFINITY; }
  SR_HOST_DEVICE float operator()(float a, float b) const { return a != a || a < b ? a : b; }
};

/// A tensor's dims, neighbours of one kind as one: those that stay and those that are folded.
struct FoldedDims {
  static constexpr int kMost = 4;
  struct Loops {
    int dims = 0;
    int64_t size[kMost] = {}, stride[kMost] = {};
    int64_t count = 1;

    /// Where the i-th in row-major order lies.
    SR_HOST_DEVICE int64_t place(int64_t i) const {
      if (dims == 1) return i * stride[0];
      int64_t at = 0;
      for (int d = dims - 1; d >= 0; --d) {
        at += i % size[d] * stride[d];
        i /= size[d];
      }
      return at;
    }
  };
  Loops kept, folded;
  bool last_folded = false;

  /// Nullopt if more than kMost of a kind are left.
  static std::optional<FoldedDims> of(const Shape& shape, const std::vector<int64_t>& axes) {
    FoldedDims out;
    const Shape strides = row_major_strides(shape);
    int before = -1;  // kind of the dim before: 1 is folded
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const bool folds = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
      Loops& loops = folds ? out.folded : out.kept;
      if (before != static_cast<int>(folds)) {
        if (loops.dims == kMost) return std::nullopt;
        loops.size[loops.dims++] = 1;
      }
      loops.size[loops.dims - 1] *= shape[d];
      loops.stride[loops.dims - 1] = strides[d];
      loops.count *= shape[d];
      before = static_cast<int>(folds);
    }
    out.last_folded = before == 1;
    return out;
  }
};

/// Where results go: f32 or bf16.
struct FoldSink {
  void* to;
  bool bf16;
  SR_HOST_DEVICE void put(int64_t i, float x) const {
    if (bf16) {
      assign(static_cast<Bf16*>(to)[i], x);
    } else {
      static_cast<float*>(to)[i] = x;
    }
  }
};

/// The last dim is folded: a team for each result, or for each of `chunks` parts of it, which go to
/// sink[chunk * results + result].
template <class T, class Fold>
struct FoldRows {
  const T* x;
  FoldSink sink;
  FoldedDims dims;
  int64_t piece;  // elements side by side that are folded in one go
  int64_t pieces_per_chunk;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t result = row % dims.kept.count, chunk = row / dims.kept.count;
    const int64_t base = dims.kept.place(result), length = dims.folded.count;
    float value = Fold::start();
    int64_t begin = chunk * pieces_per_chunk * piece, end = begin + pieces_per_chunk * piece;
    if (end > length) end = length;
    for (; begin < end; begin += piece) {
      const int64_t at = base + dims.folded.place(begin);
      columns<T>(team, at, end - begin < piece ? end - begin : piece, [&](auto n, int64_t c) {
        float v[n()];
        read(x + at + c, v);
        for (float each : v) value = Fold{}(value, each);
      });
    }
    value = team.fold(value, Fold{}, Fold::start());
    if (team.rank() == 0) sink.put(row, value);
  }
};

/// One thread for N results side by side and one part of what they are made of.
template <class T, class Fold, int N>
struct FoldColumns {
  const T* x;
  FoldSink sink;
  FoldedDims dims;
  int64_t chunk_length;

  SR_HOST_DEVICE void operator()(int64_t item) const {
    const int64_t groups = dims.kept.count / N, chunk = item / groups;
    const int64_t result = item % groups * N, base = dims.kept.place(result);
    int64_t begin = chunk * chunk_length, end = begin + chunk_length;
    if (end > dims.folded.count) end = dims.folded.count;
    float value[N];
    for (float& each : value) each = Fold::start();
    for (; begin < end; ++begin) {
      float v[N];
      read(x + base + dims.folded.place(begin), v);
      for (int i = 0; i < N; ++i) value[i] = Fold{}(value[i], v[i]);
    }
    for (int i = 0; i < N; ++i) sink.put(chunk * dims.kept.count + result + i, value[i]);
  }
};

/// Parts [chunks, results] to results, by a thread each where parts are few, else by a team.
template <class Fold>
struct FoldParts {
  const float* parts;
  FoldSink sink;
  int64_t results, chunks;

  SR_HOST_DEVICE void operator()(int64_t result) const {
    float value = Fold::start();
    for (int64_t k = 0; k < chunks; ++k) value = Fold{}(value, parts[k * results + result]);
    sink.put(result, value);
  }
  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t result) const {
    float value = Fold::start();
    for (int64_t k = team.rank(); k < chunks; k += team.size())
      value = Fold{}(value, parts[k * results + result]);
    value = team.fold(value, Fold{}, Fold::start());
    if (team.rank() == 0) sink.put(result, value);
  }
};

/// How a fold is cut, by the shape alone.
struct FoldSplit {
  FoldedDims dims;
  bool rows = false;
  bool wide = false;  // of columns: 16 bytes of results at a time
  int64_t chunks = 1;
  int64_t piece = 1, pieces_per_chunk = 1;  // of rows
  int64_t chunk_length = 1;                 // of columns

  FoldSplit(FoldedDims from, DType dtype) : dims(from) {
    const int64_t length = dims.folded.count, results = dims.kept.count;
    rows = dims.last_folded && length > 32;
    if (rows) {
      constexpr int64_t kPiece = 2048, kTeams = 1024, kLeast = 8192;  // elements worth a team
      piece =
          dims.folded.dims == 1 ? std::min(kPiece, length) : dims.folded.size[dims.folded.dims - 1];
      const int64_t pieces = (length + piece - 1) / piece;
      const int64_t wanted = std::min({(kTeams + results - 1) / std::max<int64_t>(results, 1),
                                       (length + kLeast - 1) / kLeast, pieces});
      pieces_per_chunk = (pieces + wanted - 1) / std::max<int64_t>(wanted, 1);
      chunks = (pieces + pieces_per_chunk - 1) / pieces_per_chunk;
    } else {
      const int64_t width = 16 / size_of(dtype);
      wide = !dims.last_folded && dims.kept.dims > 0 &&
             dims.kept.size[dims.kept.dims - 1] % width == 0;
      constexpr int64_t kThreads = 131072, kLeast = 32, kMostChunks = 512;
      const int64_t threads = std::max<int64_t>(1, wide ? results / width : results);
      const int64_t wanted =
          std::clamp<int64_t>(std::min(kThreads / threads, length / kLeast), 1, kMostChunks);
      chunk_length = std::max<int64_t>(1, (length + wanted - 1) / wanted);
      chunks = std::max<int64_t>(1, (length + chunk_length - 1) / chunk_length);
    }
  }

  int64_t workspace_bytes() const {
    return chunks == 1 ? 0 : chunks * dims.kept.count * static_cast<int64_t>(sizeof(float));
  }
};

template <class On, class Fold>
void run_fold(const FoldSplit& split, const KernelArgs& args, const char* name) {
  const int64_t results = split.dims.kept.count;
  if (results == 0) return;
  const FoldSink last{args.out[0].data, args.out[0].type.dtype == DType::bf16};
  const FoldSink sink = split.chunks == 1 ? last : FoldSink{args.workspace, false};
  with_element(args.in[0].type.dtype, [&](auto element) {
    using T = decltype(element);
    const T* x = args.in[0].as<T>();
    if (split.rows) {
      const FoldRows<T, Fold> body{x, sink, split.dims, split.piece, split.pieces_per_chunk};
      On::rows(args, split.chunks * results, split.pieces_per_chunk * split.piece, body, name);
    } else if (split.wide) {
      constexpr int kN = kWide<T>;
      const FoldColumns<T, Fold, kN> body{x, sink, split.dims, split.chunk_length};
      On::each(args, split.chunks * (results / kN), body, name);
    } else {
      const FoldColumns<T, Fold, 1> body{x, sink, split.dims, split.chunk_length};
      On::each(args, split.chunks * results, body, name);
    }
  });
  if (split.chunks == 1) return;
  const FoldParts<Fold> parts{static_cast<const float*>(args.workspace), last, results,
                              split.chunks};
  if (split.chunks <= 32) {
    On::each(args, results, parts, name);
  } else {
    On::rows(args, results, split.chunks, parts, name);
  }
}

// ---- integers ----

enum class Join { sum, product, max, min };

/// In i64, a team for each result.
template <class T>
struct FoldIntegers {
  const T* x;
  T* to;
  FoldedDims dims;
  Join join;
  int64_t start;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t result) const {
    const auto both = [this](int64_t a, int64_t b) {
      switch (join) {
        case Join::sum: return a + b;
        case Join::product: return a * b;
        case Join::max: return a > b ? a : b;
        default: return a < b ? a : b;
      }
    };
    const int64_t base = dims.kept.place(result);
    int64_t value = start;
    for (int64_t i = team.rank(); i < dims.folded.count; i += team.size())
      value = both(value, as_number(x[base + dims.folded.place(i)]));
    value = team.fold(value, both, start);
    if (team.rank() == 0) assign(to[result], value);
  }
};

/// The least or greatest number of an integer type, where a maximum or a minimum begins.
inline int64_t integer_limit(DType dtype, bool greatest) {
  if (dtype == DType::boolean) return greatest ? 1 : 0;
  if (dtype == DType::i32)
    return greatest ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int32_t>::min();
  return greatest ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

template <class On, Join kJoin>
PreparedKernel prepare_integers(const KernelCall& call) {
  const TensorType& in = call.in[0];
  const FoldedDims dims = *FoldedDims::of(in.shape, call.node.attrs.ints("axes"));
  const int64_t start = kJoin == Join::sum       ? 0
                        : kJoin == Join::product ? 1
                                                 : integer_limit(in.dtype, kJoin == Join::min);
  PreparedKernel prepared;
  prepared.run = [=, dtype = in.dtype](const KernelArgs& args) {
    with_integer(dtype, [&](auto element) {
      using T = decltype(element);
      const FoldIntegers<T> body{args.in[0].as<T>(), args.out[0].as<T>(), dims, kJoin, start};
      On::rows(args, dims.kept.count, dims.folded.count, body, "reduce");
    });
  };
  prepared.impl = "cuda:integers";
  return prepared;
}

inline Refusal integers_refuse(const KernelCall& call) {
  if (is_float(call.in[0].dtype)) return "folds integers";
  if (auto reason = refuse_other_numbers(call.in[0].dtype)) return reason;
  if (!FoldedDims::of(call.in[0].shape, call.node.attrs.ints("axes")))
    return "more dims than its loops have";
  return refuse_more(call, 1, 1, {"axes", "keepdims", "out_dtype"});
}

inline Refusal fold_refuses(const KernelCall& call) {
  if (!is_float(call.in[0].dtype)) return str("computes in f32, not ", call.in[0].dtype);
  if (auto reason = refuse_other_floats(call)) return reason;
  if (auto reason = refuse_more(call, 1, 1, {"axes", "keepdims", "out_dtype"})) return reason;
  if (!FoldedDims::of(call.in[0].shape, call.node.attrs.ints("axes")))
    return "more dims than its loops have";
  return std::nullopt;
}

template <class On, class Fold>
PreparedKernel prepare_fold(const KernelCall& call) {
  const TensorType& in = call.in[0];
  const FoldSplit split(*FoldedDims::of(in.shape, call.node.attrs.ints("axes")), in.dtype);
  PreparedKernel prepared;
  prepared.run = [split](const KernelArgs& args) { run_fold<On, Fold>(split, args, "reduce"); };
  prepared.workspace_bytes = split.workspace_bytes();
  prepared.impl = "cuda:fold";
  return prepared;
}

// ---- the sum of all squares ----

/// A tensor of many.
struct Summed {
  const void* x;
  int64_t count;
  int32_t piece;
  bool narrow;  // bf16, else f32
};

struct SquaresPiece {
  float* sums;  // for each piece
  Many<Summed> all;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const Summed& of = all.of(row);
    float sum = of.narrow ? squares<Bf16>(team, of, row) : squares<float>(team, of, row);
    sum = team.sum(sum);
    if (team.rank() == 0) sums[row] = sum;
  }

 private:
  template <class T, class Team>
  SR_HOST_DEVICE static float squares(const Team& team, const Summed& of, int64_t row) {
    const T* from = static_cast<const T*>(of.x) + piece_begin(of, row);
    float sum = 0;
    columns<T>(team, 0, piece_length(of, row), [&](auto n, int64_t c) {
      float v[n()];
      read(from + c, v);
      for (float each : v) sum += each * each;
    });
    return sum;
  }
};

inline Refusal squares_refuse(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  return refuse_more(call, call.in.size(), 1, {});
}

template <class On>
PreparedKernel prepare_squares(const KernelCall& call) {
  int64_t pieces = 0;
  for (const TensorType& t : call.in) pieces += pieces_of(element_count(t.shape));
  PreparedKernel prepared;
  prepared.run = [pieces](const KernelArgs& args) {
    auto* sums = static_cast<float*>(args.workspace);
    const SquaresPiece body{sums, many<Summed>(args, args.in.size())};
    On::rows(args, pieces, kPieceWork, body, "squares");
    add_pieces<On>(args, sums, pieces, args.out[0].as<float>());
  };
  prepared.workspace_bytes = pieces * 4;
  prepared.kept_bytes = static_cast<int64_t>(call.in.size() * sizeof(Summed));
  prepared.keep = [](const KernelArgs& args) {
    std::vector<Summed> all;
    for (const TensorView& x : args.in)
      all.push_back({x.data, x.count(), 0, x.type.dtype == DType::bf16});
    return table_of(std::move(all));
  };
  prepared.impl = "cuda:pieces";
  return prepared;
}

// ---- argmax, argmin ----

/// The place of a line's largest element, or of its smallest: the first of several, or the last.
/// What is NaN is passed over, but for the first, which then stays the best: as the reference.
template <class T>
struct ArgRow {
  const T* x;
  int64_t* to;
  Lines lines;
  float sign;  // 1: largest, -1: smallest
  bool last;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t line) const {
    const T* from = x + lines.at(line);
    float best = -INFINITY;
    for (int64_t k = team.rank(); k < lines.length; k += team.size())
      best = larger(sign * as_float(from[k * lines.stride]), best);
    best = team.max(best);
    float place = -INFINITY;  // of the first: negated
    for (int64_t k = team.rank(); k < lines.length; k += team.size()) {
      const float mine = last ? static_cast<float>(k) : -static_cast<float>(k);
      if (sign * as_float(from[k * lines.stride]) == best && mine > place) place = mine;
    }
    place = team.max(place);
    if (team.rank() == 0) {
      const float first = lines.length > 0 ? as_float(from[0]) : 0;
      const bool none = first != first || place == -INFINITY;
      to[line] = none ? 0 : static_cast<int64_t>(last ? place : -place);
    }
  }

  /// Where NaN is none.
  SR_HOST_DEVICE static float larger(float a, float b) { return a > b ? a : b; }
};

inline Refusal arg_refuses(const KernelCall& call) {
  if (!is_float(call.in[0].dtype)) return str("compares in f32, not ", call.in[0].dtype);
  if (auto reason = refuse_other_floats(call)) return reason;
  if (call.in[0].shape[static_cast<size_t>(call.node.attrs.i("axis"))] >= int64_t{1} << 24)
    return "counts to 2^24";
  return refuse_more(call, 1, 1, {"axis", "keepdims", "select_last_index"});
}

template <class On>
PreparedKernel prepare_arg(const KernelCall& call) {
  const Lines lines = Lines::of(call.in[0].shape, static_cast<size_t>(call.node.attrs.i("axis")));
  const int64_t count = element_count(call.out[0].shape);  // one also of an empty line
  const float sign = call.node.op == "argmax" ? 1.0f : -1.0f;
  const bool last = call.node.attrs.i("select_last_index", 0) != 0;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (count == 0) return;
    with_element(args.in[0].type.dtype, [&](auto element) {
      using T = decltype(element);
      const ArgRow<T> body{args.in[0].as<T>(), args.out[0].as<int64_t>(), lines, sign, last};
      On::rows(args, count, lines.length, body, "argmax");
    });
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

// ---- cumsum ----

/// A thread for each line, one element after the other.
template <class T>
struct CumsumLine {
  const T* x;
  T* to;
  Lines lines;
  bool exclusive, reverse;

  SR_HOST_DEVICE void operator()(int64_t line) const {
    const int64_t base = lines.at(line);
    decltype(as_number(T{})) sum = 0;
    for (int64_t k = 0; k < lines.length; ++k) {
      const int64_t at = base + (reverse ? lines.length - 1 - k : k) * lines.stride;
      const auto before = sum;
      sum += as_number(x[at]);
      assign(to[at], exclusive ? before : sum);
    }
  }
};

inline Refusal cumsum_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_numbers(call.in[0].dtype)) return reason;
  return refuse_more(call, 1, 1, {"axis", "exclusive", "reverse"});
}

template <class On>
PreparedKernel prepare_cumsum(const KernelCall& call) {
  const Lines lines = Lines::of(call.in[0].shape, static_cast<size_t>(call.node.attrs.i("axis")));
  const bool exclusive = call.node.attrs.i("exclusive", 0) != 0,
             reverse = call.node.attrs.i("reverse", 0) != 0;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    with_number(args.in[0].type.dtype, [&](auto element) {
      using T = decltype(element);
      const CumsumLine<T> body{args.in[0].as<T>(), args.out[0].as<T>(), lines, exclusive, reverse};
      On::each(args, lines.count, body, "cumsum");
    });
  };
  prepared.impl = "cuda:lines";
  return prepared;
}

// ---- top_k ----

/// A thread for each line, which looks through all of it for each of the k: few of not many, as of
/// a mixture's experts.
template <class T>
struct TopKLine {
  const T* x;
  T* values;
  int64_t* indices;
  Lines lines;
  int64_t k;
  bool largest;

  /// NaN counts as the greatest.
  template <class N>
  SR_HOST_DEVICE static bool greater(N a, N b) {
    return a > b || (a != a && b == b);
  }
  SR_HOST_DEVICE bool before(const T* line, int64_t a, int64_t b) const {
    const auto p = as_number(line[a * lines.stride]), q = as_number(line[b * lines.stride]);
    if (largest ? greater(p, q) : greater(q, p)) return true;
    return !(largest ? greater(q, p) : greater(p, q)) && a < b;
  }
  SR_HOST_DEVICE void operator()(int64_t line) const {
    const T* from = x + lines.at(line);
    const int64_t to = Lines{lines.count, k, lines.stride}.at(line);
    int64_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t e = 0; e < lines.length; ++e) {
        if (last >= 0 && !before(from, last, e)) continue;
        if (best < 0 || before(from, e, best)) best = e;
      }
      values[to + j * lines.stride] = from[best * lines.stride];
      indices[to + j * lines.stride] = best;
      last = best;
    }
  }
};

inline Refusal top_k_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_numbers(call.in[0].dtype)) return reason;
  return refuse_more(call, 1, 2, {"axis", "k", "largest"});
}

template <class On>
PreparedKernel prepare_top_k(const KernelCall& call) {
  const Lines lines = Lines::of(call.in[0].shape, static_cast<size_t>(call.node.attrs.i("axis")));
  const int64_t k = call.node.attrs.i("k");
  const bool largest = call.node.attrs.i("largest") != 0;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    with_number(args.in[0].type.dtype, [&](auto element) {
      using T = decltype(element);
      const TopKLine<T> body{
          args.in[0].as<T>(), args.out[0].as<T>(), args.out[1].as<int64_t>(), lines, k, largest};
      On::each(args, lines.count, body, "top_k");
    });
  };
  prepared.impl = "cuda:lines";
  return prepared;
}

template <class On>
KernelList reduce_kernels_on() {
  return {{"reduce_sum", "cuda:fold", fold_refuses, prepare_fold<On, SumFold>},
          {"reduce_max", "cuda:fold", fold_refuses, prepare_fold<On, MaxFold>},
          {"reduce_min", "cuda:fold", fold_refuses, prepare_fold<On, MinFold>},
          {"reduce_prod", "cuda:fold", fold_refuses, prepare_fold<On, ProductFold>},
          {"reduce_sum", "cuda:integers", integers_refuse, prepare_integers<On, Join::sum>},
          {"reduce_max", "cuda:integers", integers_refuse, prepare_integers<On, Join::max>},
          {"reduce_min", "cuda:integers", integers_refuse, prepare_integers<On, Join::min>},
          {"reduce_prod", "cuda:integers", integers_refuse, prepare_integers<On, Join::product>},
          {"cumsum", "cuda:lines", cumsum_refuses, prepare_cumsum<On>},
          {"top_k", "cuda:lines", top_k_refuses, prepare_top_k<On>},
          {"reduce_sum_squares", "cuda:pieces", squares_refuse, prepare_squares<On>},
          {"argmax", "cuda:rows", arg_refuses, prepare_arg<On>},
          {"argmin", "cuda:rows", arg_refuses, prepare_arg<On>}};
}

}  // namespace shardrun::cuda
