// shardrun bench ops: kernels alone, compared with this machine's ceilings.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/one_rank.h"
#include "bench/table.h"

namespace shardrun::cli {
namespace {

struct OpsOptions {
  Arguments args;
  std::string json;
};

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

nlohmann::json kernel_json(const KernelTime& k) {
  return {{"op", k.op},
          {"kernel", k.kernel},
          {"dtype", k.dtype},
          {"in", k.in},
          {"places", k.places},
          {"out", k.out},
          {"node", k.node},
          {"calls", k.calls},
          {"ms", k.seconds * 1e3},
          {"least_ms", k.least * 1e3},
          {"lost_ms", k.lost() * 1e3},
          {"bytes", k.bytes},
          {"flops", k.flops}};
}

void print(const KernelBench& bench) {
  const Table table({{"lost ms", 9},
                     {"calls", 5},
                     {"ms a call", 9},
                     {"at best", 9},
                     {"times", 6},
                     {"GFLOP/s", 8},
                     {"GB/s", 6},
                     {"kernel", 0, true}});
  std::printf("%s", table.head().c_str());
  for (const KernelTime& k : bench.kernels) {
    const auto rate = [&](double amount) {
      return amount > 0 && k.seconds > 0 ? number(amount / k.seconds / 1e9, "%.1f") : "-";
    };
    std::printf("%s",
                table
                    .row({number(k.lost() * 1e3, "%.3f"), std::to_string(k.calls),
                          number(k.seconds * 1e3, "%.4f"), number(k.least * 1e3, "%.4f"),
                          k.least > 0 ? number(k.seconds / k.least, "%.2f") : "-", rate(k.flops),
                          rate(k.bytes),
                          k.op + " " + k.kernel + " " + joined(k.in) + " -> " + joined(k.out)})
                    .c_str());
  }
}

int run(const CLI::App& app, OpsOptions& o) {
  World alone = World::threads(1);
  check_outputs(alone, {{"--json", o.json}}, files_read(o.args));
  const Machine machine = this_machine();
  KernelBench bench;
  if (o.args.model.empty()) {
    finish_arguments(o.args);
    World world = World::threads(1);
    bench = bench_kernels(world);
  } else {
    OneRank one(app, o.args);
    bench = bench_kernels(one.world, one.model, one.plan);
  }
  std::printf("%s%s", describe(machine).c_str(), describe(bench.ceilings).c_str());
  print(bench);
  if (o.json.empty()) return 0;
  nlohmann::json kernels = nlohmann::json::array();
  for (const KernelTime& k : bench.kernels) kernels.push_back(kernel_json(k));
  nlohmann::json all = report_head("ops", machine, o.args, bench.ceilings);
  all["kernels"] = kernels;
  write_output(o.json, all.dump(1) + "\n");
  return 0;
}

}  // namespace

Bench add_bench_ops(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand(
      "ops",
      "Each kernel compared with what its bytes and FLOPs would take at this machine's best");
  const auto options = std::make_shared<OpsOptions>();
  app->add_option("--model", options->args.model,
                  "The calls of a step of this model, an ONNX file or gpt, wide-resnet or gat "
                  "(default: every op, in f32 and bf16, on 16 MiB)");
  add_one_rank_options(*app, options->args);
  app->add_option("--json", options->json, "Write everything to this file");
  return {app, [app, options] { return run(*app, *options); }};
}

}  // namespace shardrun::cli
