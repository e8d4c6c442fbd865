// Which loops a box is, as few as it can be.
#include "device/cuda/boxes.h"

namespace shardrun::cuda {

BoxLoops loops_of(const Box& src_box, const Box& dst_box, const Box& region) {
  const Shape src = row_major_strides(box_shape(src_box)),
              dst = row_major_strides(box_shape(dst_box));
  BoxLoops loops;
  loops.count = 1;
  struct Loop {
    int64_t size, from, to;
  };
  std::vector<Loop> all;
  for (size_t d = 0; d < region.size(); ++d) {
    loops.from_offset += (region[d].begin - src_box[d].begin) * src[d];
    loops.to_offset += (region[d].begin - dst_box[d].begin) * dst[d];
    const int64_t size = region[d].size;
    loops.count *= size;
    if (size == 1) continue;
    const bool joins =
        !all.empty() && all.back().from == src[d] * size && all.back().to == dst[d] * size;
    if (joins) {
      all.back() = {all.back().size * size, src[d], dst[d]};
    } else {
      all.push_back({size, src[d], dst[d]});
    }
  }
  SR_REQUIRE(all.size() <= BoxLoops::kMost, unsupported, "a cut tensor has ", all.size(),
             " dims that lie apart, at most ", BoxLoops::kMost, " can be copied on a GPU");
  loops.dims = static_cast<int>(all.size());
  for (size_t d = 0; d < all.size(); ++d)
    loops.size[d] = all[d].size, loops.from[d] = all[d].from, loops.to[d] = all[d].to;
  return loops;
}

}  // namespace shardrun::cuda
