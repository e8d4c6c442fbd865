// shardrun bench checkpoint: saving and reading a model's state, compared with the disk's own
// speed.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/table.h"
#include "options.h"
#include "process/child.h"
#include "report.h"
#include "shardrun/bench.h"

namespace shardrun::cli {
namespace {

struct CheckpointOptions {
  Arguments args;
  std::string folder, json;
  int rounds = 5;
};

double best_write(const CheckpointRound& round) {
  return std::min(round.write_direct, round.write_cached);
}

nlohmann::json to_json(const CheckpointRound& round) {
  return {{"bytes", round.bytes},
          {"write_direct_s", round.write_direct},
          {"write_cached_s", round.write_cached},
          {"save_s", round.save},
          {"copy_s", round.copy},
          {"stalled_s", round.stalled},
          {"behind_s", round.behind},
          {"read_s", round.read},
          {"restore_s", round.restore},
          {"save_of_disk", best_write(round) / round.save},
          {"stall_of_copy", round.stalled / round.copy},
          {"restore_of_disk", round.read / round.restore}};
}

/// Of each round one number; what is in the middle.
template <class F>
double median(const std::vector<CheckpointRound>& rounds, const F& number) {
  std::vector<double> all;
  for (const CheckpointRound& round : rounds) all.push_back(number(round));
  return quantile(all, 0.5);
}

void print(const std::vector<CheckpointRound>& rounds) {
  const Table table({{"round", 5},
                     {"MB", 8},
                     {"disk write MB/s", 8},
                     {"save", 8},
                     {"of disk", 7},
                     {"copy ms", 8},
                     {"stalled", 8},
                     {"of copy", 7},
                     {"disk read MB/s", 8},
                     {"restore", 8},
                     {"of disk", 7}});
  std::printf("%s", table.head().c_str());
  for (size_t i = 0; i < rounds.size(); ++i) {
    const CheckpointRound& r = rounds[i];
    const auto rate = [&](double seconds) {
      return number(static_cast<double>(r.bytes) / seconds / 1e6, "%.0f");
    };
    std::printf("%s",
                table
                    .row({std::to_string(i + 1), number(static_cast<double>(r.bytes) / 1e6, "%.1f"),
                          rate(best_write(r)), rate(r.save), number(best_write(r) / r.save, "%.2f"),
                          number(r.copy * 1e3, "%.1f"), number(r.stalled * 1e3, "%.1f"),
                          number(r.stalled / r.copy, "%.2f"), rate(r.read), rate(r.restore),
                          number(r.read / r.restore, "%.2f")})
                    .c_str());
  }
  std::printf(
      "medians: a save reaches %.2f of the disk's rate with fsync, training stands still for %.2f "
      "of a copy of the state, a restore reaches %.2f of the disk's rate\n",
      median(rounds, [](const auto& r) { return best_write(r) / r.save; }),
      median(rounds, [](const auto& r) { return r.stalled / r.copy; }),
      median(rounds, [](const auto& r) { return r.read / r.restore; }));
}

void measure(World& world, CheckpointOptions& o) {
  check_outputs(world, {{"--json", o.json}, {"--folder", o.folder, true}}, files_read(o.args));
  const Model model = load_model(world, o.args.onnx(), o.args.model_options);
  o.args.plan.with_evaluation = false;
  const TrainingPlan plan = make_plan(world, model, o.args.plan);
  if (world.leader()) {
    std::printf("%s%s", describe(this_machine()).c_str(), plan.summary().c_str());
    std::fflush(stdout);
  }
  const auto rounds = bench_checkpoint(world, model, plan, o.folder, o.rounds);
  if (!world.leader()) return;
  print(rounds);
  if (o.json.empty()) return;
  nlohmann::json rows = nlohmann::json::array();
  for (const CheckpointRound& round : rounds) rows.push_back(to_json(round));
  const nlohmann::json all = {{"bench", "checkpoint"},
                              {"machine", to_json(this_machine())},
                              {"model", o.args.model},
                              {"ranks", world.size()},
                              {"rounds", rows}};
  write_output(o.json, all.dump(1) + "\n");
}

int run(CheckpointOptions& o) {
  finish_arguments(o.args);
  if (o.args.ranks && launched_processes() > 1) {
    throw Failure(Failure::Kind::call,
                  "--ranks " + std::to_string(*o.args.ranks) + ": mpirun started " +
                      std::to_string(launched_processes()) + "; leave out one of the two");
  }
  World world = o.args.ranks ? World::threads(*o.args.ranks) : World::launched();
  if (o.args.threads) world.use_threads(*o.args.threads);
  try {
    measure(world, o);
    return 0;
  } catch (const std::exception& e) {
    return world.fail(e);
  }
}

}  // namespace

Bench add_bench_checkpoint(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("checkpoint",
                                       "Saving a model's first state and reading it, on --ranks "
                                       "threads or under mpirun, compared with what "
                                       "the disk does with plain files and memory with a copy");
  const auto options = std::make_shared<CheckpointOptions>();
  add_model_options(*app, options->args);
  add_plan_options(*app, options->args);
  app->add_option("--folder", options->folder, "Where, on the disk that counts; left as it was")
      ->required();
  app->add_option("--rounds", options->rounds, "How often, after once to warm up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--json", options->json, "Write the table to this file too");
  return {app, [options] { return run(*options); }, /*on_all=*/true};
}

}  // namespace shardrun::cli
