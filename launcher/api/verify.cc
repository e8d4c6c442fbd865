// Verification: one step of a plan on thread ranks beside one rank.
#include <cstdio>
#include <sstream>

#include "backend.h"
#include "batches.h"
#include "exec/executor.h"
#include "plan.h"
#include "planner/partition.h"
#include "replay.h"
#include "world.h"

namespace shardrun {
namespace {

std::string list_text(const std::vector<int64_t>& items) {
  std::string out;
  for (int64_t item : items) out += str(out.empty() ? "" : ", ", item);
  return out;
}

std::string mismatch_text(const Mismatch& m) {
  std::ostringstream out;
  out.precision(9);
  out << "value '" << m.value << "' (" << m.where << ", " << m.sharding << ") differs: ";
  if (m.ranks.size() == 1) {
    out << "rank " << m.ranks[0];
  } else {
    out << "ranks " << list_text(m.ranks) << " combined";
  }
  out << ", element [" << list_text(m.element) << "]: got " << m.got << ", one rank has "
      << m.wanted << " (allowed difference " << m.allowed << ")";
  return out.str();
}

}  // namespace

VerifyReport verify(World& world, const Model& model, const TrainingPlan& plan,
                    const TrainOptions& options) {
  return at_boundary([&] {
    SR_REQUIRE(
        !world.impl().mpi || world.size() == 1, invalid_input,
        "verify: runs its ranks as threads of one process; call it without mpirun, with --ranks");
    const Graph& graph = model.impl().train;
    const TrainingPlan::Impl& impl = plan.impl();
    const int64_t ranks = impl.train.mesh.size();
    World threads =
        World::threads(static_cast<int>(ranks));  // its share of the cores, not this World's
    share_cores(threads.impl());
    std::vector<Program> programs;
    for (int64_t rank = 0; rank < ranks; ++rank)
      programs.push_back(compile_for_rank(model.impl(), impl, rank).train);
    const StepWorkspaces workspaces(backend_kernels());
    Program whole = partition(graph, whole_plan(graph), impl.cluster, 0);
    place_memory(whole, workspaces);

    const std::vector<BatchField> fields = batch_fields(graph);
    const std::unique_ptr<DataSource> data = open_batches(graph, options);
    ReplayOptions replay;
    replay.seed = model.impl().options.seed;
    replay.lr = options.lr;
    replay.accumulate = model.impl().options.accumulate;
    replay.on_thread = [&] { share_cores(threads.impl()); };
    replay.fill = [&](int64_t micro, const std::string& name, const Box& box, void* out) {
      for (const BatchField& field : fields) {
        if (field.name == name) data->read(micro, Split::training, field, box, out);
      }
    };
    const Replay result =
        replay_step(graph, impl.train, programs, whole, backend_kernels(), replay);
    VerifyReport report;
    report.values = result.values;
    report.comparisons = result.comparisons;
    report.largest = result.largest;
    report.verified = !result.mismatch;
    if (result.mismatch) report.mismatch = mismatch_text(*result.mismatch);
    return report;
  });
}

}  // namespace shardrun
