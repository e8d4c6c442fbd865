// Products of matrices whose lines begin anywhere, as rows of 50257 bf16 numbers do, where the fast
// products of libraries want boundaries of 16 bytes. The other way to do them: some of the lines at
// a time are copied to such boundaries and multiplied from there, or made there and copied back.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/round_up.h"
#include "device/cuda/index.h"
#include "kernels/cuda/cublas/lt_product.h"

namespace shardrun::cuda {

/// A line is a column of cuBLAS's as it is stored: of a [rows, depth] one of `depth`.
struct EvenedPlan {
  enum class Of { a, b, d } of = Of::a;  // which matrix is copied
  int64_t width = 0, pitch = 0,
          from_pitch = 0;  // elements of a line; apart in the copy, and before
  /// a, b, d: where its matrices begin, the copied one in the copy.
  struct Product {
    LtShape shape;
    int64_t a = 0, b = 0, d = 0;
  };
  struct Part {
    int64_t first = 0, lines = 0;   // of the copied matrix
    std::vector<Product> products;  // but a few rows and columns, and those
  };
  std::vector<Part> parts;  // parts of the depth add to d: `adds_c`, where c is d
  int64_t copy_bytes = 0;   // of the longest part, on a boundary of 256
  /// Of the other operand, where lines of zeros behind it make its depth the copy's: all of it and
  /// these, elements.
  int64_t other_elements = 0, other_zeros = 0;
  int64_t other_bytes() const { return round_up(2 * (other_elements + other_zeros), 256); }
  int64_t workspace_bytes() const;
};

/// Nullopt where nothing is to be gained or it cannot be done: f32, lines that all lie well, or of
/// two matrices badly, several products, an epilogue, fewer than `least_flops`, parts of a depth
/// whose sums would be rounded, a result with gaps between its lines.
/// A copy has about `most_bytes` at most, but a line or 256.
///
/// cuBLAS also asks that rows, columns or depth be multiples of 16 bytes where they lie dense
/// (its guide, "Tensor Core Usage"): the few that are too many are products of their own, and a
/// depth is filled up with zeros.
std::optional<EvenedPlan> evened(const LtShape& shape, double least_flops = 1e10,
                                 int64_t most_bytes = int64_t{512} << 20);

/// Eight elements of 2 bytes. What is behind the end of a line is 0.
struct EvenLines {
  struct alignas(16) Eight {
    uint16_t element[8];
  };
  const uint16_t* from;
  Eight* to;
  int64_t width, from_pitch;
  Divisor groups;  // of a line of the copy

  SR_HOST_DEVICE void operator()(int64_t i) const {
    int64_t line = i;
    const int64_t at = groups.split(line) * 8;
    const uint16_t* const read = from + line * from_pitch + at;
    Eight eight;
    if (at + 8 <= width) {
      for (int k = 0; k < 8; ++k) eight.element[k] = read[k];
    } else {
      for (int k = 0; k < 8; ++k)
        eight.element[k] = at + k < width ? read[k] : static_cast<uint16_t>(0);
    }
    to[i] = eight;
  }
};
void launch_even_lines(cudaStream_t stream, const EvenLines& body, int64_t count);

/// The other way: lines of `width` elements, one behind the other without gaps, of such that begin
/// `pitch` apart. Eight elements of `to`, which begins on 16 bytes; fewer at its end, `count`.
struct DenseLines {
  const uint16_t* from;
  uint16_t* to;
  int64_t width, pitch, count;
  Divisor by_width;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i * 8;
    int64_t line = at;
    const int64_t column = by_width.split(line);
    const uint16_t* const read = from + line * pitch + column;
    EvenLines::Eight eight;
    if (column + 8 <= width && at + 8 <= count) {
      for (int k = 0; k < 8; ++k) eight.element[k] = read[k];
    } else {  // from the next line, too
      for (int k = 0; k < 8 && at + k < count; ++k) {
        const int64_t lines = (column + k) / width;
        eight.element[k] = read[lines * (pitch - width) + k];
      }
    }
    if (at + 8 <= count) {
      *reinterpret_cast<EvenLines::Eight*>(to + at) = eight;
    } else {
      for (int k = 0; at + k < count; ++k) to[at + k] = eight.element[k];
    }
  }
};
void launch_dense_lines(cudaStream_t stream, const DenseLines& body);

/// A product by its parts. Needs no GPU; running does.
class EvenedProduct {
 public:
  /// `start`: where its matrices begin in what run() is given.
  explicit EvenedProduct(EvenedPlan plan, LtShape::Start start = {});
  int64_t workspace_bytes() const { return plan_.workspace_bytes(); }
  void run(const LtOperands& operands, void* workspace, void* stream) const;

 private:
  EvenedPlan plan_;
  LtShape::Start start_;
  std::vector<std::vector<std::shared_ptr<LtProduct>>> products_;  // of the parts
};

}  // namespace shardrun::cuda
