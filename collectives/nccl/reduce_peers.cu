// One thread an element, ranks from left to right.
#include <cuda_bf16.h>

#include "base/error.h"
#include "collectives/nccl/reduce_peers.h"
#include "collectives/reduce.h"
#include "device/cuda/launch.cuh"

namespace shardrun::cuda {
namespace {

constexpr int kMost = 64;  // operands of one launch

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<__nv_bfloat16> {
  using type = float;
};

template <class A>
__device__ A combine(A a, A b, Reduction op) {
  if (op == Reduction::sum) return static_cast<A>(a + b);
  if (a != a) return a;  // a NaN wins
  if (b != b) return b;
  const bool first = op == Reduction::max ? a >= b : a <= b;
  return first ? a : b;
}

template <class T>
struct ReduceElement {
  const T* in[kMost];
  T* out;
  int terms;
  Reduction op;
  __device__ void operator()(int64_t i) const {
    using A = typename Accumulator<T>::type;
    A sum = static_cast<A>(in[0][i]);
    for (int r = 1; r < terms; ++r) sum = combine(sum, static_cast<A>(in[r][i]), op);
    out[i] = static_cast<T>(sum);
  }
};

template <class F>
void with_element(DType dtype, const F& f) {
  dispatch(dtype, [&](auto tag) {
    using Host = typename decltype(tag)::type;
    f(std::conditional_t<std::is_same_v<Host, bfloat16>, __nv_bfloat16, Host>());
  });
}

}  // namespace

void load_reduce() {
  for (DType dtype : kReducible) {
    with_element(dtype, [](auto element) {
      cudaFuncAttributes ignored{};
      check(cudaFuncGetAttributes(&ignored, for_each_kernel<ReduceElement<decltype(element)>>),
            "loading the reductions of ranks' memory");
    });
  }
}

void launch_reduce(cudaStream_t stream, std::span<const void* const> in, void* out, int64_t count,
                   DType dtype, Reduction op) {
  SR_REQUIRE(in.size() <= kMost, unsupported, in.size(), " ranks share memory, wanted at most ",
             kMost);
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    ReduceElement<T> body{};
    for (size_t r = 0; r < in.size(); ++r) body.in[r] = static_cast<const T*>(in[r]);
    body.out = static_cast<T*>(out);
    body.terms = static_cast<int>(in.size());
    body.op = op;
    for_each(stream, count, body, "a reduction of ranks' memory");
  });
}

}  // namespace shardrun::cuda
