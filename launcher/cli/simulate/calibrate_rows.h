// shardrun calibrate --rows: constants of simulations by measured steps.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

struct RowCalibration {
  std::string rows, judge;       // CSVs
  std::vector<std::string> fit;  // constants; none: as many as the rows allow
  std::string cluster, assume, dtype = "bf16";
  std::string output, json;
  bool quiet = false;  // prints nothing on standard output
};

/// The options of the command but for -o, each of which needs --rows.
void add_row_calibration(CLI::App& app, RowCalibration& o);

/// Prints the constants and the errors; writes what is asked for. Returns the exit status. Throws
/// Failure.
int run_row_calibration(World& world, const RowCalibration& o);

}  // namespace shardrun::cli
