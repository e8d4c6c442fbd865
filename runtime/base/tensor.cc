// Host tensors and element-type conversion.
#include "base/tensor.h"

#include <algorithm>
#include <new>

namespace shardrun {

Tensor::Tensor(TensorType type) : type_(std::move(type)) {
  // One allocation, and not aligned_alloc: glibc's leaves splinters behind, which slow discovery's
  // many small tensors.
  constexpr size_t kAlignment = 64;
  const auto bytes = static_cast<size_t>(std::max<int64_t>(byte_size(type_), 1));
  std::shared_ptr<char[]> memory;
  try {
    memory = std::make_shared_for_overwrite<char[]>(bytes + kAlignment - 1);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::out_of_memory, "cannot allocate ", bytes, " bytes for a tensor ", type_);
  }
  void* aligned = memory.get();
  size_t space = bytes + kAlignment - 1;
  std::align(kAlignment, bytes, aligned, space);
  std::memset(aligned, 0, bytes);
  data_ = std::shared_ptr<char>(std::move(memory), static_cast<char*>(aligned));
}

Tensor Tensor::scalar_i64(int64_t value) { return from<int64_t>({}, {value}, DType::i64); }
Tensor Tensor::vector_i64(const std::vector<int64_t>& values) {
  return from<int64_t>({static_cast<int64_t>(values.size())}, values, DType::i64);
}

double Tensor::at(int64_t i) const {
  if (dtype() == DType::f16) return half_to_float(as<uint16_t>()[i]);
  return dispatch(dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return static_cast<double>(as<T>()[i]);
  });
}

int64_t Tensor::int_at(int64_t i) const {
  return dtype() == DType::i64 ? as<int64_t>()[i] : static_cast<int64_t>(at(i));
}

std::vector<int64_t> Tensor::to_ints() const {
  std::vector<int64_t> out(static_cast<size_t>(count()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = int_at(static_cast<int64_t>(i));
  return out;
}

void convert(const void* src, DType from, void* dst, DType to, int64_t count) {
  if (from == to) {
    if (count > 0) std::memcpy(dst, src, static_cast<size_t>(count * size_of(from)));
    return;
  }
  if (to == DType::f16) {
    std::vector<float> wide(static_cast<size_t>(count));
    convert(src, from, wide.data(), DType::f32, count);
    std::transform(wide.begin(), wide.end(), static_cast<uint16_t*>(dst), float_to_half);
    return;
  }
  dispatch(to, [&](auto to_tag) {
    using To = typename decltype(to_tag)::type;
    auto* out = static_cast<To*>(dst);
    auto put = [&](auto value, int64_t i) {
      using From = decltype(value);
      if constexpr (std::is_same_v<To, bool>) {
        out[i] = static_cast<double>(value) != 0;
      } else if constexpr (std::is_same_v<To, bfloat16>) {
        out[i] = bfloat16(static_cast<float>(value));
      } else if constexpr (std::is_same_v<From, bfloat16>) {
        out[i] = static_cast<To>(static_cast<float>(value));
      } else {
        out[i] = static_cast<To>(value);
      }
    };
    if (from == DType::f16) {
      for (int64_t i = 0; i < count; ++i)
        put(half_to_float(static_cast<const uint16_t*>(src)[i]), i);
      return;
    }
    dispatch(from, [&](auto from_tag) {
      using From = typename decltype(from_tag)::type;
      for (int64_t i = 0; i < count; ++i) put(static_cast<const From*>(src)[i], i);
    });
  });
}

Tensor convert(const Tensor& tensor, DType to) {
  Tensor out({to, tensor.shape()});
  convert(tensor.data(), tensor.dtype(), out.data(), to, tensor.count());
  return out;
}

}  // namespace shardrun
