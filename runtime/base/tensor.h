// Tensor: a dense row-major array in host memory, and views of memory that somebody else owns.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "base/shape.h"

namespace shardrun {

/// Memory that somebody else owns: dense row-major elements of `type`. `data` may be null if empty.
struct TensorView {
  void* data = nullptr;
  TensorType type;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t count() const { return element_count(type.shape); }
};

/// Owns its elements (shared: copies of a Tensor see the same memory). Zero-initialised.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorType type);

  template <class T>
  static Tensor from(Shape shape, const std::vector<T>& values, DType dtype) {
    Tensor t({dtype, std::move(shape)});
    SR_REQUIRE(static_cast<int64_t>(values.size()) == t.count(), internal, "tensor ", t.type(),
               " got ", values.size(), " values");
    if (!values.empty()) std::memcpy(t.data(), values.data(), values.size() * sizeof(T));
    return t;
  }
  static Tensor scalar_i64(int64_t value);
  static Tensor vector_i64(const std::vector<int64_t>& values);

  const TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  DType dtype() const { return type_.dtype; }
  int64_t count() const { return element_count(type_.shape); }
  void* data() const { return data_.get(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  TensorView view() const { return {data(), type_}; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Element i as double or int64, whatever the dtype (slow: for tests, attributes and reports).
  double at(int64_t i) const;
  int64_t int_at(int64_t i) const;
  std::vector<int64_t> to_ints() const;

 private:
  TensorType type_;
  std::shared_ptr<char> data_;
};

/// Element-wise conversion (float to int truncates toward zero, anything to boolean is != 0).
void convert(const void* src, DType from, void* dst, DType to, int64_t count);
Tensor convert(const Tensor& tensor, DType to);

}  // namespace shardrun
