// One thread an element.
#include <cuda_bf16.h>

#include <cstring>

#include "device/cuda/boxes.h"
#include "device/cuda/index.h"
#include "device/cuda/launch.cuh"

namespace shardrun::cuda {
namespace {

template <class T>
struct CopyElement {
  BoxLoops loops;
  const T* from;
  T* to;
  __device__ void operator()(int64_t i) const {
    const BoxPlace at = place_of(loops, i);
    to[at.to] = from[at.from];
  }
};

template <class T>
struct AddElement {
  BoxLoops loops;
  const T* from;
  T* to;
  __device__ void operator()(int64_t i) const {
    const BoxPlace at = place_of(loops, i);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      to[at.to] = __float2bfloat16(__bfloat162float(to[at.to]) + __bfloat162float(from[at.from]));
    } else {
      to[at.to] = static_cast<T>(to[at.to] + from[at.from]);
    }
  }
};

template <class T>
struct FillElement {
  T* to;
  T value;
  __device__ void operator()(int64_t i) const { to[i] = value; }
};

template <class F>
void with_bytes(int64_t element_bytes, const F& f) {
  switch (element_bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: fail(ErrorKind::internal, "elements of ", element_bytes, " bytes");
  }
}

}  // namespace

void launch_copy_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                     int64_t element_bytes) {
  with_bytes(element_bytes, [&](auto tag) {
    using T = decltype(tag);
    const CopyElement<T> body{loops, static_cast<const T*>(src), static_cast<T*>(dst)};
    for_each(stream, loops.count, body, "copy_box");
  });
}

void launch_add_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                    DType dtype) {
  dispatch(dtype, [&](auto tag) {
    using Host = typename decltype(tag)::type;
    using T = std::conditional_t<std::is_same_v<Host, bfloat16>, __nv_bfloat16, Host>;
    const AddElement<T> body{loops, static_cast<const T*>(src), static_cast<T*>(dst)};
    for_each(stream, loops.count, body, "add_box");
  });
}

void launch_fill(cudaStream_t stream, void* to, int64_t count, const void* element,
                 int64_t element_bytes) {
  with_bytes(element_bytes, [&](auto tag) {
    using T = decltype(tag);
    FillElement<T> body{static_cast<T*>(to), {}};
    std::memcpy(&body.value, element, sizeof(T));
    for_each(stream, count, body, "fill");
  });
}

}  // namespace shardrun::cuda
