// One thread a unit, or a block a tile.
#include <cstring>

#include "device/cuda/box_bodies.h"
#include "device/cuda/launch.cuh"

namespace shardrun::cuda {
namespace {

template <class T>
struct FillElement {
  T* to;
  T value;
  __device__ void operator()(int64_t i) const { to[i] = value; }
};

struct OnStream {
  cudaStream_t stream;
  const char* name;
  template <class Body>
  void each(int64_t count, const Body& body) const {
    for_each(stream, count, body, name);
  }
  template <class Body>
  void tiles(int64_t count, const Body& body) const {
    for_tiles(stream, count, body, name);
  }
};

}  // namespace

void launch_copy_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                     int64_t element_bytes) {
  if (loops.count == 0) return;
  if (!loops.one_piece())
    return copy_box_on(OnStream{stream, "copy_box"}, src, dst, loops, element_bytes);
  check(cudaMemcpyAsync(static_cast<char*>(dst) + loops.to_offset * element_bytes,
                        static_cast<const char*>(src) + loops.from_offset * element_bytes,
                        static_cast<size_t>(loops.count * element_bytes), cudaMemcpyDeviceToDevice,
                        stream),
        "a copy on the GPU");
  launched(stream);
}

void launch_add_box(cudaStream_t stream, const void* src, void* dst, const BoxLoops& loops,
                    DType dtype) {
  add_box_on(OnStream{stream, "add_box"}, src, dst, loops, dtype);
}

void launch_fill(cudaStream_t stream, void* to, int64_t count, const void* element,
                 int64_t element_bytes) {
  with_unit(element_bytes, [&](auto tag) {
    using T = decltype(tag);
    FillElement<T> body{static_cast<T*>(to), {}};
    std::memcpy(&body.value, element, sizeof(T));
    for_each(stream, count, body, "fill");
  });
}

}  // namespace shardrun::cuda
