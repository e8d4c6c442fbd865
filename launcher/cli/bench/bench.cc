// The list of bench's subcommands.
#include "bench/bench.h"

#include <memory>

#include "command.h"
#include "report.h"

namespace shardrun::cli {
namespace {

int run_chosen(const std::vector<Bench>& benches) {
  for (const Bench& bench : benches) {
    if (bench.command->parsed()) return bench.on_all || is_first_process() ? bench.run() : 0;
  }
  return 0;
}

}  // namespace

Command bench_command() {
  const auto benches = std::make_shared<std::vector<Bench>>();
  return {.name = "bench",
          .help = "Measure, so that anybody can repeat it",
          .on_all = true,
          .add_options =
              [benches](CLI::App& app, Arguments&) {
                app.require_subcommand(1);
                *benches = {add_bench_weak_scaling(app), add_bench_collectives(app),
                            add_bench_ops(app),          add_bench_step(app),
                            add_bench_checkpoint(app),   add_bench_sample(app)};
              },
          .run_alone = [benches](Arguments&) { return run_chosen(*benches); }};
}

}  // namespace shardrun::cli
