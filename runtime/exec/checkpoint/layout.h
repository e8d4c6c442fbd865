// Which bytes of a training run's state a rank writes into its file of a checkpoint, and where.
//
// State is kept under the names and in the shapes of the model's file, whatever the plan and the
// passes make of it, so that any other plan can read it. Nothing here touches a disk or a
// communicator: every rank knows what every other one writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/divided.h"
#include "graph/program.h"

namespace shardrun {

/// A persistent value that training changes, or that its results depend on: parameters, frozen ones
/// too, and state, but for what starts every step at zero. Constants are the model file's.
inline bool is_kept(Role role, bool zeroed_each_step) {
  return role == Role::parameter || (role == Role::state && !zeroed_each_step);
}

/// As a checkpoint has it.
struct KeptValue {
  std::string name;
  TensorType type;  // shape: the model file's
  friend bool operator==(const KeptValue&, const KeptValue&) = default;
};
std::vector<KeptValue> kept_values(const Graph& graph);
std::vector<KeptValue> kept_values(const std::vector<Binding>& bindings);

/// One part of one value, as it lies in a rank's file.
struct Piece {
  size_t binding = 0;  // in the Program's list
  Part part;
  int64_t offset = 0, bytes = 0;  // in the file
};

/// How many ranks hold the same box of a value as this one, and which of them, from 0, this is.
struct Replica {
  int64_t index = 0, count = 1;
};
Replica replica_of(const Sharding& sharding, const Mesh& mesh, int64_t rank);

/// The file of one rank: a whole safetensors file. Every byte of a value is in one file only; ranks
/// that hold the same divide it among them, by bytes, as evenly as whole rows allow. Example: two
/// ranks hold w [100, 10] and b [10] whole: the first writes w's rows 0 to 50, the second the rest
/// and b.
struct RankFile {
  std::string name;    // "shard-00003-model-00001-of-00001.safetensors" of rank 2
  std::string header;  // of the safetensors file, its length in front
  std::vector<Piece> pieces;
  int64_t bytes = 0;
};
/// `bindings`: of any rank's Program; what is rank's own in them is not looked at. Throws
/// unsupported where a value that is kept lies in partial sums.
RankFile file_of_rank(const std::vector<Binding>& bindings, const Mesh& mesh, int64_t rank);

}  // namespace shardrun
