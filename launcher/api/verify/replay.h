// Replaying a plan's training step and validation against one rank's, value by value.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "graph/plan.h"
#include "graph/program.h"
#include "kernels/kernel.h"
#include "ranks/rank_device.h"

namespace shardrun {

/// What is replayed: a Graph with its plan and the placed Programs, the ranks' as they train.
/// Several run one after the other in the arena of the first.
struct ReplayAct {
  const Graph& graph;
  const Plan& plan;
  std::vector<Program> programs;  // of every rank of the plan's mesh, by rank
  Program whole;                  // the same Graph's for one rank, a step for every node
  bool training = true;           // else validation: the micro nodes once
};

struct ReplayOptions {
  uint64_t seed = 0;
  double lr = 3e-4;
  std::map<std::string, int64_t> scalars = {};  // what other scalars are, by name
  double tolerance = 0x1p-16;                   // see Replay
  /// Writes the part `box` of batch value `name` of one micro-batch as dense elements of its type.
  std::function<void(int64_t micro, bool validation, const std::string& name, const Box& box,
                     void* out)>
      fill;
  std::function<void()> on_thread = nullptr;  // called first on every thread that runs steps
  /// What each rank, the one rank and its shadow run on; null: on the host.
  OpenDevice open = nullptr;
};

/// The first value that differs, and there the first rank's first element.
struct Mismatch {
  std::string value;  // the Graph value's name
  std::string where;  // what left it so: "add 'blk0/add'", "all_reduce to [-, -]", "after the
                      // update", "after validation"
  std::string sharding;
  std::vector<int64_t> ranks;    // the rank, or those whose partial values were combined
  std::vector<int64_t> element;  // global coordinates
  double got = 0, wanted = 0;
  double allowed = 0;  // |got - wanted| at most
  bool training = true;
};

/// What was compared, up to the first mismatch.
///
/// Once compared, a value is set to what one rank has (of partial sums, the first is corrected), so
/// that every node starts from equal operands: rounding does not add up, and a small difference
/// cannot be blown up further on, as Adam's first step does with the sign of a gradient that is
/// nearly zero.
///
/// How much may a value differ? Sums in another order round differently, and where terms cancel,
/// the rounding can be all that is left: the gradient of a key's bias is zero in exact arithmetic,
/// about 1e-10 in floats, and never twice the same. So a second run on one rank, the shadow, whose
/// every value is the reference's blurred by a relative `blur` (2^-20 for f32: some sixteen
/// roundings), shows how much each result is worth knowing. A value's scale is the larger of its
/// largest magnitude and |shadow - reference| / blur, and |got - wanted| may be `tolerance` times
/// its scale (coarser for bf16, by its own blur). Blurred operands do not show how a sum itself
/// rounds, which grows faster: from 2^16 terms on, terms / 2^16 times as much is allowed. A
/// wrong shard is wrong by the value's own size: some 2^16 times more. What persists has to be the
/// same bit for bit after a validation as before.
struct Replay {
  int64_t values = 0;  // distinct values of the Graphs that were compared
  int64_t comparisons =
      0;               // of them, of their resharded copies, and of what persists after each act
  int64_t fused = 0;   // nodes that ranks run as a part of another's step, whose results are not
                       // there to be compared (runtime/program/fusion/patterns.h)
  double largest = 0;  // |got - wanted| / scale, over all of them, the mismatch apart
  std::optional<Mismatch> mismatch;
};

/// Runs the acts' programs on as many threads as the plan has ranks, in lock-step with `whole`, and
/// compares after every step that they share (replay_steps.h). Partial values are combined first.
/// Throws what a rank throws. The one rank and its shadow run on devices like the ranks', with the
/// same kernels: what is found is what cutting changed, and not how a GPU's sums round.
Replay replay(const std::vector<ReplayAct>& acts, std::span<const KernelList* const> lists,
              const ReplayOptions& options);

/// The same with the ranks of `world`, which all call it; what they leave is sent to rank 0, which
/// compares. All give every rank's programs. The result is rank 0's; others get an empty one.
Replay replay_over(Communicator& world, const std::vector<ReplayAct>& acts,
                   std::span<const KernelList* const> lists, const ReplayOptions& options);

/// The Plan of one rank: everything whole.
Plan whole_plan(const Graph& graph);

}  // namespace shardrun
