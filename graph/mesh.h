// Mesh: named axes over the ranks, row-major.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"

namespace shardrun {

/// data=2,model=4: rank r has coordinates (r / 4, r % 4).
class Mesh {
 public:
  struct Axis {
    std::string name;
    int64_t size = 1;
    friend bool operator==(const Axis&, const Axis&) = default;
  };

  Mesh() = default;  // no axes: one rank
  explicit Mesh(
      std::vector<Axis> axes);  // throws invalid_input: duplicate or empty names, sizes < 1
  /// "data=2,model=4", or sizes alone, "2x4", whose axes are named a, b, c…. Throws invalid_input.
  static Mesh parse(std::string_view text);

  const std::vector<Axis>& axes() const { return axes_; }
  int axis_count() const { return static_cast<int>(axes_.size()); }
  int64_t size() const;  // product of axis sizes
  int64_t axis_size(int axis) const { return axes_[static_cast<size_t>(axis)].size; }
  std::vector<int64_t> coordinates(int64_t rank) const;
  int64_t rank_at(const std::vector<int64_t>& coordinates) const;
  /// Ranks that differ from `rank` only along `axes` (in row-major order of those axes as listed).
  std::vector<int64_t> group(int64_t rank, const std::vector<int>& axes) const;
  std::string to_string() const;  // "data=2,model=4"; "1" without axes
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

}  // namespace shardrun
