// The list of bench's subcommands.
#include "bench.h"

namespace shardrun::cli {

BenchCommand::BenchCommand(CLI::App& app) {
  app.require_subcommand(1);
  benches_ = {add_bench_weak_scaling(app), add_bench_collectives(app), add_bench_ops(app),
              add_bench_step(app), add_bench_checkpoint(app), add_bench_sample(app)};
}

const Bench* BenchCommand::chosen() const {
  for (const Bench& bench : benches_) {
    if (bench.command->parsed()) return &bench;
  }
  return nullptr;
}

}  // namespace shardrun::cli
