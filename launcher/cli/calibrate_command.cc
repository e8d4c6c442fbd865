// shardrun calibrate: measures this machine for the planner.
#include <cstdio>
#include <memory>

#include "command.h"
#include "report.h"
#include "screen/work_line.h"
#include "shardrun/calibrate.h"
#include "simulate/calibrate_rows.h"

namespace shardrun::cli {
namespace {

struct Calibrate {
  CalibrateRequest request;
  RowCalibration rows;
};

int run_calibrate(World& world, const Arguments& args, const Calibrate& calibrate) {
  CalibrateRequest request = calibrate.request;
  if (!calibrate.rows.rows.empty()) {
    if (world.size() > 1 || launched_processes() > 1)
      throw Failure(Failure::Kind::call, "calibrate --rows: runs in one process, without mpirun");
    RowCalibration rows = calibrate.rows;
    rows.output = request.output, rows.quiet = args.quiet;
    return run_row_calibration(world, rows);
  }
  const bool tells = world.leader() && !args.quiet;
  WorkLine line("calibrating", tells);
  bool begun = false;
  request.on_progress = [&](const std::string& part, const std::string& what) {
    if (tells && !begun)
      line.above([&] { std::printf("calibrating takes about %g s\n", request.seconds); });
    begun = true;
    what.empty() ? line.part(part) : line.at(what);
  };
  const CalibrateReport report = shardrun::calibrate(world, request);
  line.end();
  if (tells)
    std::printf("measured %d kernels and %d collectives in %.1f s: %s\n", report.kernels,
                report.collectives, report.seconds, report.path.c_str());
  if (world.leader() && !report.disturbed.empty())
    std::fprintf(args.quiet ? stderr : stdout, "%s\n", report.disturbed.c_str());
  return 0;
}

void add_calibrate_options(CLI::App& app, Arguments& args, Calibrate& calibrate) {
  CalibrateRequest& request = calibrate.request;
  app.add_option(
      "-o,--output", request.output,
      "Another cluster file than the one that plans read by themselves; --rows: where the "
      "constants go, if anywhere");
  add_device_option(app, args);
  app.add_option("--threads", args.threads,
                 "Measure ranks with so many threads each, in addition to what is known of others "
                 "(default: the cores divided among 1, 2, 4 ... ranks)");
  app.add_option("--seconds", request.seconds,
                 "How long it may take, about; a quarter longer where something else slows the "
                 "machine down")
      ->capture_default_str();
  add_quiet_option(app, args);
  add_row_calibration(app, calibrate.rows);
  for (const char* flag : {"--device", "--threads", "--seconds"})
    app.get_option("--rows")->excludes(app.get_option(flag));
}

}  // namespace

Command calibrate_command() {
  const auto calibrate = std::make_shared<Calibrate>();
  return {
      .name = "calibrate",
      .help =
          "Measure this machine's cores or GPUs for the planner; under mpirun, collectives "
          "between its processes",
      .on_all = true,
      .add_options = [calibrate](CLI::App& app,
                                 Arguments& args) { add_calibrate_options(app, args, *calibrate); },
      .run = [calibrate](World& world,
                         Arguments& args) { return run_calibrate(world, args, *calibrate); }};
}

}  // namespace shardrun::cli
