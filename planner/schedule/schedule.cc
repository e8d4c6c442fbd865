// Reading tactics, and the schedules that have names.
#include "planner/schedule/schedule.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"

namespace shardrun {
namespace {

std::string forms() {
  return "wanted TARGET@AXIS with " + names_of(kTargets) +
         ", VALUE.DIM, NODE:OPTION, NODE:whole or #GROUP for TARGET, as in batch@data";
}

std::optional<int> whole_number(std::string_view text) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 0) return std::nullopt;
  return out;
}

/// The axis of this name, or its sub-axes.
std::vector<int> axes_named(std::string_view name, const Mesh& mesh, const std::string& by) {
  std::vector<int> axes = mesh.named(name);
  if (!axes.empty()) return axes;
  std::string known;
  for (const Mesh::Axis& axis : mesh.axes()) known += (known.empty() ? "" : ", ") + axis.name;
  fail(ErrorKind::invalid_input, by, ": mesh ", mesh.to_string(), " has no axis '", name,
       "'; it has ", known);
}

/// What comes behind the last `separator`, which goes with it; nullopt: there is none.
std::optional<std::string_view> split_last(std::string_view& text, char separator) {
  const size_t place = text.rfind(separator);
  if (place == std::string_view::npos) return std::nullopt;
  const std::string_view last = text.substr(place + 1);
  text = text.substr(0, place);
  return last;
}

bool on_model(Baseline kind) { return kind == Baseline::megatron || kind == Baseline::megatron_sp; }

/// What stands in front of @: a target, or whose names or numbers.
void read_target(std::string_view text, const std::string& by, Cut& cut) {
  if (const std::optional<Target> target = kind_named(kTargets, text)) {
    cut.target = *target;
    SR_REQUIRE(cut.digits.empty() || cut.target == Target::sequence, invalid_input, by, ": ", text,
               " has no conflicts to resolve; leave out what stands behind the axis");
    return;
  }
  const auto number = [&](std::string_view digits) {
    const std::optional<int> out = whole_number(digits);
    SR_REQUIRE(out, invalid_input, by, ": '", digits, "' is no whole number; ", forms());
    return *out;
  };
  if (text[0] == '#') {
    cut.target = Target::colours;
    cut.number = number(text.substr(1));
    return;
  }
  // The last of . and : tells which it is; names may have both.
  const size_t place = text.find_last_of(".:");
  SR_REQUIRE(place != std::string_view::npos && place > 0, invalid_input, by, ": ", forms());
  const std::string_view last = text.substr(place + 1);
  cut.name = text.substr(0, place);
  cut.target = text[place] == ':' ? Target::node : Target::value;
  cut.number = cut.target == Target::node && last == "whole" ? Cut::kWholeNode : number(last);
}

}  // namespace

Schedule parse_tactic(std::string_view text, const Mesh& mesh) {
  Cut cut;
  cut.text = text;
  const std::string by = str("--tactic '", text, "'");
  std::optional<std::string_view> axis = split_last(text, '@');
  SR_REQUIRE(axis && !text.empty(), invalid_input, by, ": ", forms());
  std::string_view name = *axis;
  if (const size_t slash = name.find('/'); slash != std::string_view::npos) {
    const std::string_view digits = name.substr(slash + 1);
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    SR_REQUIRE(!digits.empty() && std::all_of(digits.begin(), digits.end(), is_digit),
               invalid_input, by, ": '", digits,
               "' behind the axis: wanted one digit for each set of conflicts");
    for (const char digit : digits) cut.digits.push_back(digit - '0');
    name = name.substr(0, slash);
  }
  const std::vector<int> axes = axes_named(name, mesh, by);
  read_target(text, by, cut);
  Schedule out;
  for (int sub_axis : axes) out.emplace_back(cut).axis = sub_axis;
  return out;
}

std::vector<AxisCuts> cuts_by_axis(const Schedule& schedule, const Mesh& mesh) {
  std::vector<AxisCuts> out(static_cast<size_t>(mesh.axis_count()));
  for (const Cut& cut : schedule) {
    AxisCuts& axis = out[static_cast<size_t>(cut.axis)];
    switch (cut.target) {
      case Target::automatic: axis.free = true; break;
      case Target::batch: axis.batch = true; break;
      case Target::weights: axis.weights = axis.gradients = axis.state = true; break;
      case Target::gradients: axis.gradients = axis.state = true; break;
      case Target::state: axis.state = true; break;
      case Target::inner: axis.inner = true; break;
      case Target::sequence: axis.sequence = true; break;
      case Target::colours:
      case Target::value:
      case Target::node: axis.dims = true; break;
    }
  }
  return out;
}

Schedule known_schedule(Baseline baseline, int axis) {
  const auto cuts = [&](std::initializer_list<Target> targets) {
    Schedule out;
    for (Target target : targets) out.push_back({target, axis, "", 0, {}, ""});
    return out;
  };
  switch (baseline) {
    case Baseline::none: return cuts({Target::automatic});
    case Baseline::dp: return cuts({Target::batch});
    case Baseline::zero1: return cuts({Target::batch, Target::state});
    case Baseline::zero2: return cuts({Target::batch, Target::gradients});
    case Baseline::fsdp: return cuts({Target::batch, Target::weights});
    case Baseline::megatron: return cuts({Target::inner});
    case Baseline::megatron_sp: return cuts({Target::inner, Target::sequence});
  }
  return {};
}

std::optional<Schedule> baseline_schedule(const PlannerChoice& planner, const Mesh& mesh) {
  std::vector<Baseline> ones = planner.baselines;
  if (ones.empty()) return std::nullopt;
  const auto axes = static_cast<size_t>(mesh.axis_count());
  if (ones.size() == 1) ones.resize(axes, ones[0]);
  SR_REQUIRE(ones.size() == axes || axes == 0, invalid_input, "planner '", to_string(planner),
             "' names ", ones.size(), " mesh axes, the mesh ", mesh.to_string(), " has ", axes,
             "; give each axis one, as --planner fsdp+megatron --mesh data=2,model=4 does");
  Schedule out;
  for (size_t axis = 0; axis < axes; ++axis) {
    for (Cut& cut : known_schedule(ones[axis], static_cast<int>(axis)))
      out.push_back(std::move(cut));
  }
  return out;
}

std::vector<PlannerChoice> baselines_of(const Mesh& mesh) {
  std::vector<PlannerChoice> out;
  if (mesh.size() == 1) return out;
  std::map<std::string_view, Baseline> known;  // by name, the order in which they are tried
  for (const Named<Baseline>& one : kBaselines) known.emplace(one.name, one.kind);
  for (const auto& [name, kind] : known) out.push_back({PlannerKind::baselines, {kind}});
  if (mesh.axis_count() != 2) return out;
  for (const auto& [name, kind] : known) {
    for (const auto& [other, its] : known) {
      if (on_model(kind) != on_model(its)) out.push_back({PlannerKind::baselines, {kind, its}});
    }
  }
  return out;
}

Schedule parse_tactics(const std::vector<std::string>& texts, const Mesh& mesh) {
  Schedule out;
  for (const std::string& text : texts) {
    for (Cut& cut : parse_tactic(text, mesh)) out.push_back(std::move(cut));
  }
  return out;
}

std::optional<Schedule> schedule_of(const PlannerChoice& planner,
                                    const std::vector<std::string>& tactics, const Mesh& mesh) {
  std::optional<Schedule> baseline = baseline_schedule(planner, mesh);
  SR_REQUIRE(!baseline || tactics.empty(), invalid_input, "--tactic '", tactics.front(),
             "' and --planner ", to_string(planner),
             ": a baseline is a list of tactics itself; leave out one");
  if (baseline) return baseline;
  if (tactics.empty() && planner.kind != PlannerKind::propagate) return std::nullopt;
  Schedule out = parse_tactics(tactics, mesh);
  if (planner.kind == PlannerKind::mcts || planner.kind == PlannerKind::mcts_arguments) {
    for (int axis = 0; axis < mesh.axis_count(); ++axis)  // the search goes on from there
      out.push_back({Target::automatic, axis, "", 0, {}, ""});
  }
  return out;
}

}  // namespace shardrun
