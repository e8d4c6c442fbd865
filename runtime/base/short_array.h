// Arrays that are nearly always short, such as one number for each dim of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/shape.h"

namespace shardrun {

/// `size` zeros, up to kInPlace of them within the object: what a step needs for each dim of a
/// tensor costs it no allocation.
template <class T, size_t kInPlace = 16>
class ShortArray {
 public:
  explicit ShortArray(size_t size) : more_(size > kInPlace ? size : 0) {
    if (!more_.empty()) begin_ = more_.data();
  }
  ShortArray(const ShortArray&) = delete;
  ShortArray& operator=(const ShortArray&) = delete;

  T& operator[](size_t i) { return begin_[i]; }
  const T& operator[](size_t i) const { return begin_[i]; }

 private:
  std::array<T, kInPlace> few_{};
  std::vector<T> more_;
  T* begin_ = few_.data();
};

/// Row-major strides of a tensor that holds `box`, in elements.
inline void row_major_strides(const Box& box, ShortArray<int64_t>& strides) {
  int64_t stride = 1;
  for (size_t i = box.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= box[i].size;
  }
}

}  // namespace shardrun
