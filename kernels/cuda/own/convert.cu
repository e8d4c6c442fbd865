// Four elements a thread, and lines of eights.
#include "device/cuda/launch.cuh"
#include "kernels/cuda/cublas/evened.h"
#include "kernels/cuda/elements/element.h"
#include "kernels/cuda/own/convert.h"

namespace shardrun::cuda {
namespace {

template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  int64_t count;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    float v[4];
    read_some(from + 4 * i, count - 4 * i, v);
    write_some(to + 4 * i, count - 4 * i, v);
  }
};

}  // namespace

void launch_narrow(cudaStream_t stream, const float* from, void* to_bf16, int64_t count) {
  for_each(stream, (count + 3) / 4, Convert<float, Bf16>{from, static_cast<Bf16*>(to_bf16), count},
           "narrow");
}

void launch_widen(cudaStream_t stream, const void* from_bf16, float* to, int64_t count) {
  for_each(stream, (count + 3) / 4,
           Convert<Bf16, float>{static_cast<const Bf16*>(from_bf16), to, count}, "widen");
}

void launch_even_lines(cudaStream_t stream, const EvenLines& body, int64_t count) {
  for_each(stream, count, body, "even_lines");
}

void launch_dense_lines(cudaStream_t stream, const DenseLines& body) {
  for_each(stream, (body.count + 7) / 8, body, "dense_lines");
}

}  // namespace shardrun::cuda
