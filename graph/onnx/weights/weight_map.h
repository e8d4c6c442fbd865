// WeightMap: whose numbers the values of a graph hold: initialisers of the model's file, and
// tensors of the module that it was exported from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx/import.h"

namespace shardrun {

/// Elements of a value that are a tensor's: `count` in a row of both, or, where both are matrices,
/// all of them transposed.
struct ValueRun {
  std::string value;
  int64_t first = 0, tensor_first = 0;  // in the value and in the tensor, counted row-major
  int64_t count = 0;
  bool transposed = false;
};

/// A tensor of the module's state_dict(), which the runs make up.
struct ModuleTensor {
  std::string name;
  TensorType type;  // as the file stores it
  std::vector<ValueRun> runs;
  bool is_guessed = false;  // the name, which the file has lost: PyTorch's layers call theirs so
};

struct WeightMap {
  /// What the graph may keep, by its name there.
  struct Value {
    TensorType type;            // in the model file's shape
    DType stored = DType::f32;  // in the file
    Source source;              // what it holds before training
    bool kept = false;       // a parameter or state: a checkpoint has it, if the loss depends on it
    bool described = false;  // by a node: `source` has no numbers
  };
  std::map<std::string, Value> values;

  // ---- the module

  struct Missing {
    std::string name, why;
  };
  std::vector<ModuleTensor> tensors;
  /// How many batches running statistics are of: "bn.num_batches_tracked".
  struct BatchCount {
    std::string name, statistic;  // "bn.running_mean"
    int64_t times = 1;            // that a batch moves it: of a module that is called twice, 2
  };
  std::vector<BatchCount> batch_counts;
  std::vector<Missing> missing;  // tensors of the module that no value gives
  bool has_module = false;  // false: what exported it has no state_dict(); names are the file's

  // ---- the file

  std::map<std::string, ValueRun> initialisers;  // those whose numbers are a value's
  /// A node of the main graph that is to read a value which has no initialiser.
  struct Input {
    size_t node = 0, input = 0;
    std::string value;
  };
  std::vector<Input> inputs;
  /// A node of the main graph whose result is a value: it describes its first numbers, or the
  /// exporter put it in the place of an initialiser with the same numbers as another.
  struct Maker {
    size_t node = 0;
    std::string value;
    bool describes = false;
  };
  std::vector<Maker> makers;
};

}  // namespace shardrun
