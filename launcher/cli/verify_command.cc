// shardrun verify: runs a step of a plan, and the same on one rank, and compares every value.
#include <cstdio>

#include "command.h"
#include "loaded.h"

namespace shardrun::cli {
namespace {

/// A plan with which training would go wrong ends with status 1.
int run_verify(World& world, Arguments& args) {
  const auto [model, plan, tried] = load_and_plan(
      world, args, [&](const Model& loaded) { check_verification(world, loaded, args.train); });
  std::fflush(stdout);
  const VerifyReport report = verify(world, model, plan, args.train);
  if (!report.verified) throw Failure(Failure::Kind::run, "verify: " + report.mismatch, true);
  if (!world.leader()) return 0;
  std::printf("verified: %lld values agree with one rank to %.1e (%lld comparisons%s)\n",
              static_cast<long long>(report.values), report.largest,
              static_cast<long long>(report.comparisons),
              report.fused == 0
                  ? ""
                  : (", " + std::to_string(report.fused) + " nodes run as a part of another's step")
                        .c_str());
  return 0;
}

void add_verify_options(CLI::App& app, Arguments& args) {
  add_model_options(app, args);
  add_plan_options(app, args);
  add_train_options(app, args);
}

}  // namespace

Command verify_command() {
  return {.name = "verify",
          .help =
              "Run one step and one validation of a plan, under mpirun or on --ranks threads, "
              "and compare every value with one rank's",
          .on_all = true,
          .takes_recipe = true,
          .add_options = add_verify_options,
          .run = run_verify,
          .prepare = take_ranks_of_plan};
}

}  // namespace shardrun::cli
