#include "tests/cuda/host/own_on_host.h"

namespace shardrun {

template KernelList own_kernels<cuda::OnHost<1>>();

}  // namespace shardrun
