// BoardWriter: the scalars of a run as TensorBoard reads them.
//
// A file of records as TFRecord has them (length, its checksum, an Event, its checksum; each
// checksum a CRC-32C, masked). TensorBoard reads all such files of a folder in the order of their
// names, so a run that goes on writes a file of its own behind the others.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/files/descriptor.h"
#include "exec/metrics.h"

namespace shardrun {

/// crc32c, rotated and shifted so that checksums of data that hold checksums stay good ones.
uint32_t masked_crc32c(const std::string& bytes);

class BoardWriter {
 public:
  /// Makes the folder and a file in it whose name is behind those that are there. `after`: the last
  /// step of the run that this one goes on from; what files before say of later steps is then left
  /// out by readers. 0: a run from the beginning. Throws invalid_input if it cannot be written.
  BoardWriter(const std::string& folder, int64_t after);

  /// In the file when the call returns. What cannot be written is left out; the first time a
  /// sentence says so, else "".
  std::string step(const StepMetrics& metrics);
  std::string eval(const EvalMetrics& metrics);

  const std::string& path() const { return path_; }

 private:
  using Scalars = std::vector<std::pair<const char*, double>>;  // by tag
  std::string write(int64_t step, const Scalars& scalars);
  std::string append(const std::string& event);

  std::string path_;
  Descriptor file_;
  int64_t bytes_ = 0;  // of whole records
  bool lost_ = false;
};

}  // namespace shardrun
