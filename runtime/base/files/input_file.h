// Input files: texts that users name, such as plans, clusters and problems; and files of weights.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun {

/// A regular file, open for reading: what becomes of its path later does not matter. May be read by
/// several threads at once. A process has a thousand descriptors or so, and a model may have as
/// many files of weights: while 64 are open, another is opened by its path for each use instead.
class InputFile {
 public:
  /// `what` it ought to be: "a plan". Throws invalid_input with the path in front; waits for no
  /// pipe.
  explicit InputFile(std::string path, const char* what = "a file");
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened

  /// Throws invalid_input unless the file has all of these bytes.
  void read(int64_t offset, int64_t bytes, void* to) const;

  /// The file's descriptor for a while.
  class Use {
   public:
    explicit Use(const InputFile& file);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    int descriptor() const { return descriptor_; }

   private:
    int descriptor_;
    bool own_;
  };

 private:
  std::string path_;
  int descriptor_ = -1;  // -1: opened for each use
  int64_t size_ = 0;
};

/// The whole of a regular file of at most `most` bytes; `what` it ought to be: "a plan". Throws
/// invalid_input, with the path in front, for any other file: a device or a pipe may have no end.
std::string read_input_file(const std::string& path, const char* what, int64_t most);

/// Throws as the above does for what is not a regular file.
void require_regular_file(const std::string& path, const char* what);

}  // namespace shardrun
