// The constants of a simulation by name, and their file.
#pragma once

#include <string>
#include <vector>

#include "shardrun/simulate.h"
#include "simulate/fit.h"

namespace shardrun::cli {

/// In the order in which they are fitted where rows are few: dispatch_us, products, memory, within,
/// between, mixed; and behind them outside and backward, which are fitted where they are asked for.
std::vector<std::string> constant_names();
/// Those that are fitted where none is named.
std::vector<std::string> usual_constants();
/// Throws Failure(call): no such name.
void set_constant(SimulateConstants& constants, const std::string& name, double value);
/// What is thought of it before there are rows. Throws Failure(call): no such name.
FitConstant constant_to_fit(const std::string& name);

/// A file of calibrate --rows: {"shardrun_constants": 1, "constants": {"dispatch_us": 35}, ...}.
struct ConstantsFile {
  SimulateConstants constants;
  std::string assume;   // of the simulations that they were fitted by
  std::string cluster;  // of the rows; "": not said
};
/// Throws Failure(call) that names the file and the field, also for a field that is not known.
ConstantsFile read_constants(const std::string& path);

}  // namespace shardrun::cli
