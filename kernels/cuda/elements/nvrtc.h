// CUDA source that is made at run time: compiled by NVRTC, kept on disk, launched.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace shardrun::cuda {

/// The machine code of `source` for `architecture` ("sm_90"), each product rounded before it is
/// added. Needs no GPU. Throws Error(device) with the compiler's words and the source.
std::string compile_cuda(const std::string& source, const std::string& architecture);

/// The same from a file of `folder` if there is one of this source, architecture and version of
/// NVRTC that is whole; else compiled, and left there. Empty folder: always compiled.
std::string compile_cuda_cached(const std::string& source, const std::string& architecture,
                                const std::string& folder);

/// The kernel named `kernel` of `source`, for the GPU that the calling thread uses: compiled once
/// a process for each architecture, by way of the user's cache folder.
const void* runtime_kernel(const std::string& source);

/// Launches with enough threads of blocks of 256 for `threads`, which the kernel's loop strides
/// over. `arguments`: pointers to each, as cudaLaunchKernel takes them.
void launch_runtime_kernel(const void* kernel, int64_t threads, void** arguments,
                           cudaStream_t stream);

}  // namespace shardrun::cuda
