// Takes the place of CUDA's runtime where a test has none that finds a GPU: cuDNN's frontend asks
// it which one attention is for.
#include <cuda_runtime_api.h>

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

/// An H100.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  of->major = 9;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t) { return "the runtime's stand-in"; }
}
