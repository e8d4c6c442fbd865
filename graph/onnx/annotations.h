// Sharding annotations of an ONNX file: NodeProto.device_configurations, of IR 11 on.
//
// They number devices, and name no mesh axes: a tensor that is cut along dim 1 over devices 0 and 1
// has `cut` {1, 2} and `devices` {{0}, {1}}. On data=2,model=2 the sharding [{data}, -] of a matrix
// has the cut {0, 2} and the devices {{0, 1}, {2, 3}}.
//
// They say how nodes read and leave values. How a parameter or the optimizer's state lies between
// steps, they have no place for: the model's metadata_props say that, under the key
// "shardrun.held.NAME" for configuration NAME, so that the file carries ZeRO, too:
//
//   {"mesh": "data=2,model=2", "held": [{"lies": "[{data}, -]", "values": ["wte", "adam_m/wte"]}]}
//
// Its mesh tells which devices an axis cuts over, no more: like annotations, what it says is of
// devices, and holds on data=2,model=2 as well as on x=2,y=2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/sharding.h"

namespace shardrun {

/// Which devices hold which shard of a tensor, as a ShardingSpecProto says it.
struct DeviceSharding {
  struct CutDim {
    int64_t dim = 0;  // below 0: counted from the back
    int64_t shards = 1;
    /// Of a dim that fuses several, those behind the first are cut, so that shards are no
    /// consecutive rows.
    bool scattered = false;
    int64_t size = 0;  // of the whole dim, as the file says; 0: it says nothing
    friend bool operator==(const CutDim&, const CutDim&) = default;
  };
  std::vector<CutDim> cut;
  std::vector<std::vector<int64_t>> devices;  // by shard, row-major over the dims that are cut
  friend bool operator==(const DeviceSharding&, const DeviceSharding&) = default;
};

/// What a node of the main graph says under one configuration.
struct NodeAnnotation {
  int64_t node = 0;   // its place in the file
  std::string label;  // "node 41 'h.0/MatMul'"
  std::string configuration;
  std::vector<std::pair<std::string, DeviceSharding>> tensors;  // of its inputs and outputs
  std::optional<int64_t> pipeline_stage;
};

struct Annotations {
  struct Configuration {
    std::string name;
    int64_t devices = 0;
  };
  /// How values are held, as the text above.
  struct Held {
    std::string configuration;
    std::string text;
  };
  std::vector<Configuration> configurations;
  std::vector<NodeAnnotation> nodes;
  std::vector<Held> held;
};

inline constexpr std::string_view kHeldPrefix = "shardrun.held.";
/// The key of Held in the model's metadata.
std::string held_key(const std::string& configuration);

/// Of a node of the main graph: what became of it in the Graph.
struct PlacedNode {
  int64_t node = 0;               // its place in the file
  std::vector<std::string> made;  // nodes of the Graph
  /// Its inputs and outputs that the Graph has: the name in the file and that in the Graph.
  std::vector<std::pair<std::string, std::string>> inputs, outputs;
};

/// A value of the Graph is called otherwise.
void rename_placed(std::vector<PlacedNode>& placed, const std::string& from, const std::string& to);

/// The Sharding of a tensor of this shape on a mesh whose ranks are the devices, in order. Throws
/// invalid_input, saying why there is none: no such dim or one of another size, shards and devices
/// that do not match, devices that the mesh does not have, hold nothing or several shards, and what
/// no axes of the mesh make.
Sharding sharding_on(const Mesh& mesh, const DeviceSharding& spec, const Shape& shape);
/// The inverse, of what is not partial.
DeviceSharding device_sharding(const Sharding& sharding, const Mesh& mesh);

}  // namespace shardrun
