// shardrun bench step: a step compared with its products alone and its traffic through memory.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/one_rank.h"
#include "bench/table.h"

namespace shardrun::cli {
namespace {

struct StepOptions {
  Arguments args;
  int rounds = 7;
  std::string json;
};

std::string ms(double seconds) { return number(seconds * 1e3, "%.2f"); }

std::string percent(double part, double whole) { return number(100 * part / whole, "%.1f %%"); }

/// What a benchmark comes to.
struct Verdict {
  double step = 0;      // s, median of the rounds
  double ratio = 0;     // of a step to its limit, likewise
  double rate = 0;      // FLOP/s of the model's products, in a step
  double fraction = 0;  // of the matmul's ceiling in the model's type
};

Verdict verdict_of(const StepBench& bench, const std::string& dtype) {
  std::vector<double> steps, ratios;
  for (const StepBench::Round& round : bench.rounds) {
    steps.push_back(round.step);
    ratios.push_back(round.step / bench.limit(round));
  }
  Verdict out;
  out.step = quantile(steps, 0.5);
  out.ratio = quantile(ratios, 0.5);
  out.rate = bench.flops / out.step;
  out.fraction = out.rate / bench.ceilings.flops.at(dtype);
  return out;
}

void print(const StepBench& bench, const std::string& dtype) {
  const double traffic = bench.traffic_bytes / bench.ceilings.bandwidth;
  const Table parts({{"ms in the step", 14},
                     {"fraction", 8},
                     {"alone", 9},
                     {"GFLOP/s", 8},
                     {"MB", 9},
                     {"at bandwidth", 12},
                     {"calls", 5},
                     {"op", 0, true}});
  std::printf("%s", parts.head().c_str());
  for (const StepBench::Part& part : bench.parts) {
    const bool rated = part.product && part.in_step > 0;
    std::printf("%s", parts
                          .row({ms(part.in_step), percent(part.in_step, bench.recorded),
                                part.product ? ms(part.alone) : "-",
                                rated ? number(part.flops / part.in_step / 1e9, "%.0f") : "-",
                                number(part.bytes / 1e6, "%.1f"),
                                part.product ? "-" : ms(part.bytes / bench.ceilings.bandwidth),
                                std::to_string(part.calls), part.op})
                          .c_str());
  }
  const Table rounds(
      {{"round", 5}, {"step ms", 9}, {"products alone", 14}, {"traffic", 9}, {"step / sum", 10}});
  std::printf("\n%s", rounds.head().c_str());
  for (size_t i = 0; i < bench.rounds.size(); ++i) {
    const StepBench::Round& round = bench.rounds[i];
    std::printf("%s", rounds
                          .row({std::to_string(i + 1), ms(round.step), ms(round.products),
                                ms(traffic), number(round.step / bench.limit(round), "%.3f")})
                          .c_str());
  }
  const Verdict verdict = verdict_of(bench, dtype);
  std::printf(
      "a step takes %s ms (median; recorded, as in the first table, %s): %.4g GFLOP of products at "
      "%.4g GFLOP/s, %s of the matmul's ceiling in %s\n"
      "a step takes %.3f times its products alone and its traffic at memory bandwidth (median)\n",
      ms(verdict.step).c_str(), ms(bench.recorded).c_str(), bench.flops / 1e9, verdict.rate / 1e9,
      percent(verdict.fraction, 1).c_str(), dtype.c_str(), verdict.ratio);
}

int run(const CLI::App& app, StepOptions& o) {
  World alone = World::threads(1);
  check_outputs(alone, {{"--json", o.json}}, files_read(o.args));
  const Machine machine = this_machine();
  OneRank one(app, o.args);
  const StepBench bench = bench_step(one.world, one.model, one.plan, o.args.train, o.rounds);
  const std::string& dtype = o.args.model_options.dtype;
  nlohmann::json rounds = nlohmann::json::array(), parts = nlohmann::json::array();
  for (const StepBench::Round& round : bench.rounds) {
    rounds.push_back({{"step_ms", round.step * 1e3},
                      {"products_ms", round.products * 1e3},
                      {"ratio", round.step / bench.limit(round)}});
  }
  for (const StepBench::Part& part : bench.parts) {
    parts.push_back({{"op", part.op},
                     {"calls", part.calls},
                     {"product", part.product},
                     {"in_step_ms", part.in_step * 1e3},
                     {"alone_ms", part.alone * 1e3},
                     {"flops", part.flops},
                     {"bytes", part.bytes},
                     {"traffic_bytes", part.traffic_bytes}});
  }
  std::printf("%s%s", describe(machine).c_str(), describe(bench.ceilings).c_str());
  print(bench, dtype);
  if (o.json.empty()) return 0;
  nlohmann::json all = report_head("step", machine, o.args, bench.ceilings);
  const Verdict verdict = verdict_of(bench, dtype);
  all["flops"] = bench.flops;
  all["recorded_ms"] = bench.recorded * 1e3;
  all["step_ms"] = verdict.step * 1e3;
  all["of_ceiling"] = verdict.fraction;
  all["traffic_bytes"] = bench.traffic_bytes;
  all["traffic_ms"] = bench.traffic_bytes / bench.ceilings.bandwidth * 1e3;
  all["parts"] = parts;
  all["rounds"] = rounds;
  all["ratio"] = verdict.ratio;
  write_output(o.json, all.dump(1) + "\n");
  return 0;
}

}  // namespace

Bench add_bench_step(CLI::App& bench) {
  CLI::App* app =
      bench.add_subcommand("step",
                           "A step compared with the sum of its matmuls, convolutions "
                           "and attentions alone and of its other bytes at memory bandwidth");
  const auto options = std::make_shared<StepOptions>();
  app->add_option("model", options->args.model, "An ONNX file, or gpt, wide-resnet or gat")
      ->required();
  add_one_rank_options(*app, options->args);
  app->add_option("--rounds", options->rounds,
                  "Steps, each followed by its products alone (after three to warm up)")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--json", options->json, "Write everything to this file");
  return {app, [app, options] { return run(*app, *options); }};
}

}  // namespace shardrun::cli
