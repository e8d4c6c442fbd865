// Sharding annotations of a model's file: as requests of a plan, and written of one.
#pragma once

#include <string>
#include <vector>

#include "graph/mesh.h"
#include "model.h"

namespace shardrun {

struct AnnotationRequests {
  std::vector<std::string> requests;  // as --shard takes them
  std::vector<std::string> notes;     // what is not followed, and why
};

/// What the file says under PlanRequest::configuration (if it is "", under the only one), of values
/// and operands of the model's step: required, or as hints. What a hint cannot say of this step or
/// mesh (nullptr: --mesh auto) becomes a note. Throws invalid_input, naming node and tensor, where
/// that is required; for both where there is no such configuration, and where nodes have pipeline
/// stages.
AnnotationRequests annotation_requests(const Model::Impl& model, const PlanRequest& request,
                                       const Mesh* mesh);

}  // namespace shardrun
