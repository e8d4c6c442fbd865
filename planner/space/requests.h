// Requests: what --shard asks for, found in a Graph.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/plan.h"
#include "graph/sharding.h"

namespace shardrun {

/// What one text asks for:
///
///   w=[-,model]           every value whose whole name matches lies so
///   x>dot=[-,model]       nodes whose whole name matches read it so, however it lies
///   dot()=[-,-,model]     nodes are cut so: along which mesh axes by each of the ways that
///                         `shardrun rules` numbers, from 0; along all other axes they are whole
///
///   w=anew                each node that reads it elsewise than it lies gathers a copy for itself
///                         alone, as fsdp does with weights (Plan::regathered)
///   w=shared              its readers share copies, where memory allows that, each made from the
///                         nearest there is
///   w=shared [-,model]    the same, made from one that lies so (Plan::redistributed)
///
/// Names are regular expressions, in which the % of computed values may be left out; a > of a name
/// is written \>. Where a node of the backward pass reads what is computed again, the name is that
/// of the value itself. A ? in front makes it a hint (planner/hints.h).
struct Request {
  /// A value lies so, or (node >= 0) that node reads it so.
  struct Lies {
    ValueId value = kNoValue;
    Sharding sharding;
    NodeId node = -1;
    size_t operand = 0;
  };
  struct Cut {
    NodeId node = -1;
    std::vector<Axes> axes;  // by way, trailing ways may be missing
  };
  /// How copies for a value's readers are made.
  struct Copies {
    ValueId value = kNoValue;
    bool regathered = false;
    std::optional<Sharding> from;  // what they are made from, not anew
    friend bool operator==(const Copies&, const Copies&) = default;
  };
  std::string by;  // "--shard 'w=[-,model]'"
  std::vector<Lies> lies;
  std::vector<Cut> cuts;
  std::vector<Copies> copies;
};

/// Finds requests in one graph: names without operators at once, others by a look at all there are.
class RequestFinder {
 public:
  /// `flag`: for errors. The graph has to outlive this.
  RequestFinder(const Graph& graph, const Mesh& mesh, std::string flag = "--shard");
  Request find(const std::string& text) const;

 private:
  struct Parts;
  class Reading;
  Parts take_apart(const std::string& text) const;

  const Graph& graph_;
  const Mesh mesh_;
  const std::string flag_;
  const std::vector<std::vector<int64_t>> moved_;
  std::unordered_map<std::string_view, NodeId> nodes_;
};

/// Over axes of one rank nothing is cut. Throws invalid_input, naming the text: no request, no
/// regular expression, no such axis, no value or node matches (with names that are near), no node
/// reads the value, another number of dims, a partial sum of what no node makes. `flag`: for
/// errors.
Request find_request(const std::string& text, const Graph& graph, const Mesh& mesh,
                     const std::string& flag = "--shard");

bool is_hint(std::string_view text);
/// Does what the text asks for name a mesh axis? w=shared and w=[-,-] do not.
bool names_axes(std::string_view text);
/// A hint as a request that has to be met.
std::string required(std::string_view text);
/// Does a plan what is asked, of values and operands? Of nodes' ways: false.
bool follows(const Plan& plan, const Graph& graph, const Request& request);
/// A regular expression that this name alone matches, for a request.
std::string quoted_name(std::string_view name);

}  // namespace shardrun
