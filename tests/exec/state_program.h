// Programs that hold parameters and state and do nothing: what checkpoints save and read.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/round_up.h"
#include "exec/executor.h"
#include "tests/collectives/ranks.h"

namespace shardrun::test {

/// A value as the model's file has it, and as a pass views it (empty: alike).
struct StateValue {
  std::string name;
  TensorType type;
  Shape viewed = {};
  Role role = Role::parameter;
  bool zeroed = false;
  const Shape& shape() const { return viewed.empty() ? type.shape : viewed; }
};

/// Which elements they are in the whole tensor, so that each is known wherever it lies.
inline Source numbered(const StateValue& value) {
  Source source;
  source.kind = Source::Kind::data;
  source.data = Tensor(value.type);
  const int64_t width = size_of(value.type.dtype);
  std::minstd_rand random(static_cast<unsigned>(std::hash<std::string>{}(value.name)));
  auto* bytes = source.data.as<unsigned char>();
  for (int64_t i = 0; i < source.data.count() * width; ++i)
    bytes[i] = value.type.dtype == DType::boolean ? random() % 2 : random() % 256;
  return source;
}

/// How value `i` lies: by its dims, the axes that cut it.
using Shardings = std::vector<std::vector<Axes>>;

inline Program state_program(const std::vector<StateValue>& values, const Mesh& mesh,
                             const Shardings& shardings, int64_t rank) {
  Program program;
  program.mesh = mesh;
  program.rank = rank;
  for (size_t i = 0; i < values.size(); ++i) {
    const StateValue& value = values[i];
    Binding b;
    b.name = value.name;
    b.role = value.role;
    b.global = {value.type.dtype, value.shape()};
    b.file_shape = value.type.shape;
    b.zeroed_each_step = value.zeroed;
    b.sharding.dims = shardings[i];
    b.box = local_box(b.global.shape, b.sharding, mesh, mesh.coordinates(rank));
    b.source = numbered(value);
    b.buffer = static_cast<BufferId>(program.buffers.size());
    const TensorType type{b.global.dtype, box_shape(b.box)};
    program.buffers.push_back({value.name, type, program.arena_bytes});
    program.arena_bytes += round_up(byte_size(type), kArenaAlignment);
    program.bindings.push_back(std::move(b));
  }
  program.persistent_bytes = program.arena_bytes;
  return program;
}

/// Each axis cuts one dim or none, whichever.
inline Shardings random_shardings(const std::vector<StateValue>& values, const Mesh& mesh,
                                  std::minstd_rand& random) {
  Shardings out;
  for (const StateValue& value : values) {
    std::vector<Axes> dims(value.shape().size());
    for (int axis = 0; axis < mesh.axis_count(); ++axis) {
      const size_t dim = random() % (dims.size() + 1);
      if (dim < dims.size()) dims[dim].push_back(axis);
    }
    out.push_back(std::move(dims));
  }
  return out;
}

/// What a rank ought to hold.
inline Tensor expected_shard(const StateValue& value, const Binding& b) {
  Tensor out({b.global.dtype, box_shape(b.box)});
  read_source(numbered(value), b.global, b.box, 0, out.data());
  return out;
}

inline bool equal_bytes(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() &&
         (a.count() == 0 ||
          std::memcmp(a.data(), b.data(), static_cast<size_t>(byte_size(a.type()))) == 0);
}

/// A folder that goes with the test.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::path(testing::TempDir()) / (name + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace shardrun::test
