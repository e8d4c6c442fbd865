// The order of partitioning: what is the same on all ranks, once; then any rank's own.
#include "program/partition.h"

#include "program/partition/local_program.h"
#include "program/partition/lower_nodes.h"
#include "program/partition/skeleton.h"
#include "program/partition/write_updates.h"

namespace shardrun {
Partition::Partition(const Graph& graph, const Plan& plan, const Cluster& cluster)
    : collectives_(cluster.collectives) {
  auto skeleton = std::make_unique<Skeleton>(graph, plan);
  write_updates(*skeleton, lower_nodes(*skeleton, cluster));
  skeleton->drop_unused_buffers();
  for (const BufferForm& form : skeleton->buffers) {
    const TensorType& type = graph.type(form.value);
    most_bytes_.push_back(max_local_bytes(type, *form.sharding, plan.mesh));
    const Shape& shape = type.shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      const Axes& axes = form.sharding->dims[d];
      if (!axes.empty()) cuts_.emplace(shape[d], axes);
    }
  }
  skeleton_ = std::move(skeleton);
}
Partition::~Partition() = default;

Program Partition::program(int64_t rank) const {
  const Mesh& mesh = skeleton_->plan.mesh;
  SR_REQUIRE(rank >= 0 && rank < mesh.size(), internal, "rank ", rank, " is not in the mesh ",
             mesh.to_string());
  return local_program(*skeleton_, rank);
}

}  // namespace shardrun
