// FlightRecorder: what a rank did last, in a file that outlives the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/program.h"

namespace shardrun {

/// A text file of kLines lines that is mapped: what was written is there however the process ends,
/// by SIGKILL too. Each step of a Program writes its line when it begins, over that of the step
/// kLines before; `sort` puts the lines of a killed rank in order, finish() those of one that
/// failed. Example:
///
///   0000004711 1764201600.123456 step 12 train: all_reduce of 'h.0/out', 65536 bytes, ranks 0 1
///
/// the number of the line, seconds since 1970, the step of training, the part of it, and what
/// began.
///
///   FlightRecorder recorder("flight", 3, "rank 3 of 8 on node7");   // flight/rank-3
///   FlightRecorder::Lines lines = recorder.lines(program, "train");
///   recorder.begin(12);
///   recorder.runs(lines, first, count);   // before steps [first, first + count) of the Program
class FlightRecorder {
 public:
  static constexpr int64_t kLines = 64, kLineBytes = 192;  // with its end

  /// Makes the folder where it is missing. Throws invalid_input if it cannot be written to.
  static void check(const std::string& folder);

  /// Makes the folder where it is missing, and replaces the file of a run before. Throws
  /// invalid_input with the path and the reason.
  FlightRecorder(const std::string& folder, int64_t rank, const std::string& who);
  /// Puts the lines in order, and `last` behind them if the file stays.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// What is written of each step of a Program.
  using Lines = std::vector<std::string>;
  static Lines lines(const Program& program, const std::string& part);

  void begin(int64_t step) { step_ = step; }
  void runs(const Lines& lines, size_t first, size_t count);
  /// The run is well: the file goes with this.
  void discard() { discarded_ = true; }
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& what);

  std::string path_;
  char* mapped_ = nullptr;
  int64_t step_ = 0, written_ = 0;
  bool discarded_ = false;
};

}  // namespace shardrun
