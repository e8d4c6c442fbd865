// shardrun bench sample: tokens a second compared with the bandwidth of memory.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/table.h"
#include "options.h"
#include "report.h"
#include "shardrun/bench.h"

namespace shardrun::cli {
namespace {

struct SampleOptions {
  Arguments args;
  SampleRequest request;
  int rounds = 5;
  std::string json;
};

int run(SampleOptions& o) {
  finish_arguments(o.args);
  World world = o.args.ranks ? World::threads(*o.args.ranks) : World::launched();
  try {
    if (o.args.threads) world.use_threads(*o.args.threads);
    check_outputs(world, {{"--json", o.json}}, files_read(o.args));
    o.request.model = o.args.onnx();
    o.request.options = o.args.model_options;
    o.request.plan = o.args.plan;
    o.request.prompt = {0};
    o.request.temperature = 0;
    const std::vector<SampleRound> rounds = bench_sample(world, o.request, o.rounds);
    if (!world.leader()) return 0;
    const Table table({{"round", 5},
                       {"ms a token", 10},
                       {"tokens/s", 9},
                       {"parameters MB", 13},
                       {"memory GB/s", 11},
                       {"of the limit", 12}});
    std::printf("%s", table.head().c_str());
    nlohmann::json all = nlohmann::json::array();
    std::vector<double> fractions;
    for (const SampleRound& r : rounds) {
      fractions.push_back(r.limit() / r.token);
      std::printf("%s", table
                            .row({std::to_string(fractions.size()), number(r.token * 1e3, "%.3f"),
                                  number(1 / r.token, "%.1f"),
                                  number(static_cast<double>(r.parameter_bytes) / 1e6, "%.1f"),
                                  number(r.bandwidth / 1e9, "%.1f"),
                                  number(100 * fractions.back(), "%.1f %%")})
                            .c_str());
      all.push_back({{"token_ms", r.token * 1e3},
                     {"bandwidth", r.bandwidth},
                     {"parameter_bytes", r.parameter_bytes},
                     {"of_limit", fractions.back()}});
    }
    std::printf(
        "a token at a time, %s, reaches %.1f %% of the rate at which memory delivers the "
        "parameters (median)\n",
        rounds.front().keys_are_kept ? "keys and values kept" : "the context computed again",
        100 * quantile(fractions, 0.5));
    if (!o.json.empty())
      write_output(o.json, nlohmann::json({{"bench", "sample"}, {"rounds", all}}).dump(1) + "\n");
    return 0;
  } catch (const std::exception& e) {
    return world.fail(e);
  }
}

}  // namespace

Bench add_bench_sample(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("sample",
                                       "Tokens drawn one by one, compared with the bytes of the "
                                       "parameters over the bandwidth of memory");
  const auto options = std::make_shared<SampleOptions>();
  add_call_options(*app, options->args);
  add_machine_options(*app, options->args);
  app->add_option("--tokens", options->request.tokens, "To draw in a round")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app->add_option("--rounds", options->rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app->add_option("--json", options->json, "Write everything to this file");
  return {app, [options] { return run(*options); }, true};
}

}  // namespace shardrun::cli
