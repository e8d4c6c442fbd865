// Program: what one rank runs. Local nodes with local shapes, collectives, a schedule, and an
// offset in one arena for every buffer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/collective.h"
#include "graph/graph.h"
#include "graph/mesh.h"
#include "graph/sharding.h"

namespace shardrun {

using BufferId = int32_t;

/// One local tensor. Several buffers may share an offset: in place, or one after the other.
struct Buffer {
  std::string name;  // the Graph value's, with '@[…]' behind it for a resharded copy
  TensorType type;   // local shape
  int64_t offset =
      -1;  // bytes from the arena's start, a multiple of kArenaAlignment; -1 before placement
};
inline constexpr int64_t kArenaAlignment = 64;

/// What a backend needs for a step besides its buffers.
struct StepBytes {
  int64_t workspace = 0;  // its kernel's, or staging of a collective: for as long as it runs
  int64_t kept = 0;       // its kernel's alone, from step to step

  bool operator==(const StepBytes&) const = default;
};

/// Can a kernel do some rows at a time (PreparedKernel::run_rows), and whose? All dims but the last
/// count as one.
enum class RowWise { none, result, operand };  // rows of result 0, of operand 0

/// How a backend can run a step with its neighbours.
struct StepFusion {
  RowWise rows = RowWise::none;
  const void* elements = nullptr;  // steps of the same, not null, can be one kernel
};

struct Step {
  enum class Kind { kernel, collective };
  Kind kind = Kind::kernel;
  Phase phase = Phase::micro;
  Node node;  // kernel: the local node; its ValueIds are BufferIds of this Program. collective:
              // name only
  std::shared_ptr<const Collective> collective;  // collective; equal layers share theirs
  std::vector<BufferId> in, out;
  StepBytes needs;
  RowWise rows = RowWise::none;
  int32_t call = 0;  // not 0: one call does this collective and its neighbours of the same number
  int64_t workspace_offset = -1, kept_offset = -1;
  std::string source;  // the Graph node or value this step comes from, for people
};

/// Consecutive steps that run as one. They leave in memory what they would leave one by one, but
/// for what is unwritten.
struct FusedSteps {
  enum class Kind {
    elements,  // one kernel does all of them, element by element
    rows       // some rows at a time go through all of them, and stay in cache meanwhile
  };
  Kind kind = Kind::elements;
  size_t first = 0, size = 0;         // of Program::steps
  std::vector<BufferId> unwritten{};  // elements: results that no other step reads
  int64_t rows_at_once = 0;           // rows: at least 1 once memory is placed

  size_t end() const { return first + size; }
  bool operator==(const FusedSteps&) const = default;
};

/// What the host fills or reads: batch shards, scalars, parameters, state, constants; outputs.
struct Binding {
  std::string name;  // the Graph value's
  BufferId buffer = -1;
  Role role = Role::computed;  // computed: an output or a metric
  TensorType global;
  Box box;  // this rank's shard
  Sharding sharding;
  Source source;                  // parameter, state, constant
  Shape file_shape;               // likewise: Graph::file_shape
  bool zeroed_each_step = false;  // Graph::zeroed_each_step
};

struct Program {
  Mesh mesh;
  int64_t rank = 0;
  int64_t micro_batches = 1;  // Graph::micro_batches
  std::vector<Buffer> buffers;
  /// Kernels that run once, before the first step and whenever parameters have come from elsewhere.
  /// What they make persists, and `steps` keep it up: weights' bf16 copies
  /// (runtime/program/keep_casts.h).
  std::vector<Step> setup;
  std::vector<Step> steps;        // micro steps, then update steps
  std::vector<FusedSteps> fused;  // of steps, in order and apart from each other
  std::vector<Binding> bindings;  // everything of role != computed
  std::vector<Binding> outputs;   // in the Graph's order; replicated unless they stay cut there
  std::vector<Binding> metrics;   // scalars, named as in Graph::metrics; replicated
  int64_t arena_bytes = 0;        // persistent and temporary together
  int64_t persistent_bytes = 0;   // [0, persistent_bytes): what lives from one step to the next

  /// How often one of `steps` runs in a training step.
  int64_t runs(const Step& step) const { return step.phase == Phase::micro ? micro_batches : 1; }
};

const TensorType& type_of(const Program& program, BufferId id);
std::vector<TensorType> types_of(const Program& program, const std::vector<BufferId>& ids);

/// Does the call of a Communicator that does the step before `s` do `s` as well (Step::call)? Such
/// steps are all_reduces over the same ranks, each in place; run one by one they leave the same
/// bits (runtime/program/combine_collectives.h).
bool joins_call(const Program& program, size_t s);
/// Of the first step of a call: how many it does. 1 for a kernel's, or a collective by itself.
size_t call_size(const Program& program, size_t first);

std::string to_string(const Program& program);

}  // namespace shardrun
