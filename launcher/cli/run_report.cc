// Gathering the fields, and the file.
#include "run_report.h"

#include <utility>

#include "process/signals.h"

namespace shardrun::cli {

RunReport::RunReport(std::string path) : path_(std::move(path)) {
  json_ = {{"step_ms", nlohmann::json::array()},
           {"comm_ms", nlohmann::json::array()},
           {"losses", nlohmann::json::array()}};
}

void RunReport::add(const TrainingPlan& plan, const PlanFigures& figures, double seconds) {
  const std::lock_guard lock(mutex_);
  json_["mesh"] = figures.mesh;
  json_["planner"] = figures.planner;
  json_["flops"] = figures.flops;
  json_["sent_bytes"] = figures.sent_bytes;
  json_["threads"] = figures.threads;
  json_["planning_seconds"] = seconds;
  json_["predicted_ms"] = plan.predicted_seconds() * 1e3;
  json_["predicted_bytes"] = plan.predicted_bytes();
  json_["ranks"] = plan.predicted_bytes().size();
}

void RunReport::add(const StepReport& step) {
  const std::lock_guard lock(mutex_);
  json_["step_ms"].push_back(step.step_ms);
  json_["comm_ms"].push_back(step.comm_ms);
  json_["losses"].push_back(step.loss);
}

void RunReport::add(const CheckpointReport& checkpoint) {
  const std::lock_guard lock(mutex_);
  nlohmann::json one = {{"step", checkpoint.step},
                        {"path", checkpoint.path},
                        {"bytes", checkpoint.bytes},
                        {"seconds", checkpoint.seconds},
                        {"stalled_seconds", checkpoint.stalled_seconds}};
  if (!checkpoint.failure.empty()) one["failure"] = checkpoint.failure;
  json_["checkpoints"].push_back(std::move(one));
}

void RunReport::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  json_["notes"].push_back(text);
}

void RunReport::finish(const TrainReport& report) {
  const std::lock_guard lock(mutex_);
  json_["first_step"] = report.first_step;
  json_["allocated_bytes"] = report.allocated_bytes;
  json_["process_bytes"] = report.process_bytes;
  json_["seconds"] = report.seconds;
  if (report.skipped > 0) json_["skipped"] = report.skipped;
  if (report.bigram_entropy) {
    json_["unigram_entropy"] = *report.unigram_entropy;
    json_["bigram_entropy"] = *report.bigram_entropy;
  }
  if (const auto& stopped = report.stopped) {
    json_["stopped"] = {{"step", stopped->step}, {"signal", nullptr}};
    if (stopped->signal != 0) json_["stopped"]["signal"] = signal_name(stopped->signal);
  }
  write();
}

void RunReport::fail(const std::exception& error, const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  json_["failure"] = sentence;
  const auto* failure = dynamic_cast<const Failure*>(&error);
  const Failure::Kind kind = failure ? failure->kind() : Failure::Kind::run;
  json_["failure_kind"] = kind == Failure::Kind::call     ? "call"
                          : kind == Failure::Kind::memory ? kOutOfMemory
                                                          : "run";
  write();
}

void RunReport::end(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  json_["failure"] = sentence;
  json_["failure_kind"] = "signal";
  write();
}

void RunReport::write() {
  if (path_.empty()) return;
  const std::string path = std::exchange(path_, "");  // once, also where it fails
  write_output(path, json_.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace shardrun::cli
