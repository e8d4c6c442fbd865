// ModelProto.configuration and NodeProto.device_configurations.
#include "graph/onnx/file/device_configurations.h"

#include <map>

#include "base/error.h"
#include "base/printable.h"

namespace shardrun::importer {
namespace {

DeviceSharding read_spec(const ::onnx::ShardingSpecProto& spec) {
  DeviceSharding out;
  std::map<int64_t, std::vector<int64_t>> groups;
  for (const auto& entry : spec.index_to_device_group_map())
    groups[entry.key()].assign(entry.value().begin(), entry.value().end());
  for (const int64_t device : spec.device()) {
    const auto group = groups.find(device);
    out.devices.push_back(group == groups.end() ? std::vector{device} : group->second);
  }
  for (const auto& dim : spec.sharded_dim()) {
    DeviceSharding::CutDim cut{dim.axis(), 1};
    for (int i = 0; i < dim.simple_sharding_size(); ++i) {
      const auto& part = dim.simple_sharding(i);
      if (i == 0) cut.size = part.dim_value();
      // Of several sizes the product; of one that is not said, or as good as none, nothing is said.
      else if (__builtin_mul_overflow(cut.size, part.dim_value(), &cut.size))
        cut.size = 0;
      const int64_t shards = part.num_shards();
      cut.scattered = cut.scattered || (i > 0 && shards != 1);
      if (i == 0) cut.shards = shards;
    }
    out.cut.push_back(cut);
  }
  return out;
}

/// A shard on one device names it; a shard on several names a group, from -1 down.
void write_spec(const DeviceSharding& from, ::onnx::ShardingSpecProto& to) {
  int64_t groups = 0;
  for (const std::vector<int64_t>& devices : from.devices) {
    if (devices.size() == 1) {
      to.add_device(devices[0]);
      continue;
    }
    auto& entry = *to.add_index_to_device_group_map();
    entry.set_key(--groups);
    for (const int64_t device : devices) entry.add_value(device);
    to.add_device(groups);
  }
  for (const DeviceSharding::CutDim& cut : from.cut) {
    auto& dim = *to.add_sharded_dim();
    dim.set_axis(cut.dim);
    dim.add_simple_sharding()->set_num_shards(cut.shards);
  }
}

}  // namespace

Annotations read_annotations(const ::onnx::ModelProto& model) {
  Annotations out;
  for (const auto& configuration : model.configuration())
    out.configurations.push_back({configuration.name(), configuration.num_devices()});
  for (const auto& entry : model.metadata_props()) {
    if (entry.key().starts_with(kHeldPrefix))
      out.held.push_back({printable(entry.key().substr(kHeldPrefix.size())), entry.value()});
  }
  for (int n = 0; n < model.graph().node_size(); ++n) {
    const auto& node = model.graph().node(n);
    for (const auto& own : node.device_configurations()) {
      NodeAnnotation annotation{
          n, str("node ", n, " '", node.name(), "'"), own.configuration_id(), {}, std::nullopt};
      if (own.has_pipeline_stage()) annotation.pipeline_stage = own.pipeline_stage();
      for (const auto& spec : own.sharding_spec())
        annotation.tensors.emplace_back(spec.tensor_name(), read_spec(spec));
      out.nodes.push_back(std::move(annotation));
    }
  }
  return out;
}

std::string configuration_bytes(const Annotations::Configuration& configuration) {
  ::onnx::DeviceConfigurationProto out;
  out.set_name(configuration.name);
  out.set_num_devices(static_cast<int32_t>(configuration.devices));
  return out.SerializeAsString();
}

std::string annotation_bytes(const NodeAnnotation& annotation) {
  ::onnx::NodeDeviceConfigurationProto out;
  out.set_configuration_id(annotation.configuration);
  for (const auto& [tensor, spec] : annotation.tensors) {
    auto& to = *out.add_sharding_spec();
    to.set_tensor_name(tensor);
    write_spec(spec, to);
  }
  return out.SerializeAsString();
}

}  // namespace shardrun::importer
