// What reference kernels share: elements of any type as double or int64, and walks over tensors
// with strides. Rows of elements are converted at a time, so that an op's loop is compiled once.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/short_array.h"
#include "graph/op_def.h"
#include "kernels/kernel.h"

namespace shardrun::reference {

/// Elements at base[offset + i * stride] for i in [0, n); offsets and strides in elements. Stores
/// round doubles to the type; integers wrap.
void load(const TensorView& from, int64_t offset, int64_t stride, int64_t n, double* to);
void load(const TensorView& from, int64_t offset, int64_t stride, int64_t n, int64_t* to);
void store(const TensorView& to, int64_t offset, int64_t stride, int64_t n, const double* from);
void store(const TensorView& to, int64_t offset, int64_t stride, int64_t n, const int64_t* from);

/// A whole tensor at once.
std::vector<double> load_doubles(const TensorView& from);
std::vector<int64_t> load_ints(const TensorView& from);
void store_all(const TensorView& to, const std::vector<double>& from);
void store_all(const TensorView& to, const std::vector<int64_t>& from);

/// Strides with which an operand of shape `from` is read over `to`: 0 along broadcast dims.
std::vector<int64_t> broadcast_strides(const Shape& from, const Shape& to);

/// A walk over `shape` in row-major order, with `operands` tensors each having its own strides.
/// Neighbouring dims that all operands see as one are merged, so rows are as long as can be.
///
///   Walk walk({2, 3, 4}, {row_major_strides({2, 3, 4}), {0, 0, 1}});   // [2,3,4] with a [4]
///   walk.rows([&](const int64_t* offsets) { … walk.length(), walk.stride(operand) … });
class Walk {
 public:
  Walk(const Shape& shape, std::vector<std::vector<int64_t>> strides);

  int64_t length() const { return length_; }  // of a row
  int64_t stride(size_t operand) const { return inner_[operand]; }

  /// Calls f(offsets) for each row, with the first element's offset per operand.
  template <class F>
  void rows(F&& f) const {
    if (empty_) return;
    ShortArray<int64_t> index(outer_.size()), offsets(inner_.size());
    while (true) {
      f(static_cast<const int64_t*>(&offsets[0]));
      size_t d = outer_.size();
      while (d > 0) {
        --d;
        if (++index[d] < outer_[d]) {
          for (size_t k = 0; k < inner_.size(); ++k) offsets[k] += strides_[k][d];
          break;
        }
        for (size_t k = 0; k < inner_.size(); ++k) offsets[k] -= strides_[k][d] * (outer_[d] - 1);
        index[d] = 0;
        if (d == 0) return;
      }
      if (outer_.empty()) return;
    }
  }

 private:
  bool empty_ = false;
  int64_t length_ = 1;
  Shape outer_;
  std::vector<std::vector<int64_t>> strides_;  // per operand, per outer dim
  std::vector<int64_t> inner_;                 // per operand
};

/// dst[dst_offset + walk] = src[src_offset + walk] over `shape`; elements are `element_bytes` wide.
void copy_strided(const Shape& shape, const void* src, int64_t src_offset,
                  const std::vector<int64_t>& src_strides, void* dst, int64_t dst_offset,
                  const std::vector<int64_t>& dst_strides, int64_t element_bytes);

/// Sets every element to `value`.
void fill_elements(const TensorView& to, double value);

/// Bytes of `from` to `to`, which may be the same memory.
void copy_elements(const TensorView& from, const TensorView& to);

/// A reference kernel without workspace from one function.
KernelImpl kernel(const char* op, void (*run)(const Node&, const KernelArgs&));

}  // namespace shardrun::reference
