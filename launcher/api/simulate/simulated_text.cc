// Lanes, where their time goes, and their events.
#include "simulate/simulated_text.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "explain/text.h"

namespace shardrun {
namespace {

using Json = nlohmann::ordered_json;

std::string lane_name(const Simulated& of, int lane) {
  const RankLanes::Lane& ranks = of.step.lanes().lanes[static_cast<size_t>(lane)];
  std::string name = str("rank ", ranks.first);
  if (ranks.ranks > 1) name += str(" and ", ranks.ranks - 1, " more");
  if (of.request.stages > 1) name += str(", stage ", of.step.stage_of(lane));
  return name;
}

int lane_count(const Simulated& of) { return static_cast<int>(of.step.lanes().lanes.size()); }

/// Why nothing could run so; "": it could.
std::string only_simulated(const Simulated& of) {
  const SimulateRequest& request = of.request;
  std::string why;
  if (request.stages > 1) why += "pipeline stages";
  if (!request.assume.empty()) why += (why.empty() ? "" : " and ") + ("--assume " + request.assume);
  if (of.streams == CommStreams::axes)
    why += str(why.empty() ? "" : " and ", "--comm-streams ", name_of(kCommStreams, of.streams));
  return why;
}

constexpr int kMostLines = 16;

/// Cells of a lane's row: milliseconds.
std::string times_row(const LaneTimes& s, const std::string& name) {
  std::string out = left(name, 32);
  for (double part : {s.compute, s.exposed, s.waiting, s.host, s.bubble})
    out += right(format("%.3f", part * 1e3), 12);
  return out + "\n";
}

Json times_json(const LaneTimes& s) {
  return {{"compute_seconds", s.compute},
          {"exposed_communication_seconds", s.exposed},
          {"waiting_seconds", s.waiting},
          {"host_seconds", s.host},
          {"bubble_seconds", s.bubble}};
}

class SimulatedTrace {
 public:
  explicit SimulatedTrace(const Simulated& of) : of_(of) {}

  std::string text() {
    const Simulation& sim = of_.step.simulation();
    for (int lane = 0; lane < lane_count(of_); ++lane) {
      add({{"name", "process_name"},
           {"ph", "M"},
           {"pid", pid(lane)},
           {"tid", 0},
           {"args", {{"name", lane_name(of_, lane)}}}});
    }
    std::vector<bool> named(static_cast<size_t>(of_.step.stream_count()), false);
    for (size_t t = 0; t < sim.tasks().size(); ++t) {
      const int stream = sim.tasks()[t].stream, lane = sim.lane_of(static_cast<int>(t));
      if (!named[static_cast<size_t>(stream)]) {
        named[static_cast<size_t>(stream)] = true;
        add({{"name", "thread_name"},
             {"ph", "M"},
             {"pid", pid(lane)},
             {"tid", stream},
             {"args", {{"name", of_.step.stream_name(stream)}}}});
      }
      add_task(t, lane, stream);
    }
    return "{\"displayTimeUnit\":\"ms\",\"otherData\":" + about().dump() +
           ",\n\"traceEvents\":[\n" + text_ + "\n]}\n";
  }

 private:
  int64_t pid(int lane) const { return of_.step.lanes().lanes[static_cast<size_t>(lane)].first; }

  Json about() const {
    return {{"simulated", true},
            {"model", of_.model.path},
            {"mesh", of_.plan.train.mesh.to_string()},
            {"planner", of_.plan.train.planner},
            {"cluster", of_.plan.cluster.name},
            {"stages", of_.request.stages}};
  }

  void add_task(size_t t, int lane, int stream) {
    const TaskLabel& label = of_.step.labels()[t];
    const SimSpan& span = of_.step.simulation().spans()[t];
    std::string name = "read batch", category = "host";
    Json args = Json::object();
    switch (label.what) {
      case TaskLabel::What::read: break;
      case TaskLabel::What::zero: name = "zero gradients"; break;
      case TaskLabel::What::launch: name = "launch"; break;
      case TaskLabel::What::send:
        name = "send to another stage";
        category = "collective";
        args["bytes_sent"] = label.sent;
        break;
      case TaskLabel::What::step: {
        const ProgramWork& work = of_.step.work_of(lane);
        const Step& step = work.program->steps[static_cast<size_t>(label.step)];
        const bool collective = step.kind == Step::Kind::collective;
        name = step.node.name;
        category = collective ? "collective" : "kernel";
        args["op"] = collective ? std::string(to_string(step.collective->kind)) : step.node.op;
        args["source"] = step.source;
        if (collective) args["bytes_sent"] = work.steps[static_cast<size_t>(label.step)].sent;
        if (span.ready < span.begin)
          args["waited_us"] = std::round((span.begin - span.ready) * 1e9) / 1e3;
      }
    }
    if (label.micro >= 0) args["micro_batch"] = label.micro;
    const int64_t from = std::llround(span.begin * 1e9), to = std::llround(span.end * 1e9);
    add({{"name", name},
         {"cat", category},
         {"ph", "X"},
         {"ts", static_cast<double>(from) / 1e3},
         {"dur", static_cast<double>(to - from) / 1e3},
         {"pid", pid(lane)},
         {"tid", stream},
         {"args", args}});
  }

  void add(const Json& event) {
    if (!text_.empty()) text_ += ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const Simulated& of_;
  std::string text_;
};

}  // namespace

std::string simulated_text(const Simulated& of) {
  const Simulation& sim = of.step.simulation();
  std::string out;
  const auto milliseconds = [](double seconds) { return format("%.3f", seconds * 1e3) + " ms"; };
  out += str("simulated step: ", milliseconds(sim.makespan()));
  if (of.request.stages == 1 && of.request.assume.empty())
    out += str(" (the plan: ", milliseconds(of.plan.train.seconds), ")");
  out += "\n";
  if (const std::string why = only_simulated(of); !why.empty())
    out += wrapped("  note: ", "simulated only: shardrun cannot run " + why);
  out += left("  ms of a step", 32);
  for (const char* column : {"compute", "exposed", "waiting", "host", "bubble"})
    out += right(column, 12);
  out += "\n";
  const int lanes = lane_count(of);
  for (int lane = 0; lane < std::min(lanes, kMostLines); ++lane)
    out += times_row(sim.times(lane), "  " + lane_name(of, lane));
  if (lanes > kMostLines) out += str("  and ", lanes - kMostLines, " more classes of ranks\n");
  out += str("  busiest stream ", milliseconds(sim.busiest_stream()), ", one after the other ",
             milliseconds(sim.serial_sum()), "\n");
  if (of.jitter) {
    out += str("  with jitter ", percent(of.request.jitter, 1), ": p50 ",
               milliseconds(of.jitter->first), ", p95 ", milliseconds(of.jitter->second), " of ",
               of.request.draws, " steps\n");
  }
  if (of.goodput) {
    out += str("  goodput: ", format("%.2f", 100 * of.goodput->fraction), " %; a failure every ",
               format("%.1f", of.goodput->seconds_to_failure / 3600), " h");
    if (of.goodput->best_checkpoint > 0)
      out += str("; best checkpoint interval ", format("%.1f", of.goodput->best_checkpoint / 60),
                 " min");
    out += "\n";
  }
  if (of.peak_bytes > 0) out += str("  bytes of the fullest rank: ", of.peak_bytes, "\n");
  return out;
}

std::string simulated_json(const Simulated& of) {
  const Simulation& sim = of.step.simulation();
  Json lanes = Json::array();
  for (int lane = 0; lane < lane_count(of); ++lane) {
    const RankLanes::Lane& ranks = of.step.lanes().lanes[static_cast<size_t>(lane)];
    Json one = {{"first_rank", ranks.first}, {"ranks", ranks.ranks}};
    one["stage"] = of.step.stage_of(lane);
    one.update(times_json(sim.times(lane)));
    one["sent_bytes"] = of.step.sent(lane);
    lanes.push_back(std::move(one));
  }
  const std::string why = only_simulated(of);
  Json all = {{"model", of.model.path},
              {"cluster", of.plan.cluster.name},
              {"mesh", of.plan.train.mesh.to_string()},
              {"planner", of.plan.train.planner},
              {"ranks", of.request.stages * of.plan.train.mesh.size()},
              {"stages", of.request.stages},
              {"only_simulated", why},
              {"seconds", sim.makespan()},
              {"planned_seconds", of.plan.train.seconds},
              {"steps_seconds", of.steps_seconds},
              {"busiest_stream_seconds", sim.busiest_stream()},
              {"serial_seconds", sim.serial_sum()},
              {"lanes", std::move(lanes)}};
  if (of.peak_bytes > 0) all["peak_bytes"] = of.peak_bytes;
  if (of.jitter)
    all["jitter"] = {{"p50_seconds", of.jitter->first}, {"p95_seconds", of.jitter->second}};
  if (of.goodput) {
    all["goodput"] = {{"fraction", of.goodput->fraction},
                      {"seconds_to_failure", of.goodput->seconds_to_failure}};
    if (of.goodput->best_checkpoint > 0)
      all["goodput"]["best_checkpoint_seconds"] = of.goodput->best_checkpoint;
  }
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string simulated_trace(const Simulated& of) { return SimulatedTrace(of).text(); }

}  // namespace shardrun
