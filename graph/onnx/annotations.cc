// Between devices that are numbered and axes that have names.
#include "graph/onnx/annotations.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
namespace {

/// The dims that are cut, ascending, checked against the tensor.
std::vector<DeviceSharding::CutDim> checked_cut(const DeviceSharding& spec, const Shape& shape) {
  std::vector<DeviceSharding::CutDim> out;
  const auto dims = static_cast<int64_t>(shape.size());
  for (DeviceSharding::CutDim cut : spec.cut) {
    SR_REQUIRE(cut.dim >= -dims && cut.dim < dims, invalid_input, "dim ", cut.dim,
               " is cut, the tensor has ", dims, " dims");
    SR_REQUIRE(cut.shards >= 1, invalid_input, "dim ", cut.dim, " is cut into ", cut.shards,
               " shards");
    SR_REQUIRE(!cut.scattered, invalid_input, "dim ", cut.dim,
               " fuses several, and is cut along one that is not the first: its shards are no "
               "consecutive rows, which no sharding here has");
    if (cut.dim < 0) cut.dim += dims;
    SR_REQUIRE(cut.size == 0 || cut.size == shape[at(cut.dim)], invalid_input, "dim ", cut.dim,
               " is said to be ", cut.size, ", it is ", shape[at(cut.dim)]);
    out.push_back(cut);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.dim < b.dim; });
  for (size_t i = 1; i < out.size(); ++i) {
    SR_REQUIRE(out[i].dim != out[i - 1].dim, invalid_input, "dim ", out[i].dim, " is cut twice");
  }
  return out;
}

/// By rank: the number of its shard.
std::vector<int64_t> shard_of_ranks(const DeviceSharding& spec,
                                    const std::vector<DeviceSharding::CutDim>& cut,
                                    const Mesh& mesh) {
  int64_t shards = 1;
  for (const DeviceSharding::CutDim& dim : cut) {
    SR_REQUIRE(!__builtin_mul_overflow(shards, dim.shards, &shards) && shards <= mesh.size(),
               invalid_input, "there are more shards than the ", mesh.size(), " ranks of mesh ",
               mesh.to_string());
  }
  const auto listed = static_cast<int64_t>(spec.devices.size());
  SR_REQUIRE(listed == shards || shards == 1, invalid_input, "lists ", listed, " devices for ",
             shards, " shards");
  std::vector<int64_t> out(at(mesh.size()), -1);
  for (int64_t i = 0; i < listed; ++i) {
    for (int64_t device : spec.devices[at(i)]) {
      SR_REQUIRE(device >= 0 && device < mesh.size(), invalid_input, "names device ", device,
                 ", mesh ", mesh.to_string(), " has ", mesh.size());
      int64_t& shard = out[at(device)];
      SR_REQUIRE(shard < 0, invalid_input, "names device ", device, " twice");
      shard = shards == 1 ? 0 : i;
    }
  }
  const auto idle = std::find(out.begin(), out.end(), -1);
  SR_REQUIRE(idle == out.end(), invalid_input, "device ", idle - out.begin(),
             " holds nothing of it; here every rank takes part");
  return out;
}

/// Do the axes cut a dim so that rank r holds a part of shard index[r], the rest of the cut left to
/// axes behind them?
bool may_begin(const Mesh& mesh, const std::vector<int64_t>& index, int64_t shards,
               const std::vector<int>& axes, int64_t made) {
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> where = mesh.coordinates(rank);
    int64_t own = 0;
    for (int axis : axes) own = own * mesh.axis_size(axis) + where[at(axis)];
    if (own != index[at(rank)] / (shards / made)) return false;
  }
  return true;
}

/// The axes that cut a dim so that rank r holds shard index[r], outermost first: one after the
/// other, of which at most one goes on what is cut already. Empty with shards left: there are none.
std::vector<int> find_axes(const Mesh& mesh, const std::vector<int64_t>& index, int64_t shards) {
  std::vector<int> axes;
  int64_t made = 1;
  while (made < shards) {
    int next = -1;
    for (int axis = 0; axis < mesh.axis_count() && next < 0; ++axis) {
      const int64_t size = mesh.axis_size(axis);
      if (size == 1 || shards % (made * size) != 0 ||
          std::find(axes.begin(), axes.end(), axis) != axes.end())
        continue;
      axes.push_back(axis);
      if (may_begin(mesh, index, shards, axes, made * size)) next = axis;
      axes.pop_back();
    }
    if (next < 0) return {};
    axes.push_back(next);
    made *= mesh.axis_size(next);
  }
  return axes;
}

}  // namespace

std::string held_key(const std::string& configuration) {
  return std::string(kHeldPrefix) + configuration;
}

void rename_placed(std::vector<PlacedNode>& placed, const std::string& from,
                   const std::string& to) {
  for (PlacedNode& node : placed) {
    for (auto* names : {&node.inputs, &node.outputs}) {
      for (auto& [tensor, value] : *names) {
        if (value == from) value = to;
      }
    }
  }
}

Sharding sharding_on(const Mesh& mesh, const DeviceSharding& spec, const Shape& shape) {
  const size_t rank = shape.size();
  const std::vector<DeviceSharding::CutDim> cut = checked_cut(spec, shape);
  const std::vector<int64_t> shard = shard_of_ranks(spec, cut, mesh);
  Sharding out = Sharding::replicated(rank);
  int64_t inside = 1;  // shards of the dims behind
  for (size_t c = cut.size(); c-- > 0;) {
    std::vector<int64_t> index;
    for (int64_t of : shard) index.push_back(of / inside % cut[c].shards);
    Axes& axes = out.dims[at(cut[c].dim)];
    axes = find_axes(mesh, index, cut[c].shards);
    SR_REQUIRE(!axes.empty() || cut[c].shards == 1, invalid_input, "its devices cut dim ",
               cut[c].dim, " as no axes of mesh ", mesh.to_string(), " do");
    inside *= cut[c].shards;
  }
  check_sharding(out, mesh, rank);
  return out;
}

DeviceSharding device_sharding(const Sharding& sharding, const Mesh& mesh) {
  DeviceSharding out;
  int64_t shards = 1;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    int64_t own = 1;
    for (int axis : sharding.dims[d]) own *= mesh.axis_size(axis);
    if (own > 1) out.cut.push_back({static_cast<int64_t>(d), own});
    shards *= own;
  }
  out.devices.resize(at(shards));
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> where = mesh.coordinates(rank);
    int64_t shard = 0;
    for (const Axes& axes : sharding.dims) {
      for (int axis : axes) shard = shard * mesh.axis_size(axis) + where[at(axis)];
    }
    out.devices[at(shard)].push_back(rank);
  }
  return out;
}

}  // namespace shardrun
