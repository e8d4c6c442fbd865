// Runs of parts, each lane's in the order of its schedule as soon as what it takes is there.
#include "simulate/step_tasks.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/at.h"
#include "base/error.h"

namespace shardrun {
namespace {

using What = TaskLabel::What;

/// Streams of a lane: kernels, those of collectives, and these behind them.
enum Extra { kHost, kActivations, kGradients, kExtras };

int number_of(const PartRun& run) {
  return 2 * run.part + (run.pass == PartRun::Pass::backward ? 1 : 0);
}

std::vector<int> key_of(int lane, const PartRun& run) { return {lane, number_of(run), run.micro}; }

}  // namespace

struct SimulatedStep::Lane {
  std::vector<int> streams, last;  // by stream of the lane: its number, and its last task
  std::vector<PartRun> runs;
  size_t next = 0;           // of runs
  std::vector<int> ended;    // what the run before, and what it waits for, ended with
  std::vector<bool> begun;   // by stream: has it had a task of this run?
  std::vector<int> task_of;  // by step: its last task in this run, or -1
  double factor = 1;         // slower by; of this run
  double slow = 1;
  std::mt19937_64 random;
};

SimulatedStep::SimulatedStep(const std::vector<ProgramWork>& works,
                             const std::vector<int>& class_of, const Cluster& cluster,
                             const StepSettings& settings)
    : works_(works), cluster_(cluster), settings_(settings) {
  const Mesh& mesh = works[0].program->mesh;
  plan_ranks_ = mesh.size();
  const int64_t stages = settings.pipeline.stages, ranks = stages * plan_ranks_;
  std::vector<Mesh::Axis> axes = {{"%stage", stages}};
  axes.insert(axes.end(), mesh.axes().begin(), mesh.axes().end());
  const Mesh all(axes);
  std::set<AxisSet> communicate;
  if (stages > 1) communicate.insert({0});
  for (const ProgramWork& work : works) {
    for (const Step& step : work.program->steps) {
      if (!communicates(step)) continue;
      AxisSet shifted = axes_of(step);
      for (int& axis : shifted) ++axis;
      communicate.insert(shifted);
    }
  }
  std::vector<int> colours;
  std::map<std::vector<double>, int> known;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto slow = settings.slow.find(rank);
    std::vector<double> kind = {static_cast<double>(rank / plan_ranks_),
                                static_cast<double>(class_of[at(rank % plan_ranks_)]),
                                slow == settings.slow.end() ? 1 : slow->second};
    if (settings.jitter > 0) kind.push_back(static_cast<double>(rank));  // each its own
    colours.push_back(known.emplace(kind, static_cast<int>(known.size())).first->second);
  }
  lanes_ = rank_lanes(all, colours, communicate);
  for (const RankLanes::Lane& lane : lanes_.lanes) {
    lane_stage_.push_back(static_cast<int>(lane.first / plan_ranks_));
    lane_class_.push_back(class_of[at(lane.first % plan_ranks_)]);
  }
  for (const ProgramWork& work : works)
    divided_.push_back(divide(work, settings.pipeline, settings.assumed.recompute_layers));
}

SimulatedStep::~SimulatedStep() = default;

const ProgramWork& SimulatedStep::work_of(int lane) const {
  return works_[at(lane_class_[at(lane)])];
}

void SimulatedStep::run(uint64_t draw) {
  draw_ = draw;
  micro_batches_ = settings_.micro_batches > 0 ? settings_.micro_batches
                                               : static_cast<int>(works_[0].program->micro_batches);
  simulation_ = std::make_unique<Simulation>(settings_.overlap_slowdown);
  labels_.clear(), names_.clear(), meetings_.clear(), arrived_.clear();
  at_ = std::vector<Lane>(lanes_.lanes.size());
  sent_.assign(lanes_.lanes.size(), 0);
  const auto count = static_cast<int>(at_.size());
  for (int lane = 0; lane < count; ++lane) begin_lane(lane);
  for (bool any = true; any;) {
    any = false;
    for (int lane = 0; lane < count; ++lane) {
      while (add_next_run(lane)) any = true;
    }
  }
  for (int lane = 0; lane < count; ++lane) {
    SR_REQUIRE(at_[at(lane)].next == at_[at(lane)].runs.size(), internal, "simulation: stage ",
               stage_of(lane), " waits for what never comes");
    add_update(lane);
  }
  check_meetings();
  simulation_->run();
}

void SimulatedStep::clear() {
  simulation_.reset();
  labels_ = {};
  at_ = {};
  meetings_.clear(), arrived_.clear();
}

void SimulatedStep::begin_lane(int number) {
  Lane& lane = at_[at(number)];
  const ProgramWork& work = work_of(number);
  const int streams = work.order.streams + kExtras;
  for (int s = 0; s < streams; ++s) {
    lane.streams.push_back(simulation_->add_stream(number));
    const int extra = s - work.order.streams;
    names_.push_back(s == 0                  ? "kernels"
                     : extra < 0             ? str("collectives ", s)
                     : extra == kHost        ? "host"
                     : extra == kActivations ? "activations to the next stage"
                                             : "gradients to the stage before");
  }
  lane.last.assign(at(streams), -1);
  lane.task_of.assign(work.steps.size(), -1);
  const auto slow = settings_.slow.find(lanes_.lanes[at(number)].first);
  if (slow != settings_.slow.end()) lane.slow = slow->second;
  lane.factor = lane.slow;
  lane.random.seed(settings_.seed * 0x9E3779B97F4A7C15ull + draw_ * 0xBF58476D1CE4E5B9ull +
                   static_cast<uint64_t>(number));
  const DividedSteps& divided = divided_[at(lane_class_[at(number)])];
  if (settings_.pipeline.parts() == 1) {
    for (int k = 0; k < micro_batches_; ++k) {
      if (!divided.parts[0].forward.empty()) lane.runs.push_back({PartRun::Pass::forward, 0, k});
      lane.runs.push_back({PartRun::Pass::backward, 0, k});
    }
  } else {
    lane.runs = schedule_of(settings_.pipeline, stage_of(number), micro_batches_);
  }
  const double zero = divided.zero_seconds[at(stage_of(number))];
  if (settings_.read_rate > 0 && zero > 0) {
    lane.begun.assign(at(streams), false);
    add(lane, 0, {0, TaskKind::host, zero * settings_.factors.memory * lane.slow},
        {What::zero, -1, -1}, {});
    lane.ended = {lane.last[0]};
  }
}

int SimulatedStep::add(Lane& lane, int stream, SimTask task, TaskLabel label,
                       std::vector<int> after) {
  // The first of a run on each stream comes behind all of the run before.
  if (!lane.begun[at(stream)]) after.insert(after.end(), lane.ended.begin(), lane.ended.end());
  lane.begun[at(stream)] = true;
  task.stream = lane.streams[at(stream)];
  lane.last[at(stream)] = simulation_->add(task, after);
  labels_.push_back(label);
  return lane.last[at(stream)];
}

/// What a run takes from other stages; nullopt: it has not been made yet.
std::optional<std::vector<int>> SimulatedStep::arrivals(int lane, const PartRun& run) const {
  const bool forward = run.pass == PartRun::Pass::forward;
  const int parts = settings_.pipeline.parts();
  PartRun from = run;
  from.part += forward ? -1 : 1;
  if (parts == 1 || from.part < 0 || from.part >= parts) return std::vector<int>();
  const std::vector<int>& partners = lanes_.lanes[at(lane)].groups.at({0});
  for (int partner : partners) {
    if (stage_of(partner) != from.part % settings_.pipeline.stages) continue;
    const auto sent = arrived_.find(key_of(partner, from));
    if (sent == arrived_.end()) return std::nullopt;
    return std::vector<int>{sent->second};
  }
  return std::nullopt;
}

bool SimulatedStep::add_next_run(int number) {
  Lane& lane = at_[at(number)];
  if (lane.next == lane.runs.size()) return false;
  const PartRun& run = lane.runs[lane.next];
  const std::optional<std::vector<int>> taken = arrivals(number, run);
  if (!taken) return false;
  ++lane.next;
  const PartSteps& part = divided_[at(lane_class_[at(number)])].parts[at(run.part)];
  const bool forward = run.pass == PartRun::Pass::forward;
  lane.ended.insert(lane.ended.end(), taken->begin(), taken->end());
  lane.begun.assign(lane.streams.size(), false);
  const ProgramWork& work = work_of(number);
  const int host = work.order.streams + kHost;
  lane.begun[at(host)] = true;  // the host runs ahead of kernels
  // A micro-batch is read where it is first needed.
  if (settings_.read_rate > 0 && run.part == 0 && (forward || part.forward.empty())) {
    const double seconds = static_cast<double>(work.read_bytes) / settings_.read_rate * lane.slow;
    const int stream = cluster_.collectives == Collectives::apart ? host : 0;
    lane.ended.push_back(
        add(lane, stream, {0, TaskKind::host, seconds}, {What::read, -1, run.micro}, {}));
  }
  add_steps(number, forward ? part.forward : part.backward, number_of(run), run.micro);
  send(number, run);
  return true;
}

void SimulatedStep::add_update(int number) {
  Lane& lane = at_[at(number)];
  lane.begun.assign(lane.streams.size(), false);
  const DividedSteps& divided = divided_[at(lane_class_[at(number)])];
  add_steps(number, divided.update[at(stage_of(number))], -1, -1);
}

void SimulatedStep::add_steps(int number, const std::vector<int>& steps, int run, int micro) {
  Lane& lane = at_[at(number)];
  const ProgramWork& work = work_of(number);
  const int host = work.order.streams + kHost;
  const bool eager = settings_.assumed.eager && micro >= 0;
  lane.begun[at(host)] = !eager;  // one that asks for each kernel waits for the pass before
  if (settings_.jitter > 0) {
    std::normal_distribution<double> normal(-settings_.jitter * settings_.jitter / 2,
                                            settings_.jitter);
    lane.factor = lane.slow * std::exp(normal(lane.random));
  }
  const auto launch = [&](double times) {
    return add(lane, host, {0, TaskKind::host, times * settings_.launch_seconds * lane.factor},
               {What::launch, -1, micro}, {});
  };
  const bool launches = settings_.launch_seconds > 0 && !steps.empty();
  if (launches && !eager) lane.ended.push_back(launch(1));
  std::fill(lane.task_of.begin(), lane.task_of.end(), -1);
  std::map<AxisSet, int> occurrences;
  for (int s : steps) {
    const Step& step = work.program->steps[at(s)];
    const StepWork& one = work.steps[at(s)];
    std::vector<int> after;
    for (int other : work.order.steps[at(s)].after) {
      if (lane.task_of[at(other)] >= 0) after.push_back(lane.task_of[at(other)]);
    }
    if (launches && eager && one.launches > 0)
      after.push_back(
          launch(one.launches * (one.part == StepPart::backward ? settings_.backward : 1)));
    SimTask task{0, one.kind, one.seconds_by(settings_.factors), -1, one.link};
    if (one.kind == TaskKind::communication) {
      AxisSet axes = axes_of(step);
      for (int& axis : axes) ++axis;
      task.meeting = meeting_of(number, run < 0 ? -1 : run * micro_batches_ + micro, axes,
                                occurrences[axes]++);
      sent_[at(number)] += one.sent;
    } else {
      task.seconds *= lane.factor;
    }
    lane.task_of[at(s)] =
        add(lane, work.order.steps[at(s)].stream, task, {What::step, s, micro}, std::move(after));
  }
  // The run ends when all of its streams have.
  lane.ended.clear();
  for (int stream = 0; stream < work.order.streams; ++stream) {
    if (lane.last[at(stream)] >= 0) lane.ended.push_back(lane.last[at(stream)]);
  }
}

/// -1 where all of the group's ranks are of one lane.
int SimulatedStep::meeting_of(int lane, int run, const AxisSet& axes, int occurrence) {
  const std::vector<int>& members = lanes_.lanes[at(lane)].groups.at(axes);
  if (members.size() == 1) return -1;
  std::vector<int> key = {stage_of(lane), run, members[0], occurrence};
  key.insert(key.end(), axes.begin(), axes.end());
  const auto [it, fresh] = meetings_.emplace(std::move(key), std::pair<int, int>());
  if (fresh) it->second = {simulation_->add_meeting(), static_cast<int>(members.size())};
  --it->second.second;
  return it->second.first;
}

void SimulatedStep::check_meetings() const {
  for (const auto& [key, meeting] : meetings_) {
    SR_REQUIRE(meeting.second == 0, internal, "simulation: ranks of a group, lane ", key[2],
               " among them, run different collectives");
  }
}

SimTask SimulatedStep::message(double bytes, int from_part, int to_part) const {
  const int64_t stages = settings_.pipeline.stages;
  bool far = false;
  for (int64_t rank = 0; rank < plan_ranks_; ++rank) {
    far = far || (from_part % stages * plan_ranks_ + rank) / cluster_.devices !=
                     (to_part % stages * plan_ranks_ + rank) / cluster_.devices;
  }
  return over_link(far, bytes, 2);
}

/// Of bytes that come from the others of so many ranks, one after the other.
SimTask SimulatedStep::over_link(bool far, double bytes, int64_t ranks) const {
  const Cluster::Link& link = far ? cluster_.between : cluster_.within;
  const TaskLink kind = far ? TaskLink::between_nodes : TaskLink::within_node;
  const double seconds = link.call_latency + static_cast<double>(ranks - 1) * link.latency +
                         bytes / link.bandwidth_of(ranks);
  return {0, TaskKind::communication, settings_.factors.of(kind) * seconds, -1, kind};
}

void SimulatedStep::send(int number, const PartRun& run) {
  Lane& lane = at_[at(number)];
  const ProgramWork& work = work_of(number);
  const bool forward = run.pass == PartRun::Pass::forward;
  const int to = run.part + (forward ? 1 : -1), parts = settings_.pipeline.parts();
  if (parts == 1) return;
  const std::vector<PartSteps>& all = divided_[at(lane_class_[at(number)])].parts;
  if (to < 0 || to >= parts) return;
  // Gradients are as large as the activations that they are of.
  const PartSteps& part = all[at(forward ? run.part : to)];
  const int stream = work.order.streams + (forward ? kActivations : kGradients);
  int last = -1;
  const auto give = [&](const SimTask& task, double bytes) {
    const int64_t sent = std::llround(bytes);
    last = add(lane, stream, task, {What::send, -1, run.micro, sent}, {});
    sent_[at(number)] += sent;
  };
  give(message(part.sent, run.part, to), part.sent);
  if (part.gathered > 0) {
    const bool far = part.holders > cluster_.devices;
    give(over_link(far, part.gathered, part.holders), part.gathered);
  }
  arrived_[key_of(number, run)] = last;
}

}  // namespace shardrun
