// Recording a rank's run, and bringing all ranks' events into one file.
#include "profile/profile.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/files/output_file.h"
#include "explain/names.h"
#include "explain/planned_steps.h"
#include "planner/cost/kernel_cost.h"
#include "program/memory.h"

namespace shardrun {
namespace {

/// Runs' events: every step of the Program, as often as it runs, and what is no step.
int64_t most_events(const Program& program) {
  int64_t events = 1 + program.micro_batches;
  for (const Step& step : program.steps) events += program.runs(step);
  return events;
}

std::vector<std::string> described(const std::vector<TensorType>& types,
                                   const std::vector<std::string>& shardings) {
  std::vector<std::string> out;
  for (size_t i = 0; i < types.size(); ++i) {
    out.push_back(str(types[i]));
    if (i < shardings.size()) out.back() += " " + shardings[i];
  }
  return out;
}

void send_text(Communicator& world, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  world.send(&size, sizeof size, 0);
  if (size > 0) world.send(text.data(), size, 0);
}

std::string receive_text(Communicator& world, int from) {
  int64_t size = 0;
  world.recv(&size, sizeof size, from);
  std::string text(static_cast<size_t>(size), '\0');
  if (size > 0) world.recv(text.data(), size, from);
  return text;
}

/// How far this rank's clock is ahead of rank 0's, in seconds: what rank 0 saw in the fastest of a
/// few questions and answers. Clocks of one machine are one, and then it is 0. Collective.
double clock_ahead(Communicator& world) {
  constexpr int kQuestions = 8;
  double ahead = 0;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (world.rank() != 0 && world.rank() != rank) continue;
    double fastest = 1e300, seen = 0, answer = 0;
    for (int i = 0; i < kQuestions; ++i) {
      if (world.rank() == 0) {
        const double asked = Timeline::now();
        world.send(&asked, sizeof asked, rank);
        world.recv(&answer, sizeof answer, rank);
        const double round = Timeline::now() - asked;
        if (round >= fastest) continue;
        fastest = round;
        seen = answer - (asked + round / 2);
      } else {
        world.recv(&answer, sizeof answer, 0);
        answer = Timeline::now();
        world.send(&answer, sizeof answer, 0);
      }
    }
    if (world.rank() == 0) {
      if (std::abs(seen) < fastest) seen = 0;  // within what can be resolved
      world.send(&seen, sizeof seen, rank);
    } else {
      world.recv(&ahead, sizeof ahead, 0);
    }
  }
  return ahead;
}

double least_of_all(Communicator& world, double own) {
  std::vector<double> all(static_cast<size_t>(world.size()));
  world.all_gather(&own, all.data(), std::vector<int64_t>(all.size(), 1), DType::f64);
  return *std::min_element(all.begin(), all.end());
}

/// Mean over the recorded steps, and the part of it in collectives, of every rank.
std::string ranks_line(Communicator& world, const RankProfile& own) {
  double mine[2] = {0, 0};
  for (const Timeline::Run& run : own.steps) {
    mine[0] += run.end - run.begin;
    for (const Timeline::Event& e : run.events) {
      if (e.step < own.training.size() && own.training[e.step].collective)
        mine[1] += e.end - e.begin;
    }
  }
  std::vector<double> all(2 * static_cast<size_t>(world.size()));
  world.all_gather(mine, all.data(), std::vector<int64_t>(all.size() / 2, 2), DType::f64);
  const double runs = static_cast<double>(std::max<size_t>(own.steps.size(), 1));
  std::string text = "ms a step of each rank (in collectives):";
  for (size_t r = 0; r < all.size() / 2; ++r) {
    char part[64];
    std::snprintf(part, sizeof part, " %.2f (%.2f)", all[2 * r] * 1e3 / runs,
                  all[2 * r + 1] * 1e3 / runs);
    text += part;
  }
  return text + "\n";
}

}  // namespace

std::vector<StepFacts> facts_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                                const Executor& executor) {
  const Program& program = executor.program();
  const PlannedSteps planned(graph, plan, cluster, program);
  std::vector<StepFacts> out;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    const std::vector<TensorType> in = types_of(program, step.in),
                                  results = types_of(program, step.out);
    const PlannedStep p = planned.of(s);
    StepFacts facts;
    facts.collective = step.kind == Step::Kind::collective;
    facts.name = step.node.name;
    facts.source = step.source;
    facts.predicted = p.seconds;
    facts.in = described(in, p.in);
    facts.out = described(results, p.out);
    if (facts.collective) {
      facts.op = to_string(step.collective->kind);
      facts.bytes = static_cast<double>(executor.bytes_sent(s));
    } else {
      facts.op = step.node.op;
      facts.kernel = executor.implementation(s);
      const KernelWork work = work_of(step.node, in, results);
      facts.flops = work.flops;
      facts.bytes = stays_in_place(program, step) ? 0 : work.bytes;
    }
    out.push_back(std::move(facts));
  }
  return out;
}

std::string host_work(size_t step) {
  return step == Timeline::kReading   ? "reading a batch"
         : step == Timeline::kZeroing ? "zeroing gradients"
                                      : "";
}

double share_of(size_t s, const Timeline::Event& event, const std::vector<StepFacts>& facts) {
  double bytes = 0;
  for (size_t other = event.step; other < event.step + event.count; ++other)
    bytes += facts[other].bytes;
  return bytes > 0 ? facts[s].bytes / bytes : 1 / static_cast<double>(event.count);
}

Profiler::Profiler(const Model::Impl& model, const TrainingPlan::Impl& plan,
                   const TrainOptions& options, Executor& training, Executor* validation)
    : training(options.profile_steps, most_events(training.program())),
      validation(options.profile_steps, validation ? most_events(validation->program()) : 0),
      model_(model),
      plan_(plan),
      options_(options),
      training_executor_(training),
      validation_executor_(validation) {
  training.record(&this->training);
  if (validation) validation->record(&this->validation);
}

RankProfile Profiler::of_rank(int64_t rank) const {
  RankProfile own;
  own.rank = rank;
  own.place = place_of(plan_.train.mesh, own.rank);
  own.training = facts_of(step_of(model_, plan_), plan_.train, plan_.cluster, training_executor_);
  own.steps = training.runs();
  if (validation_executor_) {
    own.validation =
        facts_of(model_.evaluation, plan_.evaluation, plan_.cluster, *validation_executor_);
    own.passes = validation.runs();
    std::erase_if(own.passes, [&](const Timeline::Run& pass) {
      return own.steps.empty() || pass.begin < own.steps[0].begin;  // of long before
    });
  }
  return own;
}

std::string Profiler::tell(Communicator& world, const RankProfile& own,
                           std::string& unwritten) const {
  try {
    if (!options_.profile.empty()) write_trace(world, own);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::comm) throw;
    unwritten = e.what();
  }
  if (!options_.profile_summary) return "";
  const std::string ranks = ranks_line(world, own);
  return world.rank() == 0 ? profile_table(own) + (world.size() > 1 ? ranks : "") : "";
}

void Profiler::write_trace(Communicator& world, const RankProfile& own) const {
  const double ahead = clock_ahead(world);
  const double first = own.steps.empty() ? Timeline::now() : own.steps[0].begin;
  const double zero = least_of_all(world, first - ahead);
  const std::string events = trace_events(own, zero + ahead);
  if (world.rank() != 0) return send_text(world, events);
  const nlohmann::ordered_json about = {{"model", model_.path},
                                        {"dtype", model_.options.dtype},
                                        {"mesh", plan_.train.mesh.to_string()},
                                        {"planner", plan_.train.planner},
                                        {"ranks", world.size()},
                                        {"threads of a rank", omp_get_max_threads()},
                                        {"cluster", plan_.cluster.about}};
  const std::string head =
      about.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::vector<std::string> rest;  // all ranks' first: they wait, whatever becomes of the file
  for (int rank = 1; rank < world.size(); ++rank) rest.push_back(receive_text(world, rank));
  OutputFile out(options_.profile);
  std::ostream& file = out.stream();
  file << R"({"displayTimeUnit":"ms","otherData":)" << head << ",\n\"traceEvents\":[\n" << events;
  for (const std::string& theirs : rest) file << ",\n" << theirs;
  file << "\n]}\n";
  out.finish();
}

}  // namespace shardrun
