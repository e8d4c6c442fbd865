// shardrun bench step: a step beside its products alone and its traffic through memory.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "machine.h"
#include "one_rank.h"
#include "output_file.h"
#include "table.h"

namespace shardrun::cli {
namespace {

struct Options {
  Arguments args;
  int rounds = 7;
  std::string json;
};

std::string ms(double seconds) { return number(seconds * 1e3, "%.2f"); }

void print(const StepBench& bench, double ratio) {
  const double traffic = bench.traffic_bytes / bench.ceilings.bandwidth;
  const Table parts({{"ms in the step", 14},
                     {"alone", 9},
                     {"MB", 9},
                     {"at bandwidth", 12},
                     {"calls", 5},
                     {"op", 0, true}});
  std::printf("%s", parts.head().c_str());
  for (const StepBench::Part& part : bench.parts) {
    std::printf("%s", parts
                          .row({ms(part.in_step), part.product ? ms(part.alone) : "-",
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
  std::printf(
      "a step takes %.3f times its products alone and its traffic at memory bandwidth (median)\n",
      ratio);
}

int run(const CLI::App& app, Options& o) {
  if (!o.json.empty()) write_file(o.json, "");  // before it takes long
  const Machine machine = this_machine();
  OneRank one(app, o.args);
  const StepBench bench = bench_step(one.world, one.model, one.plan, o.args.train, o.rounds);
  std::vector<double> ratios;
  nlohmann::json rounds = nlohmann::json::array(), parts = nlohmann::json::array();
  for (const StepBench::Round& round : bench.rounds) {
    ratios.push_back(round.step / bench.limit(round));
    rounds.push_back({{"step_ms", round.step * 1e3},
                      {"products_ms", round.products * 1e3},
                      {"ratio", ratios.back()}});
  }
  for (const StepBench::Part& part : bench.parts) {
    parts.push_back({{"op", part.op},
                     {"calls", part.calls},
                     {"product", part.product},
                     {"in_step_ms", part.in_step * 1e3},
                     {"alone_ms", part.alone * 1e3},
                     {"bytes", part.bytes},
                     {"traffic_bytes", part.traffic_bytes}});
  }
  const double ratio = quantile(ratios, 0.5);
  std::printf("%s%s", describe(machine).c_str(), describe(bench.ceilings).c_str());
  print(bench, ratio);
  if (o.json.empty()) return 0;
  nlohmann::json all = report_head("step", machine, o.args, bench.ceilings);
  all["traffic_bytes"] = bench.traffic_bytes;
  all["traffic_ms"] = bench.traffic_bytes / bench.ceilings.bandwidth * 1e3;
  all["parts"] = parts;
  all["rounds"] = rounds;
  all["ratio"] = ratio;
  write_file(o.json, all.dump(1) + "\n");
  return 0;
}

}  // namespace

Bench add_bench_step(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand(
      "step",
      "A step beside the sum of its matmuls, convolutions and attentions alone and of its other "
      "bytes at memory bandwidth");
  const auto options = std::make_shared<Options>();
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
