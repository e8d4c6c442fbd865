// Metrics: one JSON object a line, for programs that follow a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files/descriptor.h"

namespace shardrun {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;
  double lr = 0;
  std::optional<double> grad_norm;
  double step_ms = 0;
  std::optional<double> tokens_per_s;  // models of tokens; the others have samples_per_s
  std::optional<double> samples_per_s;
  double comm_ms = 0;      // of step_ms, in collectives, on this rank
  int64_t peak_bytes = 0;  // arena bytes of this rank
  bool skipped = false;    // nothing was updated
};

/// One validation. `accuracy` where the model has classes; the rest in a run's last line only,
/// where the data have a test part: what the test was when validation was best.
struct EvalMetrics {
  int64_t step = 0;
  double val_loss = 0;
  std::optional<double> val_accuracy = {};
  std::optional<int64_t> best_step = {};
  std::optional<double> test_loss = {}, test_accuracy = {};
};

/// {"step":10,"loss":2.5,"lr":0.001,"grad_norm":1.2,"step_ms":8.1,"tokens_per_s":9e4,"comm_ms":0.4,"peak_bytes":1048576}
/// and {"step":10,"val_loss":2.6,"val_accuracy":0.4}. A number that is not finite is null, as JSON
/// has none.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const EvalMetrics& metrics);

/// How far a file of metrics has been written, and the checksum of what is in it up to there.
struct MetricsPosition {
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};
/// From where a run goes on that was at `position` of its file: there, or 0 where there is no file
/// now (or none that keeps what is written to it, as a pipe). Throws invalid_input where another
/// file is at `path`.
MetricsPosition metrics_to_go_on(const std::string& path, const MetricsPosition& position);

class MetricsWriter {
 public:
  /// What the file holds behind `from`, all of it by default, is lost. Throws invalid_input if it
  /// cannot be opened, as a pipe that nobody reads.
  explicit MetricsWriter(const std::string& path, const MetricsPosition& from = {});
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// A line each, in the file when the call returns. What cannot be written, on a full disk say, is
  /// left out: the file holds whole lines whatever happens. The first time that happens a sentence
  /// says so; else "". Who reads a pipe has a second for each line until it was late once.
  std::string step(const StepMetrics& metrics);
  std::string eval(const EvalMetrics& metrics);

  int64_t lost() const { return lost_; }  // lines
  MetricsPosition position() const { return at_; }
  /// All of it is on the disk when the call returns. For any thread.
  void sync() const;

 private:
  std::string write(const std::string& line);
  std::string path_;
  Descriptor file_;
  MetricsPosition at_;
  int64_t lost_ = 0;
};

}  // namespace shardrun
