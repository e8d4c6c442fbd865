// Segments by Expand and ScatterElements.
#include "models/scatter.h"

namespace shardrun {

std::string filled_like(OnnxWriter& w, const std::string& x, double value) {
  return w.node("Expand", {w.scalar(value), w.node("Shape", {x})});
}

std::string scatter_rows(OnnxWriter& w, const std::string& data, const std::string& rows,
                         const std::string& updates, int64_t rank, const std::string& reduction) {
  std::vector<int64_t> new_axes;
  for (int64_t axis = 1; axis < rank; ++axis) new_axes.push_back(axis);
  const std::string apart = w.node("Unsqueeze", {rows, w.ints(new_axes)});
  const std::string indices = w.node("Expand", {apart, w.node("Shape", {updates})});
  return w.node("ScatterElements", {data, indices, updates},
                {{"axis", int64_t{0}}, {"reduction", reduction}});
}

}  // namespace shardrun
