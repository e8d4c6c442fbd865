// Models that grow with the ranks, each planned and simulated by each planner.
#include "simulate/weak_scaling.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/bench_models.h"
#include "bench/plot.h"
#include "bench/table.h"
#include "options.h"
#include "process/child.h"
#include "shardrun/bench.h"
#include "shardrun/simulate.h"

namespace shardrun::cli {
namespace {

struct SimulatedRow {
  int ranks = 1;
  std::string planner, mesh, why;  // why: it does not fit
  double seconds = 0, flops = 0;   // of a step, on all ranks
  int64_t bytes = 0;               // of the fullest rank
};

/// Throws Failure; one of memory leaves a row that says so.
SimulatedRow simulated_row(const SimulatedScaling& o, const BenchModel& of, const std::string& file,
                           int ranks, const std::string& planner) {
  SimulatedRow row{ranks, planner, "", ""};
  World world = World::threads(1);
  ModelOptions options;
  options.dtype = o.dtype;
  if (!of.train.empty()) options.loss = "cross-entropy";
  PlanRequest request;
  request.ranks = ranks, request.cluster = o.cluster, request.planner = planner;
  request.with_evaluation = false;
  if (!o.memory.empty()) request.memory_bytes = parse_bytes(o.memory, "--memory");
  try {
    const Model model = load_model(world, file, options);
    const TrainingPlan plan = make_plan(world, model, request);
    const PlanFigures figures = plan_figures(world, model, plan);
    const SimulateReport report = simulate(world, model, plan, {});
    row.mesh = figures.mesh, row.flops = figures.flops;
    row.seconds = report.seconds, row.bytes = report.peak_bytes;
  } catch (const Failure& failure) {
    if (failure.kind() != Failure::Kind::memory) throw;
    row.why = failure.what();
    if (const size_t at = row.why.find(file); at != std::string::npos)
      row.why.replace(at, file.size(), o.model);  // the file is gone when this is read
  }
  return row;
}

Plot plot_of(const SimulatedScaling& o, const std::vector<SimulatedRow>& rows) {
  Plot plot;
  plot.title = "Simulated weak scaling of " + o.model + " on " + o.cluster + ", " + o.dtype;
  plot.x_label = "ranks (the model grows with them)";
  plot.y_label = "TFLOP/s of all ranks";
  plot.missing_label = "out of memory";
  for (const std::string& planner : o.planners) {
    Plot::Line line;
    line.name = planner;
    for (const SimulatedRow& row : rows) {
      if (row.planner != planner) continue;
      const double y = row.why.empty() ? row.flops / row.seconds / 1e12 : 0;
      if (row.why.empty()) {
        line.points.push_back({static_cast<double>(row.ranks), y, y, y});
      } else {
        line.missing.push_back(row.ranks);
      }
    }
    plot.lines.push_back(std::move(line));
  }
  return plot;
}

nlohmann::json json_of(const SimulatedScaling& o, const std::vector<SimulatedRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const SimulatedRow& row : rows) {
    nlohmann::json one = {{"ranks", row.ranks}, {"planner", row.planner}};
    if (row.why.empty()) {
      one["mesh"] = row.mesh;
      one["seconds"] = row.seconds;
      one["flops"] = row.flops;
      one["bytes"] = row.bytes;
    } else {
      one["out_of_memory"] = row.why;
    }
    list.push_back(std::move(one));
  }
  return {{"model", o.model}, {"scale", o.scale},  {"cluster", o.cluster},
          {"dtype", o.dtype}, {"simulated", true}, {"rows", list}};
}

}  // namespace

void check_weak_scaling(World& world, const SimulatedScaling& o) {
  for (const std::string& planner : o.planners) check_planner(planner);
  for (const int ranks : o.ranks) bench_model(o.model, o.scale, ranks);
  check_plot(o.plot);
  check_outputs(world, {{"--json", o.json}, {"--plot", o.plot}}, {});
}

int run_weak_scaling(const SimulatedScaling& o) {
  const TemporaryFolder folder;
  const Table table({{"ranks", 5},
                     {"planner", 9, true},
                     {"mesh", 10, true},
                     {"step, ms", 9},
                     {"TFLOP/s", 8},
                     {"MiB a rank", 10}});
  std::vector<SimulatedRow> rows;
  for (const int ranks : o.ranks) {
    const BenchModel model = bench_model(o.model, o.scale, ranks);
    const std::string file = folder.path() + "/model.onnx";
    model.write(file);
    for (const std::string& planner : o.planners) {
      const SimulatedRow& row = rows.emplace_back(simulated_row(o, model, file, ranks, planner));
      if (rows.size() == 1) {
        std::printf("simulated, not measured: %s on %s, %s\n%s", o.model.c_str(), o.cluster.c_str(),
                    o.dtype.c_str(), table.head().c_str());
      }
      if (!row.why.empty()) {
        std::printf("%5d  %-9s  out of memory: %s\n", ranks, planner.c_str(), row.why.c_str());
      } else {
        std::printf("%s", table
                              .row({std::to_string(ranks), planner, row.mesh,
                                    number(row.seconds * 1e3, "%.1f"),
                                    number(row.flops / row.seconds / 1e12, "%.1f"),
                                    number(static_cast<double>(row.bytes) / 0x1p20, "%.0f")})
                              .c_str());
      }
      std::fflush(stdout);
    }
  }
  if (!o.json.empty()) write_output(o.json, json_of(o, rows).dump(1) + "\n");
  if (!o.plot.empty()) write_output(o.plot, svg(plot_of(o, rows)));
  return 0;
}

CLI::App* add_weak_scaling(CLI::App& simulate, SimulatedScaling& o) {
  CLI::App* app = simulate.add_subcommand(
      "weak-scaling",
      "Simulate a model that grows with the number of ranks, by several planners (MetaDist's "
      "figure 8)");
  app->add_option("--model", o.model, "gpt, wide-resnet or gat")
      ->required()
      ->check(CLI::IsMember(bench_models()));
  app->add_option("--scale", o.scale, "paper: MetaDist's, for 1, 2, 4 and 8 ranks; small, tiny")
      ->check(CLI::IsMember(bench_scales()))
      ->capture_default_str();
  app->add_option("--ranks", o.ranks, "How many, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--planners", o.planners, "With commas; whatever plan's --planner takes")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--cluster", o.cluster, "What to plan for (plan's --cluster)")
      ->capture_default_str();
  app->add_option("--dtype", o.dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app->add_option("--memory", o.memory, "Limit of a rank's memory, as 16GiB");
  app->add_option("--json", o.json, "Write the rows to this file");
  app->add_option("--plot", o.plot, "Write an SVG of FLOP/s by ranks to this file");
  return app;
}

}  // namespace shardrun::cli
