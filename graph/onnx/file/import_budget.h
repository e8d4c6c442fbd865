// ImportBudget: what the import of one file may take of memory and time, whatever the file says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shardrun::importer {

inline constexpr size_t kHighestRank = 64;  // of a tensor, as in PyTorch and numpy

/// 64 MB and four times the file, for the parsed file, the graph and the constants in it; and so
/// many operations of reference kernels on constants as take some seconds. Everything that a file
/// of a few bytes can make large asks here first.
class ImportBudget {
 public:
  explicit ImportBudget(int64_t file_bytes);

  int64_t left() const { return left_; }
  /// Are so many bytes left?
  bool holds(int64_t bytes) const { return bytes <= left_; }
  /// Takes them until they are given back. Throws unsupported where they are not there: "`what`
  /// would take 17179869184 bytes; …".
  void take(int64_t bytes, const char* what);
  /// Throws as take() does, but takes nothing: for what is gone again soon.
  void check(int64_t bytes, const char* what) const;
  void give_back(int64_t bytes) { left_ += bytes; }

  /// Takes so many operations, unless that is more than are left.
  bool spend(double operations);

 private:
  int64_t file_bytes_, limit_, left_;
  double operations_;
};

}  // namespace shardrun::importer
