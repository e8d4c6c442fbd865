// Device configurations in ONNX's messages: read from a model, and written for a node.
#pragma once

#include <string>

#include "graph/onnx/annotations.h"
#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// What the file says, unchecked: sharding_on() does that where it is used. Nodes inside functions
/// and subgraphs are left out.
Annotations read_annotations(const ::onnx::ModelProto& model);

/// Serialised messages.
std::string configuration_bytes(const Annotations::Configuration& configuration);
std::string annotation_bytes(const NodeAnnotation& annotation);

}  // namespace shardrun::importer
