// A model on one rank with all its threads, as `bench ops` and `bench step` measure it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/machine.h"
#include "options.h"
#include "process/child.h"
#include "shardrun/bench.h"

namespace shardrun::cli {

/// What a step computes: flags of the model, and of the data that bind its dims. The model itself
/// is not among them.
void add_one_rank_options(CLI::App& app, Arguments& args);

struct OneRank {
  TemporaryFolder folder;  // for a model that is named
  World world;
  Model model;
  TrainingPlan plan;
  /// args.model is a file, or one of bench_models(). What a file's recipe says counts where `app`,
  /// which has been parsed, does not say otherwise.
  OneRank(const CLI::App& app, Arguments& args);
};

/// "ceilings of 2 threads: matmul f32 270 GFLOP/s, bf16 1800 GFLOP/s; memory 25.1 GB/s".
std::string describe(const Ceilings& ceilings);
/// What the JSON of a benchmark on one rank begins with.
nlohmann::json report_head(const char* bench, const Machine& machine, const Arguments& args,
                           const Ceilings& ceilings);

}  // namespace shardrun::cli
