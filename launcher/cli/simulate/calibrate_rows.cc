// Rows, their simulation, the fit, and what is said of it.
#include "simulate/calibrate_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/table.h"
#include "screen/work_line.h"
#include "simulate/constants.h"
#include "simulate/fit.h"
#include "simulate/rows.h"

namespace shardrun::cli {
namespace {

constexpr size_t kLeastRows = 10, kFewConstants = 4, kRowsForOneMore = 3;
constexpr double kMuch = 0.3;  // of rows' errors
constexpr char kUnknown[] = "not identifiable from these rows";

size_t different(const std::vector<double>& counts) {
  return static_cast<size_t>(std::llround(std::accumulate(counts.begin(), counts.end(), 0.0)));
}

/// Of each row, as how many it counts: one of two copies as half of one.
std::vector<double> counts_of(const std::vector<MeasuredRow>& rows) {
  std::vector<double> out;
  for (const MeasuredRow& row : rows) {
    const auto copies = std::count_if(rows.begin(), rows.end(),
                                      [&](const MeasuredRow& r) { return r.is_copy_of(row); });
    out.push_back(1.0 / static_cast<double>(copies));
  }
  return out;
}

/// So many constants of ten rows, and one more for each three rows more. `rows`: without copies.
size_t most_constants(size_t rows) {
  return kFewConstants + (std::max(rows, kLeastRows) - kLeastRows) / kRowsForOneMore;
}

/// Of "products, memory" and the like.
std::vector<std::string> without_blanks(std::vector<std::string> names) {
  for (std::string& name : names) {
    name.erase(0, name.find_first_not_of(" \t"));
    name.erase(name.find_last_not_of(" \t") + 1);
  }
  return names;
}

/// Those that were asked for; none: the first of all.
std::vector<FitConstant> to_fit(std::vector<std::string> names, size_t rows) {
  const size_t most = most_constants(rows);
  if (names.empty()) {
    names = usual_constants();
    names.resize(std::min(names.size(), most));
  }
  std::vector<FitConstant> out;
  for (const std::string& name : names) {
    out.push_back(constant_to_fit(name));
    if (std::count(names.begin(), names.end(), name) > 1)
      throw Failure(Failure::Kind::call, "--fit: '" + name + "' is there twice");
  }
  if (out.size() > most) {
    throw Failure(Failure::Kind::call, "--fit: " + std::to_string(out.size()) +
                                           " constants, wanted at most " + std::to_string(most) +
                                           " of " + std::to_string(rows) + " different rows");
  }
  return out;
}

struct Predicted {
  std::vector<MeasuredRow> rows;
  std::vector<double> milliseconds;

  std::vector<double> errors() const {
    std::vector<double> out;
    for (size_t r = 0; r < rows.size(); ++r)
      out.push_back(std::abs(milliseconds[r] / rows[r].milliseconds - 1));
    return out;
  }
  double mean_error() const {
    double sum = 0;
    for (double error : errors()) sum += error;
    return sum / static_cast<double>(rows.size());
  }
  nlohmann::json json() const {
    nlohmann::json list = nlohmann::json::array();
    for (size_t r = 0; r < rows.size(); ++r) {
      list.push_back({{"line", rows[r].line},
                      {"measured_ms", rows[r].milliseconds},
                      {"predicted_ms", milliseconds[r]}});
    }
    return list;
  }
  void print(const std::string& path) const {
    std::printf("error on %zu rows of %s: mean %.1f %%, median %.1f %%\n", rows.size(),
                path.c_str(), 100 * mean_error(), 100 * quantile(errors(), 0.5));
  }
};

void print_constants(const std::vector<FittedConstant>& fitted) {
  std::printf("%-12s %10s   95 %% interval\n", "constant", "value");
  for (const FittedConstant& c : fitted) {
    if (c.identifiable) {
      std::printf("%-12s %10.4g   %.4g to %.4g\n", c.name.c_str(), c.value, c.low, c.high);
    } else {
      std::printf("%-12s %10.4g   %s\n", c.name.c_str(), c.value, kUnknown);
    }
  }
}

SimulateConstants constants_of(const std::vector<FitConstant>& fitted,
                               const std::vector<double>& values) {
  SimulateConstants out;
  for (size_t c = 0; c < fitted.size(); ++c) set_constant(out, fitted[c].name, values[c]);
  return out;
}

nlohmann::json constants_json(const RowCalibration& o, const std::vector<FittedConstant>& fitted,
                              const Predicted& rows) {
  nlohmann::json constants = nlohmann::json::object(), intervals = nlohmann::json::object(),
                 unknown = nlohmann::json::array();
  for (const FittedConstant& c : fitted) {
    constants[c.name] = c.value;
    if (c.identifiable) {
      intervals[c.name] = {c.low, c.high};
    } else {
      unknown.push_back(c.name);
    }
  }
  return {{"shardrun_constants", 1},  {"constants", constants},
          {"intervals", intervals},   {"not_identifiable", unknown},
          {"assume", o.assume},       {"cluster", o.cluster},
          {"rows", rows.rows.size()}, {"mean_error", rows.mean_error()}};
}

/// Where constants do not meet the rows; "": they do.
std::string missed_text(const Predicted& rows, const std::string& path) {
  const double error = quantile(rows.errors(), 0.5);
  if (error <= kMuch) return "";
  return "note: half of the rows of " + path + " are missed by more than " +
         std::to_string(std::llround(100 * error)) +
         " %: is iteration_ms in milliseconds, and are --cluster and --assume those of the "
         "measured runs?\n";
}

std::string left_out_text(const SimulatedRows& simulated) {
  std::string out;
  for (const std::string& sentence : simulated.left_out()) out += "left out: " + sentence + "\n";
  return out;
}

}  // namespace

int run_row_calibration(World& world, const RowCalibration& o) {
  const std::vector<std::string> asked = without_blanks(o.fit);
  for (const std::string& name : asked) (void)constant_to_fit(name);
  check_outputs(world, {{"-o", o.output}, {"--json", o.json}},
                {{"--rows", o.rows}, {"--judge", o.judge}});
  const std::vector<MeasuredRow> all = read_rows({"--rows", o.rows});
  const std::vector<MeasuredRow> others =
      o.judge.empty() ? std::vector<MeasuredRow>() : read_rows({"--judge", o.judge});
  if (all.size() < kLeastRows) {
    throw Failure(Failure::Kind::call, "--rows: '" + o.rows + "' has " +
                                           std::to_string(all.size()) + " rows, wanted " +
                                           std::to_string(kLeastRows) + " or more");
  }
  (void)to_fit(asked, different(counts_of(all)));  // before they are planned, which takes a while
  SimulatedRows simulated(world, {o.cluster, o.assume, o.dtype});
  WorkLine line("calibrating", !o.quiet);
  const auto planned = [&](const std::string& path, const std::vector<MeasuredRow>& rows) {
    if (!rows.empty()) line.part("plans of " + std::to_string(rows.size()) + " rows of " + path);
    return Predicted{
        simulated.plan(path, rows, [&](int row) { line.at("line " + std::to_string(row)); }), {}};
  };
  Predicted fitted_to = planned(o.rows, all), judged = planned(o.judge, others);
  line.above([&] { std::fprintf(stderr, "%s", left_out_text(simulated).c_str()); });
  if (fitted_to.rows.size() < kLeastRows) {
    throw Failure(Failure::Kind::call, "--rows: '" + o.rows + "': only " +
                                           std::to_string(fitted_to.rows.size()) +
                                           " rows can be simulated; " + (simulated.left_out()[0]));
  }
  const std::vector<double> counts = counts_of(fitted_to.rows);
  const std::vector<FitConstant> wanted = to_fit(asked, different(counts));
  std::vector<double> measured;
  int tried = 0;
  for (const MeasuredRow& row : fitted_to.rows) measured.push_back(row.milliseconds);
  line.part("constants");
  const std::vector<FittedConstant> fitted = fit(
      wanted, measured,
      [&](const std::vector<double>& values) {
        line.at(std::to_string(++tried) + " tried");
        return simulated.milliseconds(fitted_to.rows, constants_of(wanted, values));
      },
      counts);
  std::vector<double> values;
  for (const FittedConstant& c : fitted) values.push_back(c.value);
  const SimulateConstants constants = constants_of(wanted, values);
  fitted_to.milliseconds = simulated.milliseconds(fitted_to.rows, constants);
  line.end();
  if (!o.quiet) print_constants(fitted), fitted_to.print(o.rows);
  std::fprintf(stderr, "%s", missed_text(fitted_to, o.rows).c_str());
  nlohmann::json json = constants_json(o, fitted, fitted_to);
  if (!o.output.empty()) write_output(o.output, json.dump(1) + "\n");
  if (!judged.rows.empty()) {
    judged.milliseconds = simulated.milliseconds(judged.rows, constants);
    if (!o.quiet) judged.print(o.judge);
  }
  json["fitted"] = fitted_to.json(), json["judged"] = judged.json();
  if (!o.json.empty()) write_output(o.json, json.dump(1) + "\n");
  return 0;
}

void add_row_calibration(CLI::App& app, RowCalibration& o) {
  std::string names;
  for (const std::string& name : constant_names()) names += (names.empty() ? "" : ", ") + name;
  CLI::Option* rows = app.add_option(
      "--rows", o.rows,
      "Measure nothing: find constants by which 'simulate' meets the measured steps of this CSV "
      "(docs/simulation.md), at least 10; -o is then the file for simulate's --constants");
  app.add_option("--fit", o.fit,
                 "--rows: of " + names +
                     ", with commas: at most four of ten rows, and one more for each three rows "
                     "more (default: the first of these, without outside and backward)")
      ->delimiter(',')
      ->needs(rows);
  app.add_option("--judge", o.judge, "--rows: another CSV, whose times are predicted")->needs(rows);
  rows->needs(app.add_option("--cluster", o.cluster,
                             "--rows: one node of where they were measured (plan's --cluster)")
                  ->needs(rows));
  app.add_option("--assume", o.assume, "--rows: simulate's --assume")
      ->check(CLI::IsMember({"megatron"}))
      ->needs(rows);
  app.add_option("--dtype", o.dtype, "--rows: f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str()
      ->needs(rows);
  app.add_option("--json", o.json, "--rows: write all figures to this file")->needs(rows);
}

}  // namespace shardrun::cli
