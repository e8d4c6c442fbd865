// Metrics: one JSON object a line.
#include "exec/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shardrun {

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;
  line["lr"] = metrics.lr;
  if (metrics.grad_norm) line["grad_norm"] = *metrics.grad_norm;
  line["step_ms"] = metrics.step_ms;
  if (metrics.tokens_per_s) line["tokens_per_s"] = *metrics.tokens_per_s;
  if (metrics.samples_per_s) line["samples_per_s"] = *metrics.samples_per_s;
  line["comm_ms"] = metrics.comm_ms;
  line["peak_bytes"] = metrics.peak_bytes;
  return line.dump();
}

std::string to_json(const EvalMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["val_loss"] = metrics.val_loss;
  if (metrics.val_accuracy) line["val_accuracy"] = *metrics.val_accuracy;
  if (metrics.best_step) line["best_step"] = *metrics.best_step;
  if (metrics.test_loss) line["test_loss"] = *metrics.test_loss;
  if (metrics.test_accuracy) line["test_accuracy"] = *metrics.test_accuracy;
  return line.dump();
}

MetricsWriter::MetricsWriter(const std::string& path)
    : path_(path), file_(std::fopen(path.c_str(), "w")) {
  SR_REQUIRE(file_ != nullptr, invalid_input, "metrics file ", path,
             ": cannot open: ", std::strerror(errno));
}

MetricsWriter::~MetricsWriter() { std::fclose(file_); }

void MetricsWriter::step(const StepMetrics& metrics) { write(to_json(metrics)); }

void MetricsWriter::eval(const EvalMetrics& metrics) { write(to_json(metrics)); }

void MetricsWriter::write(const std::string& line) {
  errno = 0;
  const bool written =
      std::fwrite((line + "\n").data(), 1, line.size() + 1, file_) == line.size() + 1 &&
      std::fflush(file_) == 0;
  SR_REQUIRE(written, device, "metrics file ", path_, ": cannot write: ", std::strerror(errno));
}

}  // namespace shardrun
