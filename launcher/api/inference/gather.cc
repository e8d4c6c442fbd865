// One exchange of bytes among all ranks.
#include "inference/gather.h"

#include "exec/checkpoint/layout.h"

namespace shardrun {

Tensor gather_whole(const Executor& of, const Binding& value, Communicator& host) {
  const Mesh& mesh = of.program().mesh;
  SR_REQUIRE(value.sharding.partial.empty(), unsupported, "'", value.name, "' lies as ",
             to_string(value.sharding, mesh), ": it has no whole value before it is reduced");
  const Tensor own = of.read(value);
  if (value.sharding.is_replicated()) return own;
  const int64_t width = size_of(value.global.dtype);
  std::vector<Box> boxes;
  std::vector<int64_t> bytes;
  int64_t all = 0;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    boxes.push_back(local_box(value.global.shape, value.sharding, mesh, mesh.coordinates(rank)));
    const bool sends = replica_of(value.sharding, mesh, rank).index == 0;
    bytes.push_back(sends ? element_count(box_shape(boxes.back())) * width : 0);
    all += bytes.back();
  }
  std::vector<char> parts(static_cast<size_t>(all));
  host.all_gather(own.data(), parts.data(), bytes, DType::u8);
  Tensor whole(value.global);
  const Box everything = full_box(value.global.shape);
  const char* from = parts.data();
  for (size_t rank = 0; rank < boxes.size(); ++rank) {
    if (bytes[rank] > 0) copy_box(from, boxes[rank], whole.data(), everything, boxes[rank], width);
    from += bytes[rank];
  }
  return whole;
}

}  // namespace shardrun
