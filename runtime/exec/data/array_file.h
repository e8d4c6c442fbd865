// Arrays written in pieces, in any order: numpy's .npy, and .npz, a zip of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/files/output_file.h"
#include "base/shape.h"

namespace shardrun {

/// Every array's place in the file follows from their types, so that each element is written where
/// it stays. Entries are stored, not deflated, with zip64's fields, as numpy's savez writes them.
class ArrayFile {
 public:
  struct Array {
    std::string name;  // without ".npy"
    TensorType type;   // not bf16, which numpy does not have
  };

  /// `path` ends in .npz, or in .npy for one array. What was there stays until finish(). Throws
  /// invalid_input: another ending, several arrays for an .npy, a place that cannot be written
  /// piece by piece.
  ArrayFile(const std::string& path, std::vector<Array> arrays);
  ~ArrayFile();
  ArrayFile(const ArrayFile&) = delete;
  ArrayFile& operator=(const ArrayFile&) = delete;

  const std::vector<Array>& arrays() const { return arrays_; }
  /// Elements of `box` of array `i`, dense. Throws device, with the path and the reason.
  void write(size_t i, const Box& box, const void* elements);
  /// Sums up what was written, and puts the file in its place. Throws device.
  void finish();

 private:
  struct Entry {
    int64_t header = 0, data = 0, end = 0;  // bytes of the file: the zip's header, npy's, its end
    uint32_t crc = 0;
    std::string preamble;  // npy's header
  };
  void put(int64_t at, const void* bytes, int64_t count);
  uint32_t sum(int64_t begin, int64_t end) const;
  void write_directory();

  std::string path_;
  bool zipped_;
  std::vector<Array> arrays_;
  std::vector<Entry> entries_;
  OutputFile output_;
  int fd_ = -1;
};

/// Calls f(part, first element) for parts of `box` that lie in one piece in a dense tensor of it,
/// in that order, of up to `most` elements, and at least one.
void for_pieces(const Box& box, int64_t most,
                const std::function<void(const Box& part, int64_t first)>& f);

}  // namespace shardrun
