// Requests: what --shard asks for, found in a Graph.
#pragma once

#include <string>
#include <string_view>
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
/// Names are regular expressions, in which the % of computed values may be left out; a > of a name
/// is written \>. A ? in front makes it a hint (planner/hints.h).
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
    std::vector<std::vector<int>> axes;  // by way, trailing ways may be missing
  };
  std::string by;  // "--shard 'w=[-,model]'"
  std::vector<Lies> lies;
  std::vector<Cut> cuts;
};

/// Over axes of one rank nothing is cut. Throws invalid_input, naming the text: no request, no
/// regular expression, no such axis, no value or node matches (with names that are near), no node
/// reads the value, another number of dims, a partial sum of what no node makes. `flag`: for
/// errors.
Request find_request(const std::string& text, const Graph& graph, const Mesh& mesh,
                     const std::string& flag = "--shard");

bool is_hint(std::string_view text);
/// A hint as a request that has to be met.
std::string required(std::string_view text);
/// Does a plan what is asked, of values and operands? Of nodes' ways: false.
bool follows(const Plan& plan, const Graph& graph, const Request& request);
/// A regular expression that this name alone matches, for a request.
std::string quoted_name(std::string_view name);

}  // namespace shardrun
