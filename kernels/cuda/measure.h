// Measurement of how long something takes on a stream, to choose among several ways.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "kernels/cuda/autotune.h"

namespace shardrun::cuda {

/// While a stream is recorded nothing can be measured.
inline bool is_recorded(cudaStream_t stream) {
  cudaStreamCaptureStatus recording{};
  check(cudaStreamIsCapturing(stream, &recording), "cudaStreamIsCapturing");
  return recording != cudaStreamCaptureStatusNone;
}

/// Milliseconds of three, after a first that does not count; negative if that one says no, or what
/// time_if_it_runs leaves out.
template <class Once>
float measure(cudaStream_t stream, std::string_view what, const Once& once) {
  const auto time = [&]() -> float {
    constexpr int kRuns = 3;
    if (!once()) return -1;
    cudaEvent_t events[2] = {};
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
    const Event begin(events[0]), end(events[1]);
    check(cudaEventRecord(begin.get(), stream), "cudaEventRecord");
    for (int run = 0; run < kRuns; ++run) once();
    check(cudaEventRecord(end.get(), stream), "cudaEventRecord");
    check(cudaEventSynchronize(end.get()), what);
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
    return milliseconds;
  };
  return time_if_it_runs(time, [&] {
    cudaGetLastError();  // a launch that was refused; what has broken the device comes again
    check(cudaStreamSynchronize(stream), what);
  });
}

}  // namespace shardrun::cuda
