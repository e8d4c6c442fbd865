// The nodes that each of PyTorch's calls became, and which of its arguments an optimiser left no
// trace of.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/onnx/exporter/fx_call.h"
#include "graph/onnx/flatten.h"

namespace shardrun::importer {

struct CallGroup {
  FxCall call;
  std::vector<size_t> nodes;  // in their order
};

/// Those of all nodes that note a call, in their order.
std::vector<CallGroup> call_groups(const std::vector<FlatNode>& nodes);

/// An input of a node.
struct Read {
  size_t node = 0;
  int input = 0;
  std::string name;
};

/// What calls name, as far as the file still has it.
class CallNames {
 public:
  CallNames(const ModelFile& model, const std::vector<FlatNode>& nodes);

  /// Arguments that nothing which the group reads stands for, and what the group reads that no
  /// argument stands for, both in their order. Of Add(z, w) for add(%z, %detach), `detach` and w.
  struct Unmatched {
    std::vector<std::string> values;   // arguments that some call computed
    std::vector<std::string> tensors;  // arguments that the module owns, by their names in it
    std::vector<Read> reads;           // of values that a node or the caller made
    std::vector<Read> stored;          // of initialisers
    bool unread = false;               // is an argument there, but not read?
  };
  Unmatched unmatched(const CallGroup& group, const std::vector<FlatNode>& nodes) const;

  /// Adds a floating initialiser to the file's, which stands for `source`.
  void add_stored(const std::string& name, const std::string& source);
  bool is_stored(const std::string& name) const { return sources_.count(name) > 0; }
  /// Is an initialiser what the module calls `tensor`, or a constant that was folded from it?
  bool stands_for(const std::string& stored, const std::string& tensor) const;
  /// Is there an initialiser that stands for what the module calls `tensor`?
  bool is_left(const std::string& tensor) const { return left_.count(tensor) > 0; }
  /// What an initialiser stands for: its own name, and those that it was folded from.
  const std::set<std::string>& sources_of(const std::string& stored) const {
    return sources_.at(stored);
  }
  /// The module's name of a tensor that calls name by `value`: "a.weight" of "p_a_weight". Empty
  /// for other values.
  std::string tensor_of(const std::string& value) const;

 private:
  /// Do the floating ones of `stored`, which are left there, stand for `tensors` one by one, or for
  /// such as nothing stands for?
  bool matches_in_order(const std::vector<std::string>& tensors, std::vector<Read>& stored) const;

  std::set<std::string> floats_;                          // initialisers
  std::set<std::string> made_;                            // by nodes, and the graph's inputs
  std::map<std::string, std::string> renamed_;            // as calls name inputs and outputs
  std::map<std::string, std::string> tensors_;            // p_a_weight -> a.weight
  std::map<std::string, std::set<std::string>> sources_;  // initialiser -> what it stands for
  std::set<std::string> left_;                            // all that some initialiser stands for
};

}  // namespace shardrun::importer
