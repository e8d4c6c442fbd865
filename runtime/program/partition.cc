// The order of partitioning: what is the same on all ranks, once; then any rank's own.
#include "program/partition.h"

#include <map>
#include <tuple>

#include "program/collective_order.h"
#include "program/partition/local_program.h"
#include "program/partition/lower_nodes.h"
#include "program/partition/skeleton.h"
#include "program/partition/write_updates.h"

namespace shardrun {
namespace {

/// By step: the number of the sums that one call may make; -1: none.
std::vector<int> numbered_sums(const Skeleton& skeleton) {
  std::vector<int> out;
  std::map<std::tuple<std::vector<int>, ReduceOp, DType>, int> numbers;
  for (const StepForm& form : skeleton.steps) {
    out.push_back(-1);
    if (form.move == nullptr || form.move->kind != Collective::Kind::all_reduce) continue;
    const std::tuple kind(form.move->axes, form.move->op, skeleton.graph.type(form.value).dtype);
    out.back() = numbers.emplace(kind, static_cast<int>(numbers.size())).first->second;
  }
  return out;
}

void order_collectives(Skeleton& skeleton, Collectives run) {
  std::vector<bool> meets;  // exchanges do, too, but stay with their node
  for (const StepForm& form : skeleton.steps)
    meets.push_back(form.move != nullptr && !traits_of(form.move->kind).local);
  std::vector<int64_t> bytes;
  for (const BufferForm& form : skeleton.buffers) {
    bytes.push_back(
        max_local_bytes(skeleton.graph.type(form.value), *form.sharding, skeleton.plan.mesh));
  }
  const Program& program = skeleton.program;
  skeleton.reorder(run == Collectives::together
                       ? collectives_together(program, meets, numbered_sums(skeleton), bytes)
                       : collectives_early(program, meets, bytes));
}

}  // namespace

Partition::Partition(const Graph& graph, const Plan& plan, const Cluster& cluster)
    : collectives_(cluster.collectives) {
  auto skeleton = std::make_unique<Skeleton>(graph, plan);
  write_updates(*skeleton, lower_nodes(*skeleton, cluster));
  skeleton->drop_unused_buffers();
  order_collectives(*skeleton, collectives_);
  for (const BufferForm& form : skeleton->buffers) {
    const Shape& shape = graph.type(form.value).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      const std::vector<int>& axes = form.sharding->dims[d];
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
