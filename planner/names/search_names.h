// The names of planners, baselines and solvers, as flags, plan files and errors have them.
#pragma once

#include <iterator>
#include <string>

#include "base/named.h"

namespace shardrun {

/// What looks for a plan; `mcts`: a tree search over schedules, and the integer program among what
/// it found; `mcts_arguments`: the same over cuts of arguments, and what it found best;
/// `propagate`: what tactics and requests say, all else whole; `baselines`: one for all mesh axes,
/// or one for each, joined by +.
enum class PlannerKind {
  automatic,
  ilp,
  beam,
  plain_ilp,
  mcts,
  mcts_arguments,
  propagate,
  baselines
};
inline constexpr Named<PlannerKind> kPlanners[] = {
    {"auto", PlannerKind::automatic},     {"ilp", PlannerKind::ilp},
    {"beam", PlannerKind::beam},          {"plain-ilp", PlannerKind::plain_ilp},
    {"mcts", PlannerKind::mcts},          {"mcts-arguments", PlannerKind::mcts_arguments},
    {"propagate", PlannerKind::propagate}};

/// What holds along one mesh axis.
///   dp           the batch is cut; parameters, gradients and state are whole
///   zero1        dp, and the optimizer's state is cut: each rank updates its shard of a parameter,
///                then the parts are gathered (ZeRO, Rajbhandari et al. 2020, section 5.1)
///   zero2        zero1, and gradients are reduce-scattered as soon as they are made (section 5.2)
///   fsdp         zero2, and parameters are held cut and gathered where they are used (ZeRO-3, 5.3)
///   megatron     weights stay cut along the dim that lies inside a block (heads, the MLP's hidden
///                dim, the vocabulary); what passes between blocks is whole (Shoeybi et al. 2019)
///   megatron_sp  megatron, and what passes between blocks is cut along the sequence (Korthikanti
///                et al. 2022)
enum class Baseline { none, dp, zero1, zero2, fsdp, megatron, megatron_sp };
inline constexpr Named<Baseline> kBaselines[] = {{"dp", Baseline::dp},
                                                 {"zero1", Baseline::zero1},
                                                 {"zero2", Baseline::zero2},
                                                 {"fsdp", Baseline::fsdp, "ZeRO-3"},
                                                 {"megatron", Baseline::megatron},
                                                 {"megatron-sp", Baseline::megatron_sp}};

/// What solves a Problem (planner/solver/solver.h).
enum class SolverKind { automatic, ilp, beam, lns, ilp_lns, beam_lns };
inline constexpr Named<SolverKind> kSolvers[] = {
    {"auto", SolverKind::automatic},  {"ilp", SolverKind::ilp},
    {"beam", SolverKind::beam},       {"lns", SolverKind::lns},
    {"ilp+lns", SolverKind::ilp_lns}, {"beam+lns", SolverKind::beam_lns}};

/// For --help.
inline std::string planner_help() {
  return names_of(kPlanners) + "; or a baseline: " + names_of(kBaselines, ", ", true) +
         "; or one for each mesh axis: fsdp+megatron";
}
inline std::string solver_help() { return names_of(kSolvers, " or "); }

/// For a name that is none.
inline std::string known_planners() {
  static_assert(std::size(kBaselines) == 6);
  return names_of(kPlanners) + ", " + names_of(kBaselines) +
         " and, one for each mesh axis, two or more of the last six joined by +";
}

}  // namespace shardrun
