// What reference kernels share: elements of any type as double or int64, and strided walks.
#include "kernels/reference/elements.h"

namespace shardrun::reference {
namespace {

template <class To>
void load_as(const TensorView& from, int64_t offset, int64_t stride, int64_t n, To* to) {
  dispatch(from.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* p = from.as<T>() + offset;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(p[i * stride]);
  });
}

template <class From>
void store_as(const TensorView& to, int64_t offset, int64_t stride, int64_t n, const From* from) {
  dispatch(to.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* p = to.as<T>() + offset;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, bool>) {
        p[i * stride] = from[i] != 0;
      } else if constexpr (std::is_same_v<T, bfloat16>) {
        p[i * stride] = bfloat16(static_cast<float>(from[i]));
      } else {
        p[i * stride] = static_cast<T>(from[i]);
      }
    }
  });
}

}  // namespace

void load(const TensorView& from, int64_t offset, int64_t stride, int64_t n, double* to) {
  load_as(from, offset, stride, n, to);
}
void load(const TensorView& from, int64_t offset, int64_t stride, int64_t n, int64_t* to) {
  load_as(from, offset, stride, n, to);
}
void store(const TensorView& to, int64_t offset, int64_t stride, int64_t n, const double* from) {
  store_as(to, offset, stride, n, from);
}
void store(const TensorView& to, int64_t offset, int64_t stride, int64_t n, const int64_t* from) {
  store_as(to, offset, stride, n, from);
}

std::vector<double> load_doubles(const TensorView& from) {
  std::vector<double> to(static_cast<size_t>(from.count()));
  load(from, 0, 1, from.count(), to.data());
  return to;
}

std::vector<int64_t> load_ints(const TensorView& from) {
  std::vector<int64_t> to(static_cast<size_t>(from.count()));
  load(from, 0, 1, from.count(), to.data());
  return to;
}

void store_all(const TensorView& to, const std::vector<double>& from) {
  store(to, 0, 1, static_cast<int64_t>(from.size()), from.data());
}
void store_all(const TensorView& to, const std::vector<int64_t>& from) {
  store(to, 0, 1, static_cast<int64_t>(from.size()), from.data());
}

std::vector<int64_t> broadcast_strides(const Shape& from, const Shape& to) {
  const Shape own = row_major_strides(from);
  std::vector<int64_t> strides(to.size(), 0);
  const size_t added = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 1) strides[added + d] = own[d];
  }
  return strides;
}

Walk::Walk(const Shape& shape, std::vector<std::vector<int64_t>> strides)
    : strides_(strides.size()), inner_(strides.size(), 0) {
  for (int64_t size : shape) empty_ = empty_ || size == 0;
  Shape merged;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool joins = !merged.empty();
    for (size_t k = 0; joins && k < strides.size(); ++k) {
      joins = strides_[k].back() == strides[k][d] * shape[d];
    }
    if (joins) {
      merged.back() *= shape[d];
    } else {
      merged.push_back(shape[d]);
    }
    for (size_t k = 0; k < strides.size(); ++k) {
      if (joins) {
        strides_[k].back() = strides[k][d];
      } else {
        strides_[k].push_back(strides[k][d]);
      }
    }
  }
  if (merged.empty()) return;  // one element
  length_ = merged.back();
  merged.pop_back();
  outer_ = std::move(merged);
  for (size_t k = 0; k < strides.size(); ++k) {
    inner_[k] = strides_[k].back();
    strides_[k].pop_back();
  }
}

namespace {

template <class T>
void copy_rows(const Walk& walk, const void* src, int64_t src_offset, void* dst,
               int64_t dst_offset) {
  const T* from = static_cast<const T*>(src) + src_offset;
  T* to = static_cast<T*>(dst) + dst_offset;
  const int64_t n = walk.length(), s = walk.stride(0), t = walk.stride(1);
  walk.rows([&](const int64_t* offset) {
    const T* p = from + offset[0];
    T* q = to + offset[1];
    for (int64_t i = 0; i < n; ++i) q[i * t] = p[i * s];
  });
}

}  // namespace

void copy_strided(const Shape& shape, const void* src, int64_t src_offset,
                  const std::vector<int64_t>& src_strides, void* dst, int64_t dst_offset,
                  const std::vector<int64_t>& dst_strides, int64_t element_bytes) {
  const Walk walk(shape, {src_strides, dst_strides});
  switch (element_bytes) {
    case 1: return copy_rows<uint8_t>(walk, src, src_offset, dst, dst_offset);
    case 2: return copy_rows<uint16_t>(walk, src, src_offset, dst, dst_offset);
    case 4: return copy_rows<uint32_t>(walk, src, src_offset, dst, dst_offset);
    case 8: return copy_rows<uint64_t>(walk, src, src_offset, dst, dst_offset);
    default: fail(ErrorKind::internal, "elements of ", element_bytes, " bytes");
  }
}

void fill_elements(const TensorView& to, double value) {
  const int64_t n = to.count();
  dispatch(to.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T element{};
    if constexpr (std::is_same_v<T, bool>) {
      element = value != 0;
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      element = bfloat16(static_cast<float>(value));
    } else {
      element = static_cast<T>(value);
    }
    for (int64_t i = 0; i < n; ++i) to.as<T>()[i] = element;
  });
}

void copy_elements(const TensorView& from, const TensorView& to) {
  const int64_t bytes = byte_size(to.type);
  if (bytes > 0 && from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<size_t>(bytes));
  }
}

KernelImpl kernel(const char* op, void (*run)(const Node&, const KernelArgs&)) {
  KernelImpl impl;
  impl.op = op;
  impl.name = "reference";
  impl.prepare = [run](const KernelCall& call) {
    PreparedKernel prepared;
    prepared.run = [run, node = call.node](const KernelArgs& args) { run(node, args); };
    return prepared;
  };
  return impl;
}

}  // namespace shardrun::reference
