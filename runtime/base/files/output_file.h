// OutputFile: a file that takes the place of another when it is whole.
#pragma once

#include <ostream>
#include <string>

#include "base/files/descriptor.h"

namespace shardrun {

/// What is written goes to a temporary file, which takes its place in finish(): a full disk, or an
/// end before that, leaves what was there. What is no regular file (/dev/stdout, a pipe), and a
/// file in a folder that takes no other, is written as it stands. A pipe has to have a reader when
/// it is written. Temporary files of writers that were killed are removed by the next of that name.
class OutputFile {
 public:
  /// Throws Error(invalid_input) with the path and the reason if it cannot be written. Changes
  /// nothing yet.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream();  // bad where nothing can be written any more; finish() then says why
  /// Where what is written goes meanwhile; "": it is written as it stands.
  const std::string& temporary() const { return temporary_; }
  /// Throws Error(device) if anything could not be written.
  void finish();

 private:
  std::string path_, target_;  // target_: where links lead to
  std::string temporary_;      // "": written as it stands
  Descriptor file_;
  DescriptorBuffer buffer_{file_};
  std::ostream stream_{&buffer_};
};

/// Throws what writing the file would throw at once. Changes nothing.
void check_output(const std::string& path);
/// Throws Error(invalid_input) with the path and the reason if there cannot be a folder that takes
/// files. Makes what is missing of it, and removes that again.
void check_output_folder(const std::string& path);

}  // namespace shardrun
