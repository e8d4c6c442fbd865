// What a planner's name and the caller's pins demand of the search.
#include "planner/constraints.h"

namespace shardrun {

Constraints::Constraints(const Graph& graph, const Mesh& mesh, const std::string& planner,
                         const std::map<std::string, Sharding>& pinned)
    : pinned_(pinned) {
  if (planner == "dp") pin_data_parallel(graph, mesh);
  for (const Value& value : graph.values()) {
    const auto pin = pinned_.find(value.name);
    if (pin == pinned_.end()) continue;
    try {
      check_sharding(pin->second, mesh, value.type.shape.size());
    } catch (const Error& error) {
      throw error.with_context("pinned value '" + value.name + "'");
    }
  }
}

void Constraints::pin_data_parallel(const Graph& graph, const Mesh& mesh) {
  for (const Value& value : graph.values()) {
    const size_t rank = value.type.shape.size();
    if (value.role == Role::batch && rank > 0) {
      // Every axis cuts the batch, as long as no rank is left without a row.
      Sharding cut = Sharding::replicated(rank);
      int64_t rows = value.type.shape[0];
      for (int axis = 0; axis < mesh.axis_count(); ++axis) {
        if (rows < mesh.axis_size(axis) || mesh.axis_size(axis) == 1) continue;
        cut.dims[0].push_back(axis);
        rows /= mesh.axis_size(axis);
      }
      pinned_.emplace(value.name, std::move(cut));
    } else if (value.role != Role::computed) {
      pinned_.emplace(value.name, Sharding::replicated(rank));
    }
  }
}

}  // namespace shardrun
