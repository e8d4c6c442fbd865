// FlightRecorder: what a rank did last, in files that outlive the rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/program.h"

namespace shardrun {

/// Two text files of kLines lines each, FOLDER/rank-3.steps and FOLDER/rank-3.collectives: the last
/// steps of the rank's Programs, and the last of those that are collectives. They are mapped: what
/// was written is there however the process ends, by SIGKILL too. Each step writes its line when it
/// begins, over the one kLines before. `sort` puts the lines of a killed rank in order; those of
/// one that fails are. A line of the collectives:
///
///   0000004711 1764201600.123456 step 000000012 train: all_reduce of 'h.0/out', 65536 bytes, ranks
///   0 1
///
/// the number of the collective, seconds since 1970, the step of training, the part of it, and what
/// began.
///
///   FlightRecorder recorder("flight", 3, "rank 3 of 8");
///   FlightRecorder::Lines lines = recorder.lines(program, "train");
///   recorder.begin(12);
///   recorder.runs(lines, first, count);   // before steps [first, first + count) of the Program
class FlightRecorder {
 public:
  static constexpr int64_t kLines = 64, kLineBytes = 192;  // with its end

  /// Makes the folder where it is missing, and replaces the files of a run before; their first line
  /// is `who`. Throws invalid_input with the path and the reason, and leaves no file then.
  FlightRecorder(const std::string& folder, int64_t rank, const std::string& who);

  struct Line {
    std::string text;
    bool collective = false;
  };
  /// What is written of each step of a Program.
  using Lines = std::vector<Line>;
  static Lines lines(const Program& program, const std::string& part);

  void begin(int64_t step) { step_ = step; }
  void runs(const Lines& lines, size_t first, size_t count);
  /// The run is well: the files go with this.
  void discard();

 private:
  /// Lines of one length in a file, of which the oldest is replaced.
  class Ring {
   public:
    Ring(std::string path, const std::string& head);
    /// Puts the lines in order, or removes the file unless it is kept.
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;
    void write(int64_t step, const std::string& text);
    void keep(bool kept) { kept_ = kept; }

   private:
    std::string path_;
    char* mapped_ = nullptr;
    int64_t written_ = 0;
    bool kept_ = false;
  };
  Ring steps_, collectives_;
  int64_t step_ = 0;
};

}  // namespace shardrun
