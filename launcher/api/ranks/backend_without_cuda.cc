// A build without CUDA has no backend for GPUs.
#include "ranks/backend.h"

namespace shardrun {

const Backend* cuda_backend() { return nullptr; }

}  // namespace shardrun
