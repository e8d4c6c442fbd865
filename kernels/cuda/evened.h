// Products of operands whose lines begin anywhere, as rows of 50257 bf16 numbers do, where the fast
// products of libraries want boundaries of 16 bytes. The other way to do them: some of the lines at
// a time are copied to such boundaries, and multiplied from there.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <vector>

#include "device/cuda/index.h"
#include "kernels/cuda/lt_product.h"

namespace shardrun::cuda {

/// A line is a column of cuBLAS's as it is stored: of a [rows, depth] one of `depth`.
struct EvenedPlan {
  bool of_a = false;  // which operand is copied
  int64_t width = 0, pitch = 0,
          from_pitch = 0;  // elements of a line; apart in the copy, and before
  struct Part {
    LtShape shape;
    int64_t first = 0, lines = 0;  // of the operand's
    int64_t a = 0, b = 0, d = 0;   // where its operands begin, the copied one before the copy
  };
  std::vector<Part> parts;  // parts of the depth add to d: `adds_c`, where c is d
  int64_t copy_bytes = 0;   // of the longest part, on a boundary of 256
  int64_t workspace_bytes() const;
};

/// Nullopt where nothing is to be gained or it cannot be done: f32, lines that lie well, several
/// products, an epilogue, fewer than `least_flops`, parts of a depth whose sums would be rounded.
/// A copy has about `most_bytes` at most, but a line or 256.
std::optional<EvenedPlan> evened(const LtShape& shape, double least_flops = 1e10,
                                 int64_t most_bytes = int64_t{512} << 20);

/// Eight elements of 2 bytes. What is behind the end of a line is 0.
struct EvenLines {
  struct alignas(16) Eight {
    uint16_t element[8];
  };
  const uint16_t* from;
  Eight* to;
  int64_t width, from_pitch, groups;  // groups of a line of the copy

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t line = i / groups, at = i % groups * 8;
    const uint16_t* const read = from + line * from_pitch + at;
    Eight eight;
    for (int64_t k = 0; k < 8; ++k)
      eight.element[k] = at + k < width ? read[k] : static_cast<uint16_t>(0);
    to[i] = eight;
  }
};
void launch_even_lines(cudaStream_t stream, const EvenLines& body, int64_t lines);

/// A product by its parts. Needs no GPU; running does.
class EvenedProduct {
 public:
  explicit EvenedProduct(EvenedPlan plan);
  int64_t workspace_bytes() const { return plan_.workspace_bytes(); }
  void run(const LtOperands& operands, void* workspace, void* stream) const;

 private:
  EvenedPlan plan_;
  std::vector<std::shared_ptr<LtProduct>> products_;  // of the parts
};

}  // namespace shardrun::cuda
