#include "base/runs.h"

#include <algorithm>

namespace shardrun {
namespace {

/// `outer`: the indices of the dims before `dim`.
void add(const Shape& shape, size_t dim, const Box& outer, int64_t first, int64_t count,
         std::vector<Box>& out) {
  if (count == 0) return;
  if (dim == shape.size()) {
    out.push_back(outer);
    return;
  }
  const int64_t inner =
      element_count(Shape(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, shape.end()));
  const auto rows = [&](int64_t begin, int64_t size) {
    Box box = outer;
    box.push_back({begin, size});
    return box;
  };
  if (const int64_t within = first % inner; within != 0) {
    const int64_t some = std::min(count, inner - within);
    add(shape, dim + 1, rows(first / inner, 1), within, some, out);
    first += some;
    count -= some;
  }
  if (const int64_t whole = count / inner; whole > 0) {
    Box box = rows(first / inner, whole);
    for (size_t d = dim + 1; d < shape.size(); ++d) box.push_back({0, shape[d]});
    out.push_back(std::move(box));
    first += whole * inner;
    count -= whole * inner;
  }
  add(shape, dim + 1, rows(first / inner, count == 0 ? 0 : 1), 0, count, out);
}

}  // namespace

std::vector<Box> boxes_of_run(const Shape& shape, int64_t first, int64_t count) {
  std::vector<Box> out;
  add(shape, 0, {}, first, count, out);
  return out;
}

}  // namespace shardrun
