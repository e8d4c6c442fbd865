// The data of the page, as JSON in a script that no browser runs.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "explain/explain.h"
#include "explain/names.h"
#include "explain/page_template.h"
#include "explain/text.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostAtPeak = 40, kMostRows = 60, kMostBars = 1000;

Json mesh_json(const Mesh& mesh) {
  Json axes = Json::array();
  for (const Mesh::Axis& axis : mesh.axes())
    axes.push_back({{"name", axis.name}, {"size", axis.size}});
  return {{"text", mesh.to_string()}, {"ranks", mesh.size()}, {"axes", axes}};
}

Json times_json(const std::map<std::string, double>& times,
                const std::map<std::string, int64_t>& calls) {
  Json rows = Json::array();
  for (const auto& [name, seconds] : times) {
    const auto count = calls.find(name);
    rows.push_back({{"name", name},
                    {"ms", seconds * 1e3},
                    {"calls", count == calls.end() ? 0 : count->second}});
  }
  return rows;
}

Json timeline_json(const PlanAnalysis& analysis) {
  Json rows = Json::array();
  for (const PlannedRun& run : analysis.timeline)
    rows.push_back({run.name, run.what, run.communication ? 1 : 0, run.start * 1e3,
                    run.seconds * 1e3, run.runs});
  return rows;
}

Json memory_json(const PlanAnalysis& analysis) {
  Json peak = Json::array();
  int64_t rest = 0;
  for (const AliveBuffer& buffer : analysis.at_peak) {
    if (peak.size() == kMostAtPeak) {
      rest += buffer.bytes;
      continue;
    }
    peak.push_back({{"name", buffer.name},
                    {"kind", buffer.kind},
                    {"type", buffer.type},
                    {"bytes", buffer.bytes}});
  }
  return {{"rank", analysis.rank},
          {"arena", analysis.arena_bytes},
          {"step", analysis.peak_step},
          {"kinds", analysis.bytes},
          {"alive", analysis.alive_bytes},
          {"peak", peak},
          {"rest", rest}};
}

/// How a value lies: its sizes, for each dim in how many parts by which axes, and of which axes a
/// rank holds a part of a sum.
Json lies_json(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  Json dims = Json::array();
  for (size_t d = 0; d < type.shape.size(); ++d) {
    int64_t parts = 1;
    for (int axis : sharding.dims[d]) parts *= mesh.axis_size(axis);
    dims.push_back({type.shape[d], parts});
  }
  return {{"dims", dims}, {"text", to_string(sharding, mesh)}, {"type", to_string(type)}};
}

/// Values of each layer; layers that hold the same are one.
Json layers_json(const Explained& of) {
  const std::vector<std::string> layer_of_node = layers_of(of.graph);
  struct Layer {
    Json values = Json::array();
    std::string key;  // equal for layers that are alike
    int64_t left_out = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Layer> layers;
  for (const Value& value : of.graph.values()) {
    const auto lies = of.plan.values.find(value.name);
    if (lies == of.plan.values.end() || value.type.shape.empty()) continue;
    const std::string name = value.role == Role::computed
                                 ? layer_of_node[static_cast<size_t>(value.producer)]
                                 : layer_in(value.name);
    const auto [it, fresh] = layers.try_emplace(name);
    if (fresh) order.push_back(name);
    static const char* const kRoles[] = {"computed",  "batch", "scalar",
                                         "parameter", "state", "constant"};
    if (it->second.values.size() == kMostRows) {
      ++it->second.left_out;
      continue;
    }
    Json row = lies_json(value.type, lies->second, of.plan.mesh);
    row["name"] = within(value.name, name);
    it->second.key += str(folded(within(value.name, name)), " ", to_string(value.type), " ",
                          row["text"].get<std::string>(), "\n");
    row["role"] = kRoles[static_cast<int>(value.role)];
    it->second.values.push_back(std::move(row));
  }
  Json out = Json::array();
  std::map<std::string, size_t> known;  // what a layer holds -> its place in `out`
  for (const std::string& name : order) {
    const Layer& layer = layers[name];
    const auto [it, fresh] = known.try_emplace(layer.key, out.size());
    if (!fresh && !name.empty()) {
      out[it->second]["also"].push_back(name);
      continue;
    }
    out.push_back({{"name", name},
                   {"also", Json::array()},
                   {"values", layer.values},
                   {"left_out", layer.left_out}});
  }
  return out;
}

Json collectives_json(const Explained& of, const PlanAnalysis& analysis) {
  Json rows = Json::array();
  for (const ExpensiveCollective& c : expensive_collectives(of, analysis))
    rows.push_back({{"title", c.title}, {"ms", c.seconds * 1e3}, {"reasons", c.reasons}});
  return rows;
}

double median_of(std::vector<double> of) {
  const auto middle = of.begin() + static_cast<int64_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

/// Means of so many in a row.
std::vector<double> means(const std::vector<double>& of, size_t each) {
  std::vector<double> out;
  for (size_t first = 0; first < of.size(); first += each) {
    const size_t end = std::min(of.size(), first + each);
    const auto at = of.begin() + static_cast<int64_t>(first);
    out.push_back(std::accumulate(at, of.begin() + static_cast<int64_t>(end), 0.0) /
                  static_cast<double>(end - first));
  }
  return out;
}

/// What was measured of a run of this plan, to compare with what the plan says.
Json measured_json(const Explained& of, const std::string& text) {
  const Json report = parse_json<Json>(text, "the report", "what 'shardrun train --report' wrote");
  const auto numbers = [&](const char* name) {
    SR_REQUIRE(report.is_object() && report.contains(name) && report[name].is_array() &&
                   std::all_of(report[name].begin(), report[name].end(),
                               [](const Json& n) { return n.is_number(); }),
               invalid_input, "the report: field '", name,
               "' is no list of numbers; give a file that 'shardrun train --report' wrote");
    return report[name].get<std::vector<double>>();
  };
  const std::vector<double> steps = numbers("step_ms"), communication = numbers("comm_ms");
  const std::string mesh = of.plan.mesh.to_string();
  SR_REQUIRE(report.contains("mesh") && report["mesh"] == mesh, invalid_input,
             "the report: field 'mesh' is ", report.value("mesh", Json()).dump(),
             ", the plan's is ", mesh);
  SR_REQUIRE(report.value("predicted_bytes", Json()) == Json(of.bytes), invalid_input,
             "the report: field 'predicted_bytes' is ",
             report.value("predicted_bytes", Json()).dump(), ", the plan's is ",
             Json(of.bytes).dump(), ": it is of another plan");
  SR_REQUIRE(!steps.empty() && steps.size() == communication.size(), invalid_input,
             "the report: it has ", steps.size(), " steps and ", communication.size(),
             " times of communication");
  const size_t each = (steps.size() + kMostBars - 1) / kMostBars;
  return {{"step_ms", median_of(steps)},
          {"communication_ms", median_of(communication)},
          {"first", report.value("first_step", int64_t{1})},
          {"last", report.value("first_step", int64_t{1}) + std::ssize(steps) - 1},
          {"each", each},
          {"steps", means(steps, each)},
          {"communication", means(communication, each)},
          {"allocated", report.contains("allocated_bytes") ? numbers("allocated_bytes")
                                                           : std::vector<double>()}};
}

/// Nothing in it ends the script that it stands in, or begins a comment.
std::string for_script(const Json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    switch (c) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace

std::string page_html(const Explained& of, const std::string& title, const Explained* other,
                      const std::string* report) {
  const PlanAnalysis analysis = analyse(of);
  Json data = {{"title", title},
               {"plan", plan_line(of.plan)},
               {"cluster", of.cluster.name},
               {"mesh", mesh_json(of.plan.mesh)},
               {"step_ms", of.plan.seconds * 1e3},
               {"compute_ms", of.plan.compute_seconds * 1e3},
               {"communication_ms", of.plan.comm_seconds * 1e3},
               {"hidden_ms", of.plan.hidden_seconds * 1e3},
               {"bytes", of.bytes},
               {"compute", times_json(analysis.compute, analysis.calls)},
               {"communication", times_json(analysis.communication, analysis.calls)},
               {"timeline", timeline_json(analysis)},
               {"memory", memory_json(analysis)},
               {"layers", layers_json(of)},
               {"collectives", collectives_json(of, analysis)}};
  if (other != nullptr) data["difference"] = difference_text(of, *other);
  if (report != nullptr) data["measured"] = measured_json(of, *report);
  std::string page = kPageTemplate;
  const std::string mark = "{{data}}";
  return page.replace(page.find(mark), mark.size(), for_script(data));
}

}  // namespace shardrun
