// Verification: one step of a plan, and a validation, on the World's ranks compared with one
// rank's.
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/passes/training.h"
#include "inference/token_step.h"
#include "plan/plan.h"
#include "planner/token_steps.h"
#include "ranks/backend.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "train/batches.h"
#include "verify/replay.h"

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
  if (!m.training) out << "validation: ";
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

/// The training step's, and with an evaluation plan the validation's.
std::vector<ReplayAct> acts_of(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  std::vector<ReplayAct> acts;
  const auto whole = [&](const Graph& graph, const Program* training) {
    return compile(graph, whole_plan(graph), plan.cluster, 0, backend_traits(),
                   {.steps = Steps::all, .persistent_like = training});
  };
  const Graph& step = step_of(model, plan);
  acts.push_back({step, plan.train, {}, whole(step, nullptr), model.no_training.empty()});
  if (plan.with_evaluation) {
    acts.push_back(
        {model.evaluation, plan.evaluation, {}, whole(model.evaluation, &acts[0].whole), false});
  }
  for (int64_t rank = 0; rank < plan.train.mesh.size(); ++rank) {
    acts[0].programs.push_back(compile(step, plan.train, plan.cluster, rank, backend_traits()));
    if (plan.with_evaluation) {
      acts[1].programs.push_back(compile(model.evaluation, plan.evaluation, plan.cluster, rank,
                                         backend_traits(),
                                         {.persistent_like = &acts[0].programs.back()}));
    }
  }
  return acts;
}

VerifyReport to_report(const Replay& result) {
  VerifyReport report;
  report.values = result.values;
  report.comparisons = result.comparisons;
  report.fused = result.fused;
  report.largest = result.largest;
  report.verified = !result.mismatch;
  if (result.mismatch) report.mismatch = mismatch_text(*result.mismatch);
  return report;
}

/// What rank 0 found, on every rank.
VerifyReport shared(World& world, const VerifyReport& mine) {
  const auto found = nlohmann::json::parse(decide_on_rank0(world, [&] {
    return nlohmann::json{{"verified", mine.verified},       {"values", mine.values},
                          {"comparisons", mine.comparisons}, {"fused", mine.fused},
                          {"largest", mine.largest},         {"mismatch", mine.mismatch}}
        .dump();
  }));
  return {found["verified"], found["values"],  found["comparisons"],
          found["fused"],    found["largest"], found["mismatch"]};
}

}  // namespace

VerifyReport verify(World& world, const Model& model, const TrainingPlan& plan,
                    const TrainOptions& options) {
  check_verification(world, model, options);
  const VerifyReport mine = at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    const int64_t ranks = impl.train.mesh.size();
    SR_REQUIRE(world.size() == ranks, invalid_input, "verify: the plan is for ", ranks,
               " ranks, there are ", world.size());
    require_made_for(model.impl(), impl);
    share_cores(world.impl());
    Communicator* mpi = ranks > 1 ? world.impl().mpi.get() : nullptr;
    const std::vector<ReplayAct> acts = acts_of(model.impl(), impl);

    const std::vector<BatchField> fields = batch_fields(model.impl().train, options);
    const std::unique_ptr<DataSource> data = open_batches(model.impl().train, options);
    if (mpi) require_same(*mpi, "verify", data_of_rank(*data, options));
    ReplayOptions replay_options;
    replay_options.seed = model.impl().options.seed;
    replay_options.lr = options.lr;
    if (const std::optional<int64_t> last = last_position(model.impl().train))
      replay_options.scalars = {{kPosition, *last}};
    replay_options.open = [&](Communicator& host) {
      std::unique_ptr<RankDevice> on = backend().open(host);
      if (world.impl().timeout) on->comm().set_timeout(*world.impl().timeout);
      return on;
    };
    replay_options.on_thread = [&] { share_cores(world.impl()); };
    replay_options.fill = [&](int64_t micro, bool validation, const std::string& name,
                              const Box& box, void* out) {
      for (const BatchField& field : fields) {
        const bool test = name == kTestPrefix + field.name;
        if (!test && name != field.name) continue;
        const Split split = test ? Split::test : Split::validation;
        const bool kept = validation && data->batches(split) > 0;
        data->read(micro, kept ? split : Split::training, field, box, out);
      }
    };
    return to_report(mpi ? replay_over(*mpi, acts, backend().kernels, replay_options)
                         : replay(acts, backend().kernels, replay_options));
  });
  return world.impl().mpi && world.size() > 1 ? shared(world, mine) : mine;
}

}  // namespace shardrun
