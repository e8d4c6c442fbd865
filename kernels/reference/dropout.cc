// Reference dropout: one Philox draw per element, indexed by its global row-major position.
#include "base/philox.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

void dropout(const Node& node, const KernelArgs& args) {
  const double p = node.attrs.f("p");
  const std::vector<int64_t>& start = node.attrs.ints("start");
  const Shape strides = row_major_strides(node.attrs.ints("global_shape"));
  const Shape& shape = args.in[0].type.shape;
  const RandomStream stream{static_cast<uint64_t>(node.attrs.i("seed", 0)),
                            static_cast<uint64_t>(node.attrs.i("key", 0)),
                            static_cast<uint64_t>(*args.in[1].as<int64_t>())};
  Doubles x = load(args.in[0]);
  std::vector<int64_t> index(shape.size(), 0);
  for (double& value : x) {
    int64_t position = 0;
    for (size_t d = 0; d < shape.size(); ++d) position += (start[d] + index[d]) * strides[d];
    const bool keep = static_cast<double>(stream.uniform(static_cast<uint64_t>(position))) >= p;
    value = keep ? value / (1 - p) : 0.0;
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  store(x, args.out[0]);
}

}  // namespace

KernelList dropout_kernels() { return {plain("dropout", dropout)}; }

}  // namespace shardrun::reference
