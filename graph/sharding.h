// Sharding: how one value lies on a mesh.
#pragma once

#include <string>
#include <vector>

#include "graph/axes.h"
#include "graph/mesh.h"

namespace shardrun {

enum class ReduceOp { sum, max, min, prod };
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min,
                                          ReduceOp::prod};
std::string_view to_string(ReduceOp op);

/// For each dim the ordered mesh axes that cut it, outermost first: axis by axis, each cuts what
/// the one before left into shards (shape.h: shard_range). Plus the axes over which the value is
/// partial: the true value is the reduction of the ranks' values over them. All other axes
/// replicate. An axis appears once at most.
struct Sharding {
  struct Partial {
    int axis = 0;
    ReduceOp op = ReduceOp::sum;
    friend auto operator<=>(const Partial&, const Partial&) = default;
  };
  std::vector<Axes> dims;
  std::vector<Partial> partial;  // sorted by axis

  static Sharding replicated(size_t rank) { return {std::vector<Axes>(rank), {}}; }
  bool is_replicated() const;
  /// [-] nothing is cut (it may be partial).
  bool is_uncut() const;
  friend auto operator<=>(const Sharding&, const Sharding&) = default;
};

/// What the rank with these mesh coordinates holds of a tensor of `shape`.
Box local_box(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
              const std::vector<int64_t>& coordinates);
/// The largest local element count over all ranks (that of coordinates 0).
int64_t max_local_count(const Shape& shape, const Sharding& sharding, const Mesh& mesh);
int64_t max_local_bytes(const TensorType& type, const Sharding& sharding, const Mesh& mesh);

/// "[batch{data}, -, hidden{model}]" needs dim names, so: "[{data}, -, {model}] partial(sum: seq)".
std::string to_string(const Sharding& sharding, const Mesh& mesh);
/// Inverse of to_string. Takes "[data+model,-]" and "[batch{data,model}, -]" as well, and the name
/// of an axis for all of its sub-axes (Mesh::named). Throws invalid_input naming the unknown axis.
Sharding parse_sharding(std::string_view text, const Mesh& mesh);
/// Throws invalid_input: unknown axes, an axis used twice, wrong number of dims.
void check_sharding(const Sharding& sharding, const Mesh& mesh, size_t rank);

}  // namespace shardrun
