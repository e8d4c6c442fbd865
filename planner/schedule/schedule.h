// Schedule: what is cut along which mesh axis, as an ordered list of cuts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/mesh.h"
#include "planner/planner_choice.h"

namespace shardrun {

/// What a cut cuts.
///   batch      the batch's samples
///   state      the optimizer's state: each rank updates a part of a parameter (ZeRO-1)
///   gradients  state, and gradients as soon as they are made (ZeRO-2)
///   weights    gradients, and parameters where they are held (ZeRO-3, fsdp)
///   inner      what lies inside a block: heads, the MLP's hidden dim, the vocabulary (Megatron-LM)
///   sequence   what the batch's values and the stream between blocks also have in common
///   colours    all dims of a group of colours that look alike (planner/schedule/colours.h)
///   value      one dim of the values whose whole name matches
///   node       the nodes whose whole name matches, by one option of their rule, or not at all
///   automatic  what the search finds best
enum class Target {
  batch,
  state,
  gradients,
  weights,
  inner,
  sequence,
  colours,
  value,
  node,
  automatic
};
inline constexpr Named<Target> kTargets[] = {
    {"batch", Target::batch},     {"state", Target::state}, {"gradients", Target::gradients},
    {"weights", Target::weights}, {"inner", Target::inner}, {"sequence", Target::sequence},
    {"auto", Target::automatic}};

struct Cut {
  Target target = Target::automatic;
  int axis = 0;
  std::string name;         // value, node: a regular expression
  int number = 0;           // colours: the group. value: the dim. node: the option, or kWholeNode
  std::vector<int> digits;  // how conflicts are resolved, in order of the colours' digits
  std::string text;         // as it was given, for messages
  static constexpr int kWholeNode = -1;
};

/// Along one axis a node takes the first cut in the list that it can: so batch@a weights@a is fsdp,
/// where products go by the batch and updates by the weights. Along an axis that no cut names,
/// nothing is cut.
using Schedule = std::vector<Cut>;

/// "batch@data", "#3@model/10" (group 3 of `explain --colours`, with two digits), "x.0@data" (dim 0
/// of value x), "dot2:1@model" (option 1 of node dot2, as `shardrun rules` numbers them),
/// "dot2:whole@model", "auto@model". A cut for each of the axis's sub-axes, in order. Throws
/// invalid_input naming the text and what is wrong.
Schedule parse_tactic(std::string_view text, const Mesh& mesh);
/// Of all, in order.
Schedule parse_tactics(const std::vector<std::string>& texts, const Mesh& mesh);

/// What a schedule cuts along one axis, by kind.
struct AxisCuts {
  bool free = false;  // auto: what no other cut says anything of is left to the search
  bool batch = false, state = false, gradients = false, weights = false;
  bool inner = false, sequence = false;
  bool dims = false;  // colours, values, nodes
};
std::vector<AxisCuts> cuts_by_axis(const Schedule& schedule, const Mesh& mesh);

/// A baseline along an axis.
Schedule known_schedule(Baseline baseline, int axis);

/// nullopt: `planner` is no baseline. Throws invalid_input if the mesh has another number of axes
/// than there are baselines.
std::optional<Schedule> baseline_schedule(const PlannerChoice& planner, const Mesh& mesh);
/// What there is to try on a mesh: each for all axes, and on two axes each that cuts the batch
/// combined with each that cuts the model, in both orders.
std::vector<PlannerChoice> baselines_of(const Mesh& mesh);

/// What a planner and tactics say together; nullopt: nothing, all is left to the search. A tree
/// search goes on from its tactics: what they say nothing of is free on every axis.
/// Throws invalid_input if a baseline is given tactics.
std::optional<Schedule> schedule_of(const PlannerChoice& planner,
                                    const std::vector<std::string>& tactics, const Mesh& mesh);

}  // namespace shardrun
