// shardrun solve: a planning problem in a file.
#include <cmath>
#include <cstdio>
#include <memory>

#include "command.h"
#include "search_names.h"

namespace shardrun::cli {
namespace {

void add_solve_options(CLI::App& app, SolveRequest& o) {
  app.add_option("file", o.file,
                 "A problem: JSON, plain or gzipped, our own form or the IOPDDL contest's")
      ->required();
  app.add_option("--time", o.seconds, "Seconds in all, reading the file included")
      ->capture_default_str()
      ->check(not_above_0, "");
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--solver", o.solver, solver_help())->capture_default_str();
  app.add_option(
         "--nodes", o.nodes,
         "lns: stop after so many nodes of its search trees; equal calls then give equal choices")
      ->check(below_0, "");
  app.add_option("--threads", o.threads, "lns: the result depends on it")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
}

std::string why_none(const SolveReport& report) {
  const auto at = [](int64_t bytes, int time) {
    return std::to_string(bytes) + " bytes at time " + std::to_string(time);
  };
  const std::string limit = "the limit is " + std::to_string(report.limit_bytes);
  if (report.needed_bytes > report.limit_bytes) {
    return "no choices fit: every one needs at least " +
           at(report.needed_bytes, report.needed_time) + ", " + limit;
  }
  std::string why = report.infeasible ? "no choices are allowed and fit (proven)"
                                      : "no choices were found that fit; allow more --time";
  if (report.closest_bytes < 0) return why + "; none that was seen is allowed";
  return why + "; the closest seen needs " + at(report.closest_bytes, report.closest_time) + ", " +
         limit + ": " + std::to_string(report.closest_bytes - report.limit_bytes) + " too many";
}

/// The choices are the last line of stdout, "[]" if there are none; all else goes to stderr.
int run_solve(const SolveRequest& request) {
  const SolveReport report = solve_problem(request);
  std::string line = "[";
  for (size_t i = 0; i < report.choices.size(); ++i)
    line += (i == 0 ? "" : ", ") + std::to_string(report.choices[i]);
  std::printf("%s]\n", line.c_str());
  std::fflush(stdout);
  if (!report.rounded.empty()) {
    std::fprintf(stderr, "%s: %s, as 64-bit floating point has it; costs are not exact\n",
                 request.file.c_str(), report.rounded.c_str());
  }
  std::fprintf(stderr, "nodes %lld, after reduction %lld\n", static_cast<long long>(report.nodes),
               static_cast<long long>(report.core_nodes));
  if (report.found) {
    const double gap = report.cost > report.lower_bound
                           ? (report.cost - report.lower_bound) / std::abs(report.cost)
                           : 0.0;
    std::fprintf(stderr, "cost %.17g, lower bound %.17g, gap %.4g %%, solver %s, %.2f s\n",
                 report.cost, report.lower_bound, 100 * gap, report.solver.c_str(), report.seconds);
    return 0;
  }
  std::fprintf(stderr, "%s; ", why_none(report).c_str());
  if (!report.infeasible && std::isfinite(report.lower_bound))
    std::fprintf(stderr, "lower bound %.17g, ", report.lower_bound);
  std::fprintf(stderr, "solver %s, %.2f s\n", report.solver.c_str(), report.seconds);
  return 1;
}

}  // namespace

Command solve_command() {
  const auto request = std::make_shared<SolveRequest>();
  return {.name = "solve",
          .help = "Solve a planning problem in a file",
          .add_options = [request](CLI::App& app, Arguments&) { add_solve_options(app, *request); },
          .run_alone = [request](Arguments&) { return run_solve(*request); }};
}

}  // namespace shardrun::cli
