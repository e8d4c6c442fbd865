// Dividing values among files.
#include "exec/checkpoint/layout.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "exec/safetensors.h"

namespace shardrun {
namespace {

std::string file_name(int64_t rank) {
  std::string number = str(rank + 1);
  if (number.size() < 5) number.insert(0, 5 - number.size(), '0');
  return str("shard-", number, "-model-00001-of-00001.safetensors");
}

/// Which rows, along the first dim of `box` that has several, are those in [begin, end) of the
/// `bytes` that its elements take: those whose first byte is there.
Box rows_between(const Box& box, int64_t bytes, int64_t begin, int64_t end) {
  size_t dim = 0;
  while (dim < box.size() && box[dim].size == 1) ++dim;
  const int64_t rows = dim == box.size() ? 1 : box[dim].size, row = bytes / rows;
  const auto row_at = [&](int64_t byte) {
    return std::clamp<int64_t>((byte + row - 1) / row, 0, rows);
  };
  const int64_t first = row_at(begin), count = row_at(end) - first;
  Box out = box;
  if (dim < box.size()) {
    out[dim] = {box[dim].begin + first, count};
  } else if (count == 0) {
    return {{0, 0}};
  }
  return out;
}

/// Keys: a value's name, for the first of its pieces in a file. PyTorch's distributed checkpoints
/// (torch/distributed/checkpoint/hf_storage.py) name and describe pieces likewise, and can put
/// them together.
void write_header(const std::vector<Binding>& bindings, RankFile& file) {
  std::vector<SafetensorsTensor> tensors;
  std::set<std::string> taken;
  nlohmann::json places = nlohmann::json::object();
  for (const Piece& piece : file.pieces) {
    const Binding& b = bindings[piece.binding];
    std::string key = b.name;
    for (int again = 2; !taken.insert(key).second; ++again) key = str(b.name, "#", again);
    std::vector<int64_t> offsets;
    for (const Range& range : piece.part.file) offsets.push_back(range.begin);
    places[key] = {{"saved_offsets", offsets}};
    tensors.push_back({key, {b.global.dtype, box_shape(piece.part.file)}});
  }
  file.header = safetensors_header(
      tensors, {{"format", "pt"}, {"DCP_SHARDING_INFO", places.dump()}, {"DCP_VERSION", "1.0"}});
}

}  // namespace

std::vector<KeptValue> kept_values(const Graph& graph) {
  std::vector<KeptValue> out;
  for (const auto& [id, source] : graph.sources) {
    const Value& value = graph.value(id);
    if (is_kept(value.role, graph.zeroed_each_step.count(id) > 0))
      out.push_back({value.name, {value.type.dtype, graph.file_shape(id)}});
  }
  return out;
}

std::vector<KeptValue> kept_values(const std::vector<Binding>& bindings) {
  std::vector<KeptValue> out;
  for (const Binding& b : bindings) {
    if (is_kept(b.role, b.zeroed_each_step))
      out.push_back({b.name, {b.global.dtype, b.file_shape}});
  }
  return out;
}

Replica replica_of(const Sharding& sharding, const Mesh& mesh, int64_t rank) {
  std::set<int> cutting;
  for (const auto& axes : sharding.dims) cutting.insert(axes.begin(), axes.end());
  const std::vector<int64_t> at = mesh.coordinates(rank);
  Replica out;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    if (cutting.count(axis) > 0) continue;
    out.index = out.index * mesh.axis_size(axis) + at[static_cast<size_t>(axis)];
    out.count *= mesh.axis_size(axis);
  }
  return out;
}

RankFile file_of_rank(const std::vector<Binding>& bindings, const Mesh& mesh, int64_t rank) {
  // Values that are whole along the same axes are held by the same ranks, which divide them as if
  // they lay one after the other.
  struct Held {
    size_t binding;
    Box box;
    int64_t bytes, before;
  };
  struct Group {
    Replica replica;
    std::vector<Held> values;
    int64_t bytes = 0;
  };
  std::map<std::set<int>, Group> groups;
  const std::vector<int64_t> at = mesh.coordinates(rank);
  for (size_t i = 0; i < bindings.size(); ++i) {
    const Binding& b = bindings[i];
    if (!is_kept(b.role, b.zeroed_each_step)) continue;
    SR_REQUIRE(b.sharding.partial.empty(), unsupported, "'", b.name, "' lies as ",
               to_string(b.sharding, mesh), ": checkpoints do not keep partial sums");
    std::set<int> cutting;
    for (const auto& axes : b.sharding.dims) cutting.insert(axes.begin(), axes.end());
    Group& group = groups[cutting];
    group.replica = replica_of(b.sharding, mesh, rank);
    const Box box = local_box(b.global.shape, b.sharding, mesh, at);
    const int64_t bytes = is_empty(box) ? 0 : byte_size({b.global.dtype, box_shape(box)});
    if (bytes == 0) continue;
    group.values.push_back({i, box, bytes, group.bytes});
    group.bytes += bytes;
  }
  RankFile file;
  file.name = file_name(rank);
  for (const auto& [axes, group] : groups) {
    const auto [index, count] = group.replica;
    const auto border = [all = group.bytes, parts = count](int64_t of) {
      return static_cast<int64_t>(static_cast<__int128>(all) * of / parts);
    };
    for (const Held& held : group.values) {
      const Box box = rows_between(held.box, held.bytes, border(index) - held.before,
                                   border(index + 1) - held.before);
      if (is_empty(box)) continue;
      const Binding& b = bindings[held.binding];
      for (Part& part : parts_of(b.file_shape, b.global.shape, box)) {
        const int64_t bytes = byte_size({b.global.dtype, box_shape(part.file)});
        file.pieces.push_back({held.binding, std::move(part), 0, bytes});
      }
    }
  }
  // Larger elements first: each begins at a multiple of its size, with nothing between.
  std::stable_sort(file.pieces.begin(), file.pieces.end(), [&](const Piece& a, const Piece& b) {
    const auto key = [&](const Piece& piece) {
      return std::pair(-size_of(bindings[piece.binding].global.dtype), piece.binding);
    };
    return key(a) < key(b);
  });
  write_header(bindings, file);
  file.bytes = static_cast<int64_t>(file.header.size());
  for (Piece& piece : file.pieces) {
    piece.offset = file.bytes;
    file.bytes += piece.bytes;
  }
  return file;
}

}  // namespace shardrun
