// The roofline.
#include "planner/kernel_cost.h"

#include <algorithm>

#include "graph/op_def.h"

namespace shardrun {

double kernel_seconds(const Node& node, std::span<const TensorType> in,
                      std::span<const TensorType> out, const Cluster& cluster) {
  double written = 0, read = 0;
  for (const TensorType& t : out) written += static_cast<double>(byte_size(t));
  for (size_t i = 0; i < in.size(); ++i) {
    const double bytes = static_cast<double>(byte_size(in[i]));
    // Of a table that is looked up in or sliced, only what is taken is read.
    const bool taken_from = i == 0 && (node.op == "gather" || node.op == "gather_elements" ||
                                       node.op == "gather_nd" || node.op == "slice");
    read += taken_from ? std::min(bytes, written) : bytes;
  }
  DType compute = DType::f32;
  for (const TensorType& t : in) {
    if (is_float(t.dtype)) {
      compute = t.dtype;
      break;
    }
  }
  return std::max(node_flops(node, in, out) / cluster.flops_for(compute),
                  (read + written) / cluster.memory_bandwidth.value()) +
         cluster.kernel_latency;
}

}  // namespace shardrun
