// Arrays in files: numpy's, MNIST's and CIFAR's formats, and their elements as a field wants them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exec/data/data.h"

namespace shardrun {

/// An array of a file, dim 0 counting samples.
struct StoredArray {
  std::string name;    // "data.npz: array 'x'", for messages
  std::string format;  // numpy's: "<f4"
  Shape shape;
  const unsigned char* data = nullptr;
  int64_t stride = 0;                 // bytes from sample to sample; 0: they lie side by side
  std::shared_ptr<const void> owner;  // keeps `data` alive

  int64_t element_bytes() const;
  int64_t sample_elements() const;  // of one index of dim 0
  const unsigned char* sample(int64_t i) const;
};

/// Is it a format of floating numbers? Throws unsupported for one that cannot be read.
bool is_float_format(const StoredArray& array);

/// Parses numpy's .npy, versions 1 to 3. `name` is for messages. Throws invalid_input or
/// unsupported.
StoredArray parse_npy(const unsigned char* data, int64_t size, std::shared_ptr<const void> owner,
                      const std::string& name);
/// A zip file of arrays as numpy writes it: stored or deflated, zip64 where large. Names are
/// without ".npy". Throws invalid_input or unsupported; what an array holds that nobody asks for
/// does not matter.
class NpzArchive {
 public:
  explicit NpzArchive(const std::string& path);
  const std::vector<std::string>& names() const { return names_; }  // in the file's order
  bool has(const std::string& name) const;
  /// Null if it has none. Deflated arrays are inflated into memory when first asked for. Stays as
  /// long as the archive; what owns its bytes may stay longer.
  const StoredArray* find(const std::string& name) const;

 private:
  std::vector<std::string> names_;
  std::function<StoredArray(size_t)> open_;  // the array of names_[i]
  mutable std::map<std::string, StoredArray> opened_;
};

/// MNIST's format (http://yann.lecun.com/exdb/mnist): any element type and rank, gzipped or not;
/// gzipped files, and elements of several bytes, are unpacked into memory. Throws invalid_input.
StoredArray open_idx(const std::string& path);

/// Images [n, 3, 32, 32] and labels [n] of one of CIFAR's binary files
/// (https://www.cs.toronto.edu/~kriz/cifar.html). `labels`: bytes before each image, 1 or 2; the
/// last of them is the label. Throws invalid_input.
struct CifarFile {
  StoredArray images, labels;
};
CifarFile open_cifar(const std::string& path, int labels);

/// Converts `count` elements from `from` on to the field's dtype, checking integers against the
/// field's bound. `first` is the index of the first for messages.
void load_elements(const StoredArray& array, const unsigned char* from, int64_t first,
                   int64_t count, const BatchField& field, void* out);

/// `count` elements as f32.
void load_floats(const StoredArray& array, const unsigned char* from, int64_t count, float* out);

/// Arrays laid end to end along dim 0: a data set in several files.
class Samples {
 public:
  Samples() = default;
  explicit Samples(StoredArray array) { append(std::move(array)); }
  /// Throws invalid_input if the samples are of another shape or format.
  void append(StoredArray array);

  bool empty() const { return parts_.empty(); }
  int64_t count() const { return count_; }
  Shape shape() const;  // dim 0: count()
  const StoredArray& first() const { return parts_.front(); }
  /// The array that holds sample i, and i within it.
  std::pair<const StoredArray*, int64_t> find(int64_t i) const;

 private:
  std::vector<StoredArray> parts_;
  int64_t count_ = 0;
};

}  // namespace shardrun
