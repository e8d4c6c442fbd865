// A model and its plan together: what one is depends on the other where micro-batches are counted
// by trying several.
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "explain/text.h"
#include "model.h"
#include "plan/micro_batches.h"
#include "plan/plan.h"
#include "ranks/backend.h"
#include "ranks/process_limit.h"
#include "ranks/world.h"

namespace shardrun {
namespace {

/// One number of micro-batches, and what came of planning it.
struct Trial {
  int64_t micro_batches = 0;
  bool fits = false;
  double seconds = 0;  // predicted, of the whole step
  int64_t bytes = 0;   // of the fullest rank
};

std::string tried_text(const std::vector<Trial>& trials, int64_t samples, size_t candidates) {
  std::string text = "micro-batches tried:";
  for (const Trial& t : trials) {
    text += str(&t == &trials[0] ? " " : ", ", t.micro_batches, " x ", samples / t.micro_batches,
                t.fits ? str(" ", format("%.2f", t.seconds * 1e3), " ms in ", mib(t.bytes))
                       : " does not fit");
  }
  if (trials.size() < candidates) {
    text += str("; ", candidates - trials.size(), " of ", candidates,
                " left out, which need more memory or get no faster");
  }
  return wrapped(std::string(6, ' '), text);
}

/// Every number of micro-batches that the choice wants to see.
ModelAndPlan plan_batch_sizes(World& world, const OnnxModel& onnx, ModelOptions options,
                              const PlanRequest& request,
                              const std::function<void(const Model&)>& on_model) {
  const int64_t samples = *options.global_batch;
  const std::vector<int64_t> candidates = candidate_micro_batches(samples);
  MicroBatchChoice choice(candidates.size());
  std::vector<Trial> trials;
  std::optional<ModelAndPlan> best;
  std::optional<Failure> refusal;  // of the last that did not fit: what that needs
  while (const std::optional<size_t> next = choice.next()) {
    Trial trial{candidates[*next]};
    options.accumulate = static_cast<int>(trial.micro_batches);
    options.batch = samples / trial.micro_batches;
    Model model = load_model(world, onnx, options);
    if (on_model && trials.empty()) on_model(model);
    try {
      TrainingPlan plan = make_plan(world, model, request);
      const std::vector<int64_t> bytes = plan.predicted_bytes();
      trial = {trial.micro_batches, true, plan.predicted_seconds(),
               *std::max_element(bytes.begin(), bytes.end())};
      choice.tell(*next, trial.seconds);
      if (choice.best() == next) best.emplace(ModelAndPlan{std::move(model), std::move(plan), ""});
    } catch (const Failure& failure) {  // the same on every rank
      if (failure.kind() != Failure::Kind::memory) throw;
      choice.tell(*next, std::nullopt);
      refusal = failure;
    }
    trials.push_back(trial);
  }
  if (!best) {
    throw Failure(Failure::Kind::memory,
                  str("--accumulate auto: the ", samples, " samples of a step fit in no number of ",
                      "micro-batches; in ", trials.back().micro_batches, ": ", refusal->what()),
                  refusal->everywhere());
  }
  best->tried = tried_text(trials, samples, candidates.size());
  return std::move(*best);
}

/// Turns of tactics are micro-batches.
ModelOptions with_turns(const ModelOptions& given, const std::vector<std::string>& tactics) {
  return at_boundary([&] {
    ModelOptions options = given;
    const std::optional<int> turns = turns_of(tactics);
    if (!turns) return options;
    SR_REQUIRE(!given.accumulate || given.accumulate == turns, invalid_input,
               "--accumulate and a tactic batch@turns say different numbers of micro-batches; "
               "leave out one of the two");
    options.accumulate = turns;
    return options;
  });
}

/// Turns `auto` into what is known without trying several: the plan file has it, or the model takes
/// no other batch, or --batch says how many samples a micro-batch has. Returns false where only a
/// trial can tell.
bool settle(World& world, const OnnxModel& onnx, const PlanRequest& request,
            ModelOptions& options) {
  if (options.accumulate != kAutoMicroBatches || !options.global_batch || options.batch)
    return true;  // or load_model says what is missing
  const std::string of_plan = decide_on_rank0(world, [&] {
    if (request.plan_file.empty()) return std::string();
    const ModelOptions planned = read_planned_model(request.plan_file).options;
    return str(planned.accumulate.value_or(1), " ", planned.batch.value_or(0));
  });
  if (!of_plan.empty()) {
    std::istringstream(of_plan) >> options.accumulate.emplace() >> options.batch.emplace();
    if (*options.batch == 0) options.batch.reset();
    return true;
  }
  const bool takes_any = !decide_on_rank0(world, [&] {
                            ModelOptions sized = options;
                            sized.batch = 1;
                            asked_batch(sized);  // are the numbers right?
                            return std::string(takes_any_batch(onnx.file(), options) ? "any" : "");
                          }).empty();
  if (!takes_any) options.accumulate.reset();  // as many as of the model's own batch
  return !takes_any;
}

}  // namespace

ModelAndPlan load_and_plan(World& world, const OnnxModel& onnx, const ModelOptions& given,
                           const PlanRequest& request,
                           const std::function<void(const Model&)>& on_model) {
  if (request.ranks == 0 && backend().arenas_on_host)
    limit_unpacking(request.memory_bytes, world.impl().mpi ? 1 : world.size());
  ModelOptions options = with_turns(given, request.tactics);
  if (!settle(world, onnx, request, options))
    return plan_batch_sizes(world, onnx, std::move(options), request, on_model);
  Model model = load_model(world, onnx, options);
  if (on_model) on_model(model);
  TrainingPlan plan = make_plan(world, model, request);
  return {std::move(model), std::move(plan), ""};
}

}  // namespace shardrun
