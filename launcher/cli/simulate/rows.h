// Measured training steps of GPTs: a CSV's rows, and their simulation.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"
#include "shardrun/simulate.h"

namespace shardrun::cli {

/// One measured run: dp x tp ranks for each of pp stages, micro_batches of micro_batch samples on
/// each of the dp ranks.
struct MeasuredRow {
  int line = 0;  // of the file
  int64_t gpus = 1, micro_batch = 1, hidden = 0, heads = 0, layers = 0, sequence = 0;
  int64_t tp = 1, dp = 1, pp = 1, micro_batches = 1, vocabulary = 50304;
  double milliseconds = 0;  // iteration_ms

  bool is_copy_of(const MeasuredRow& other) const;  // all is equal but the line
};

/// A header, and columns in any order: those of MeasuredRow by its names; vocabulary may be left
/// out, others are not looked at, nor are blank lines. Throws Failure(call) that names file, line
/// and field, and read_input's.
std::vector<MeasuredRow> read_rows(const NamedFile& file);

struct RowSettings {
  std::string cluster;  // as one node; its number of nodes follows from a row's GPUs
  std::string assume, dtype;
};

/// Rows, simulated together: those of equal model, mesh and micro-batch share a plan, which is made
/// once.
class SimulatedRows {
 public:
  /// Throws Failure(call): there is no such cluster.
  SimulatedRows(World& world, RowSettings settings);
  /// Plans them, and keeps those that can be, in order; `left_out` has a sentence for each of the
  /// others. `path` is for people; `begins` hears each row's line before it is planned.
  std::vector<MeasuredRow> plan(const std::string& path, const std::vector<MeasuredRow>& rows,
                                const std::function<void(int line)>& begins);
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// Milliseconds of rows that plan() kept. Simulates several at a time.
  std::vector<double> milliseconds(const std::vector<MeasuredRow>& rows,
                                   const SimulateConstants& constants);

 private:
  std::string cluster_of(int64_t gpus);
  std::string plan_key(const MeasuredRow& row);
  std::string key(const MeasuredRow& row);
  const ModelAndPlan& planned(const MeasuredRow& row);

  World& world_;
  RowSettings settings_;
  std::map<int64_t, std::string> clusters_;  // by GPUs
  std::vector<std::string> left_out_;
  std::map<std::string, ModelAndPlan> plans_;
  std::map<std::string, Resimulation> simulations_;  // of a plan and stages
};

}  // namespace shardrun::cli
