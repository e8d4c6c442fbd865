// What the data sources share: files, a shuffled order without memory, walking a box.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "base/shape.h"
#include "base/short_array.h"

namespace shardrun {

/// A file that is read piece by piece. One that shrinks under a running job is an error of that
/// job, where a mapped one would kill it. Thread-safe.
class DataFile {
 public:
  explicit DataFile(const std::string& path);  // throws invalid_input
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  /// Throws Error(device) if the bytes are no longer there.
  void read(int64_t begin, int64_t bytes, void* out) const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t size_ = 0;
};

/// A whole file, read-only, in memory as far as it is touched.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws invalid_input
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// A bijection of [0, size) that needs no memory: a Feistel network over the next even power of
/// two, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains",
/// 2002).
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t stream, uint64_t epoch);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_;
  int half_bits_ = 1;
  RandomStream keys_;
};

/// Which streams of the seed the sources draw from: by `use`, and `more` behind it.
inline uint64_t data_stream(std::string_view use, std::string_view more = {}) {
  return hash_name(more.data(), more.size(), hash_name(use.data(), use.size()));
}

/// Elements of a box.
inline int64_t count_in(std::span<const Range> box) {
  int64_t count = 1;
  for (const Range& range : box) count *= range.size;
  return count;
}

/// Calls f(linear index in the field, position in the output) for each element of the box.
template <class F>
void for_box(const Shape& shape, std::span<const Range> box, F&& f) {
  if (count_in(box) <= 0) return;
  ShortArray<int64_t> strides(shape.size()), at(shape.size());
  int64_t index = 0, stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    strides[d] = stride;
    index += box[d].begin * stride;
  }
  for (int64_t i = 0;; ++i) {
    f(index, i);
    size_t d = shape.size();
    for (;;) {
      if (d == 0) return;
      --d;
      index += strides[d];
      if (++at[d] < box[d].size) break;
      index -= at[d] * strides[d];
      at[d] = 0;
    }
  }
}

/// "a,,b" at ',': "a", "" and "b"; of an empty text one part.
std::vector<std::string> split_text(const std::string& text, char separator);

/// "; a batch of 64 has each of the 4 several times, …" where so few samples are trained on; else
/// "".
std::string few_samples(int64_t samples, int64_t batch);

/// Writes an integer as element i of an array of `dtype`.
void store_integer(void* out, DType dtype, int64_t i, int64_t value);

}  // namespace shardrun
