// shardrun simulate weak-scaling: MetaDist's figure 8 on paper.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

struct SimulatedScaling {
  std::string model, scale = "paper", cluster = "v100-32", dtype = "f32", memory;
  std::vector<int> ranks = {1, 2, 4, 8};
  std::vector<std::string> planners = {"auto", "dp", "fsdp", "megatron"};
  std::string json, plot;
};

/// The subcommand of `simulate`, whose model is then one of its own.
CLI::App* add_weak_scaling(CLI::App& simulate, SimulatedScaling& scaling);

/// Throws Failure: what cannot be met whatever a plan is, before any is made.
void check_weak_scaling(World& world, const SimulatedScaling& scaling);

/// A row for each number of ranks and planner, as it is done; what does not fit has a row, too.
/// Returns the exit status. Throws Failure.
int run_weak_scaling(const SimulatedScaling& scaling);

}  // namespace shardrun::cli
