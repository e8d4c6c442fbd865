// shardrun calibrate: measures this machine for the planner.
#include <cstdio>
#include <memory>

#include "command.h"

namespace shardrun::cli {
namespace {

int run_calibrate(World& world, const CalibrateRequest& request) {
  const CalibrateReport report = calibrate(world, request);
  if (!world.leader()) return 0;
  std::printf("measured %d kernels and %d collectives in %.1f s: %s\n", report.kernels,
              report.collectives, report.seconds, report.path.c_str());
  if (!report.disturbed.empty()) std::printf("%s\n", report.disturbed.c_str());
  return 0;
}

void add_calibrate_options(CLI::App& app, Arguments& args, CalibrateRequest& request) {
  app.add_option("-o,--output", request.output,
                 "Another cluster file than the one that plans read by themselves");
  add_device_option(app, args);
  app.add_option(
      "--threads", args.threads,
      "Measure ranks with so many threads each, beside what is known of others (default: the cores "
      "shared out over 1, 2, 4 ... ranks)");
  app.add_option("--seconds", request.seconds,
                 "How long it may take, about; a quarter longer where something else slows the "
                 "machine down")
      ->capture_default_str();
}

}  // namespace

Command calibrate_command() {
  const auto request = std::make_shared<CalibrateRequest>();
  return {.name = "calibrate",
          .help =
              "Measure this machine's cores or GPUs for the planner; under mpirun, collectives "
              "between its processes",
          .on_all = true,
          .add_options = [request](CLI::App& app,
                                   Arguments& args) { add_calibrate_options(app, args, *request); },
          .run = [request](World& world, Arguments&) { return run_calibrate(world, *request); }};
}

}  // namespace shardrun::cli
