// From a plan to its timeline.
#include "shardrun/simulate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/round_up.h"
#include "choices.h"
#include "measure/cluster.h"
#include "plan/plan.h"
#include "planner/planner_choice.h"
#include "ranks/backend.h"
#include "ranks/world.h"
#include "simulate/simulated_text.h"

namespace shardrun {
namespace {

constexpr double kGraphLaunch = 10e-6;  // s: recalled, of a CUDA graph
constexpr int kChunks = 2;
// Of what a call gives: beyond these a step's time would be no number.
constexpr double kMostTimes = 1e6, kMostDispatch = 1e9;  // us
constexpr int kMostDraws = 1'000'000;

void check_constants(const SimulateConstants& c) {
  const double dispatch = c.dispatch_us.value_or(0);
  SR_REQUIRE(dispatch >= 0 && dispatch <= kMostDispatch, invalid_input, "--dispatch-us is ",
             dispatch, ", wanted 0 to 1e9");
  for (const auto& [name, factor] :
       {std::pair("backward", c.backward), std::pair("products", c.products),
        std::pair("outside", c.outside), std::pair("memory", c.memory),
        std::pair("within", c.within), std::pair("between", c.between),
        std::pair("mixed", c.mixed)}) {
    SR_REQUIRE(std::isfinite(factor) && factor > 0, invalid_input, "--constants: ", name, " is ",
               factor, ", wanted more than 0");
  }
}

Pipeline pipeline_of(const SimulateRequest& r) {
  const bool interleaved =
      parse_choice("--schedule", kPipelineSchedules, r.schedule) == PipelineSchedule::interleaved;
  SR_REQUIRE(r.stages > 1 || !interleaved, invalid_input,
             "--schedule interleaved: is of pipeline stages; give --stages 2 or more");
  SR_REQUIRE(interleaved || !r.chunks, invalid_input, "--chunks ", *r.chunks, ": --schedule ",
             r.schedule, " has one part of the model on each stage; give --schedule interleaved");
  return {r.stages, interleaved ? r.chunks.value_or(kChunks) : 1};
}

/// nullopt: without failures.
std::optional<Goodput> goodput_of(const SimulateRequest& r, int64_t ranks) {
  if (r.mtbf_hours == 0) return std::nullopt;
  return goodput({.mtbf = r.mtbf_hours * 3600,
                  .checkpoint = r.checkpoint_minutes * 60,
                  .stall = r.checkpoint_stall_seconds,
                  .restart = r.restart_minutes * 60},
                 ranks);
}

/// All that does not depend on a plan. `ranks`: of all stages; 0: not known.
void check_request(const SimulateRequest& r, int64_t ranks) {
  const auto wanted = [](bool holds, const char* flag, double got, const char* what) {
    SR_REQUIRE(holds, invalid_input, flag, " is ", got, ", wanted ", what);
  };
  wanted(r.stages >= 1, "--stages", r.stages, "1 or more");
  wanted(r.chunks.value_or(kChunks) >= 2, "--chunks", r.chunks.value_or(kChunks), "2 or more");
  check_constants(r.constants);
  wanted(r.input_gb_s >= 1 / kMostTimes && r.input_gb_s <= kMostTimes, "--input-rate", r.input_gb_s,
         "1e-6 to 1e6");
  wanted(r.overlap_slowdown >= 1 && r.overlap_slowdown <= kMostTimes, "--beside",
         r.overlap_slowdown, "1 to 1e6");
  wanted(r.jitter >= 0 && r.jitter < 1, "--jitter", r.jitter, "0 or more, and less than 1");
  wanted(r.draws >= 2 && r.draws <= kMostDraws, "--draws", r.draws, "2 to 1000000");
  for (const auto& [rank, factor] : r.slow) {
    SR_REQUIRE(rank >= 0 && (ranks == 0 || rank < ranks), invalid_input, "--slow ", rank, "=",
               factor, ": there is no such rank, they are 0 to ", ranks - 1);
    SR_REQUIRE(std::isfinite(factor) && factor >= 1, invalid_input, "--slow ", rank, "=", factor,
               ": wanted a factor of 1 or more");
  }
  goodput_of(r, std::max<int64_t>(ranks, 1));
  pipeline_of(r);
  assumptions_named(r.assume);
  if (!r.comm_streams.empty()) parse_choice("--comm-streams", kCommStreams, r.comm_streams);
}

/// Throws invalid_input as schedule_of does, and where there are too many.
void check_micro_batches(const SimulateRequest& r, int64_t micro_batches) {
  constexpr int64_t kMost = 1 << 16;
  SR_REQUIRE(micro_batches <= kMost, invalid_input, micro_batches,
             " micro-batches are too many to simulate, wanted at most ", kMost);
  if (r.stages > 1) (void)schedule_of(pipeline_of(r), 0, static_cast<int>(micro_batches));
}

void check_settings(const SimulateRequest& r, const Cluster& cluster, int64_t ranks,
                    int64_t micro_batches) {
  SR_REQUIRE(ranks <= cluster.size() || cluster.oversubscribes, invalid_input, "--stages ",
             r.stages, ": ", ranks, " ranks, cluster '", cluster.name, "' has ", cluster.size(),
             " devices");
  check_micro_batches(r, micro_batches);
  check_request(r, ranks);
}

/// The constants of a request, in the settings that follow from the rest of it.
void set_constants(const SimulateRequest& r, const SimulateConstants& c, bool gpu,
                   StepSettings& out) {
  out.factors = {c.products, c.outside, c.memory, c.within, c.between, c.mixed};
  out.backward = c.backward;
  if (r.host) out.launch_seconds = c.dispatch_us ? *c.dispatch_us * 1e-6 : gpu ? kGraphLaunch : 0;
}

StepSettings settings_of(const SimulateRequest& r, const Cluster& cluster) {
  const bool gpu = cluster.collectives == Collectives::apart;
  StepSettings out;
  out.pipeline = pipeline_of(r);
  out.assumed = assumptions_named(r.assume);
  set_constants(r, r.constants, gpu, out);
  if (r.host) out.read_rate = gpu ? r.input_gb_s * 1e9 : cluster.memory_bandwidth.value();
  out.overlap_slowdown = r.overlap_slowdown;
  out.slow = r.slow;
  out.seed = r.seed;
  return out;
}

CommStreams comm_streams(const SimulateRequest& request, const Cluster& cluster) {
  if (request.comm_streams.empty())
    return assumptions_named(request.assume).collectives_between ? CommStreams::none
           : cluster.collectives == Collectives::apart           ? CommStreams::one
                                                                 : CommStreams::none;
  return parse_choice("--comm-streams", kCommStreams, request.comm_streams);
}

double seconds_of_steps(const ProgramWork& work) {
  double sum = 0;
  for (size_t s = 0; s < work.steps.size(); ++s) {
    sum += static_cast<double>(work.program->runs(work.program->steps[s])) * work.steps[s].seconds;
  }
  return sum;
}

/// The p50 and p95 of steps in which every rank is a lane of its own.
std::pair<double, double> draw(const std::vector<ProgramWork>& works,
                               const std::vector<int>& class_of, const Cluster& cluster,
                               StepSettings settings, const SimulateRequest& request) {
  settings.jitter = request.jitter;
  SimulatedStep step(works, class_of, cluster, settings);
  std::vector<double> seconds;
  for (int d = 0; d < request.draws; ++d) {
    step.run(static_cast<uint64_t>(d));
    seconds.push_back(step.simulation().makespan());
  }
  std::sort(seconds.begin(), seconds.end());
  const auto quantile = [&](double q) {  // the nearest rank's
    const auto place = static_cast<size_t>(std::ceil(q * static_cast<double>(seconds.size())));
    return seconds[place - 1];
  };
  return {quantile(0.5), quantile(0.95)};
}

}  // namespace

/// What a simulation is of. Nothing of it moves.
struct PreparedSimulation {
  const Cluster& cluster;
  StepSettings settings;
  CommStreams streams;
  PlanPrograms programs;
  std::vector<ProgramWork> works;  // by class
  SimulatedStep step;

  PreparedSimulation(const Model::Impl& model, const TrainingPlan::Impl& plan,
                     const SimulateRequest& request)
      : cluster(plan.cluster),
        settings(checked_settings(model, plan, request)),
        streams(comm_streams(request, cluster)),
        programs(model.train, plan.train, cluster, backend_traits()),
        works(works_of(plan)),
        step(works, class_of(), cluster, settings) {}
  const std::vector<int>& class_of() const { return programs.classes().of_rank; }

 private:
  static StepSettings checked_settings(const Model::Impl& model, const TrainingPlan::Impl& plan,
                                       const SimulateRequest& request) {
    check_settings(request, plan.cluster, request.stages * plan.train.mesh.size(),
                   step_of(model, plan).micro_batches);
    return settings_of(request, plan.cluster);
  }
  std::vector<ProgramWork> works_of(const TrainingPlan::Impl& plan) {
    std::vector<ProgramWork> out;
    for (int64_t first : programs.classes().first)
      out.push_back(work_of(programs.graph(), plan.train, cluster, programs.of_rank(first), streams,
                            settings.assumed));
    return out;
  }
};

namespace {

SimulateReport simulated(const Model::Impl& model, const TrainingPlan::Impl& plan,
                         const SimulateRequest& request) {
  PreparedSimulation prepared(model, plan, request);
  SimulatedStep& step = prepared.step;
  step.run();
  Simulated out{
      .model = model, .plan = plan, .request = request, .streams = prepared.streams, .step = step};
  out.steps_seconds = seconds_of_steps(prepared.works[0]);
  if (request.stages == 1) out.peak_bytes = *std::max_element(plan.bytes.begin(), plan.bytes.end());
  if (request.jitter > 0)
    out.jitter =
        draw(prepared.works, prepared.class_of(), prepared.cluster, prepared.settings, request);
  out.goodput = goodput_of(request, request.stages * plan.train.mesh.size());
  SimulateReport report;
  report.seconds = step.simulation().makespan();
  report.planned_seconds = plan.train.seconds;
  report.steps_seconds = out.steps_seconds;
  report.peak_bytes = out.peak_bytes;
  report.text = simulated_text(out);
  report.json = simulated_json(out);
  report.trace = simulated_trace(out);
  return report;
}

}  // namespace

PlanRequest request_of_stage(World& world, const PlanRequest& request,
                             const SimulateRequest& simulated) {
  return at_boundary([&] {
    check_request(simulated, request.ranks);
    const int stages = simulated.stages;
    PlanRequest out = request;
    if (stages == 1) return out;
    SR_REQUIRE(request.ranks % stages == 0, invalid_input, "--stages ", stages, ": ", request.ranks,
               " ranks are no multiple of it");
    out.ranks = request.ranks / stages;
    if (!request.plan_file.empty()) return out;
    if (request.mesh != "auto") {
      const Mesh mesh = Mesh::parse(request.mesh, out.ranks);
      SR_REQUIRE(mesh.size() == out.ranks, invalid_input, "--mesh ", mesh.to_string(), " has ",
                 mesh.size(), " ranks; it is of one stage, and ", request.ranks,
                 " ranks in --stages ", stages, " are ", out.ranks, " each");
    }
    // As many ranks as there are have to be on the cluster, and a stage's hold its layers alone.
    const Cluster cluster = planned_cluster(world, request, request.ranks);
    if (out.memory_bytes == 0) out.memory_bytes = cluster.memory_bytes * stages;
    return out;
  });
}

void check_planner(const std::string& planner) {
  at_boundary([&] { parse_planner(planner); });
}

void check_stages(const Model& model, const SimulateRequest& request) {
  at_boundary([&] {
    const Graph& graph = model.impl().train;
    const std::vector<std::string> by_node = layers_of(graph);
    const std::vector<StepPart> parts = parts_of(graph);
    std::set<std::string> layers;
    for (size_t n = 0; n < by_node.size(); ++n) {
      if (parts[n] == StepPart::forward && !by_node[n].empty()) layers.insert(by_node[n]);
    }
    require_layers(pipeline_of(request), std::ssize(layers));
    check_micro_batches(request, graph.micro_batches);
  });
}

SimulateReport simulate(World&, const Model& model, const TrainingPlan& plan,
                        const SimulateRequest& request) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return simulated(model.impl(), plan.impl(), request);
  });
}

struct Resimulation::Impl {
  SimulateRequest request;
  PreparedSimulation prepared;

  /// Of a step with so many micro-batches. `behind`, if given, gets the seconds from the end of
  /// micro-batch `from` to the end of the last.
  double simulated(int micro_batches, int from = 0, double* behind = nullptr) {
    prepared.settings.micro_batches = micro_batches;
    prepared.step.run();
    const Simulation& sim = prepared.step.simulation();
    const std::vector<TaskLabel>& labels = prepared.step.labels();
    double first = 0, last = 0;
    for (size_t t = 0; behind != nullptr && t < labels.size(); ++t) {
      if (labels[t].micro == from) first = std::max(first, sim.spans()[t].end);
      if (labels[t].micro == micro_batches - 1) last = std::max(last, sim.spans()[t].end);
    }
    if (behind != nullptr) *behind = last - first;
    const double seconds = sim.makespan();
    prepared.step.clear();  // there may be many of these
    return seconds;
  }
};

Resimulation::Resimulation(World&, const Model& model, const TrainingPlan& plan,
                           const SimulateRequest& request) {
  at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    impl_.reset(new Impl{request, PreparedSimulation(model.impl(), plan.impl(), request)});
  });
}

Resimulation::Resimulation(Resimulation&&) noexcept = default;
Resimulation::~Resimulation() = default;

double Resimulation::seconds(const SimulateConstants& constants, int micro_batches) {
  return at_boundary([&] {
    const int64_t made_for = impl_->prepared.works[0].program->micro_batches;
    SR_REQUIRE(micro_batches >= 1 && (micro_batches == 1) == (made_for == 1), invalid_input,
               micro_batches, " micro-batches of a model that was loaded for ", made_for);
    check_constants(constants);
    set_constants(impl_->request, constants,
                  impl_->prepared.cluster.collectives == Collectives::apart,
                  impl_->prepared.settings);
    // Behind the first ones, each takes as long as the one before it.
    const int stages = impl_->request.stages, first = 2 * stages, more = std::max(2, stages);
    if (micro_batches <= 2 * first + more) return impl_->simulated(micro_batches);
    double behind = 0;
    const double some = impl_->simulated(first + more, first - 1, &behind);
    if (stages > 1) behind = some - impl_->simulated(first);  // these overlap
    return some + behind * (micro_batches - first - more) / more;
  });
}

std::string cluster_of_devices(const std::string& cluster, int64_t devices) {
  return at_boundary([&] {
    const Cluster one = find_cluster(cluster, 1);
    const bool is_here = cluster.empty() || cluster == "host";
    if (is_here || one.oversubscribes || devices <= one.size()) return cluster;
    (void)find_cluster(cluster, devices);  // refuses a file
    const std::string factors = cluster.substr(std::min(cluster.find(','), cluster.size()));
    const std::string name = cluster.substr(0, cluster.size() - factors.size());
    return str(name.substr(0, name.find(':')), ":", divide_up(devices, one.devices), factors);
  });
}

}  // namespace shardrun
