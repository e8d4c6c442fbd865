// Reference dropout and random_uniform: one Philox draw per element, indexed by its global
// row-major position.
#include "base/philox.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// each(i, u): of every element here in row-major order, the uniform number of its place in the
/// whole.
template <class Each>
void draw(const Node& node, const Shape& shape, int64_t step, const Each& each) {
  const std::vector<int64_t>& start = node.attrs.ints("start");
  const Shape strides = row_major_strides(node.attrs.ints("global_shape"));
  const RandomStream stream{static_cast<uint64_t>(node.attrs.i("seed", 0)),
                            static_cast<uint64_t>(node.attrs.i("key", 0)),
                            static_cast<uint64_t>(step)};
  std::vector<int64_t> index(shape.size(), 0);
  const auto count = static_cast<size_t>(element_count(shape));
  for (size_t i = 0; i < count; ++i) {
    int64_t position = 0;
    for (size_t d = 0; d < shape.size(); ++d) position += (start[d] + index[d]) * strides[d];
    each(i, static_cast<double>(stream.uniform(static_cast<uint64_t>(position))));
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
}

void dropout(const Node& node, const KernelArgs& args) {
  const double p = node.attrs.f("p");
  Doubles x = load(args.in[0]);
  draw(node, args.in[0].type.shape, *args.in[1].as<int64_t>(),
       [&](size_t i, double u) { x[i] = u >= p ? x[i] / (1 - p) : 0.0; });
  store(x, args.out[0]);
}

void random_uniform(const Node& node, const KernelArgs& args) {
  Doubles y(static_cast<size_t>(args.out[0].count()));
  draw(node, args.out[0].type.shape, *args.in[0].as<int64_t>(),
       [&](size_t i, double u) { y[i] = u; });
  store(y, args.out[0]);
}

}  // namespace

KernelList random_kernels() {
  return {plain("dropout", dropout), plain("random_uniform", random_uniform)};
}

}  // namespace shardrun::reference
