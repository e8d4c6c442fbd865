// --report: what a training run was, as one JSON object.
#pragma once

#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "shardrun/bench.h"

namespace shardrun::cli {

/// A failure_kind.
inline constexpr char kOutOfMemory[] = "memory";

/// Fields: mesh, planner, planning_seconds (wall clock, discovery too),
/// predicted_ms, flops (of a step, all ranks); ranks, threads (of each); predicted_bytes,
/// allocated_bytes, sent_bytes (by rank); step_ms, comm_ms, losses (by step, from first_step on);
/// checkpoints: step, path, bytes, seconds, stalled_seconds, and failure where there was one. Of a
/// run that was asked to stop "stopped": the last step, and the signal or null. "notes": what was
/// noted meanwhile, if anything was. Of a run that failed, what was known by then, "failure": the
/// sentence, and "failure_kind": call, memory, run, or signal where one ended the process at once.
class RunReport {
 public:
  /// "": none is wanted.
  explicit RunReport(std::string path);

  /// `seconds`: of planning.
  void add(const TrainingPlan& plan, const PlanFigures& figures, double seconds);
  void add(const StepReport& step);
  void add(const CheckpointReport& checkpoint);
  void note(const std::string& text);
  void finish(const TrainReport& report);
  /// `sentence`: as it was said, with the rank that says it.
  void fail(const std::exception& error, const std::string& sentence);
  /// A signal ends the process: with what is known by now, from another thread than the others.
  void end(const std::string& sentence);

 private:
  void write();
  std::string path_;
  std::mutex mutex_;
  nlohmann::json json_;
};

}  // namespace shardrun::cli
