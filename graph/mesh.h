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
  /// Throws invalid_input: duplicate or empty names, sizes < 1, more than Axes::kMost axes.
  explicit Mesh(std::vector<Axis> axes);
  /// "data=2,model=4", or sizes alone, "2x4", whose axes are named a, b, c…. "model=4*2" makes the
  /// sub-axes model.0 of 4 and model.1 of 2. One size may be "?": with it there are `ranks` ranks.
  /// Throws invalid_input: what is no mesh, several unknown sizes, one that no size makes up for or
  /// that `ranks` (0) do not tell.
  static Mesh parse(std::string_view text, int64_t ranks = 0);
  /// Does the number of ranks have to say how large the mesh is?
  static bool has_unknown_size(std::string_view text);

  const std::vector<Axis>& axes() const { return axes_; }
  int axis_count() const { return static_cast<int>(axes_.size()); }
  int64_t size() const;  // product of axis sizes
  int64_t axis_size(int axis) const { return axes_[static_cast<size_t>(axis)].size; }
  /// The axis of this name, or of "model" the sub-axes model.0, model.1 …, in order; empty: none.
  std::vector<int> named(std::string_view name) const;
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
