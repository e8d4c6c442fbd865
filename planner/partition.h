// Partition: Graph and Plan into every rank's Program; then memory.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cluster.h"

namespace shardrun {

/// Extents of dims that are cut, with the axes that cut them, outermost first.
using Cuts = std::set<std::pair<int64_t, std::vector<int>>>;

/// Where collectives stand: just before the first reader of their result (a partial sum that
/// shrinks: just behind what made it), or together (planner/collective_order.h). The former is for
/// devices that compute while they run.
enum class Collectives { apart, together };

/// A Graph cut as a Plan says. Local nodes with local shapes and localised attributes, and the
/// collectives between shardings. A value resharded to one Sharding for several users is resharded
/// once. What is the same on all ranks is found once; buffers are not placed yet.
class Partition {
 public:
  /// `graph` and `plan` must live as long as this.
  Partition(const Graph& graph, const Plan& plan, const Cluster& cluster,
            Collectives collectives = Collectives::together);
  ~Partition();
  Program program(int64_t rank) const;
  const Cuts& cuts() const;  // all there are, the same on every rank

  struct Skeleton;

 private:
  std::unique_ptr<const Skeleton> skeleton_;
};

/// What the backend needs for a step.
using NeedsOf = std::function<StepBytes(const Program&, const Step&)>;

/// Gives every buffer and workspace its offset. Persistent buffers come first, in order of their
/// names' appearance, then what setup makes, then what kernels keep; a result may take over a dying
/// operand's memory where OpDef::in_place allows, and an update its parameter's. Temporary buffers:
/// best fit over live ranges. `persistent_like`: lay persistent buffers out as that Program did (an
/// eval Program beside its training Program), appending none.
void place_memory(Program& program, const NeedsOf& needs, const Program* persistent_like = nullptr);

/// What a placed Program's arena holds: all of it, and per node of the Graph the most that is alive
/// in a step at it (its kernel, or a collective in front of it or behind it), workspaces included.
struct ArenaUse {
  int64_t bytes = 0;
  std::vector<int64_t> alive;
};
ArenaUse arena_use(const Program& program, const Graph& graph);

/// Throws internal naming both if two buffers that are alive at once overlap (in-place pairs
/// apart).
void check_memory(const Program& program);

}  // namespace shardrun
