// OnnxWriter: builds a plain ONNX file node by node, its weights drawn or only described.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

inline constexpr int kFloat = 1, kInt64 = 7, kBool = 9;  // TensorProto.DataType

/// A weight is either stored, with the numbers that `seed` and its name give, or described: a
/// RandomNormal, RandomUniform or ConstantOfShape node marked with the metadata
/// shardrun.init=parameter (or buffer), which import turns into the same parameter, made shard by
/// shard.
///
///   OnnxWriter w("mlp", {.weights = true, .seed = 1});
///   w.input("x", 1, {"batch", "784"});
///   w.output(w.node("MatMul", {"x", w.normal("w1", {784, 10}, 0.02)}), "y", 1, {"batch", "10"});
///   w.write("mlp.onnx");
class OnnxWriter {
 public:
  struct Options {
    bool weights = true;
    uint64_t seed = 0;
    int64_t opset = 20;
    int64_t external_above = int64_t{3} << 29;  // bytes of weights from which they go to FILE.data
  };
  OnnxWriter(const std::string& graph_name, const Options& options);
  ~OnnxWriter();
  OnnxWriter(const OnnxWriter&) = delete;
  OnnxWriter& operator=(const OnnxWriter&) = delete;

  /// `dims` are numbers or names of symbolic dims; `type` is TensorProto.DataType (1 float, 7
  /// int64).
  void input(const std::string& name, int type, const std::vector<std::string>& dims);
  void output(const std::string& name, int type, const std::vector<std::string>& dims);

  std::string normal(const std::string& name, const Shape& shape, double standard_deviation);
  std::string uniform(const std::string& name, const Shape& shape,
                      double bound);  // [-bound, bound)
  std::string filled(const std::string& name, const Shape& shape, double value);
  /// A tensor that the model keeps but does not train, such as running statistics.
  std::string buffer(const std::string& name, const Shape& shape, double value);

  std::string ints(const std::vector<int64_t>& values);   // an int64 vector
  std::string floats(const std::vector<double>& values);  // a float vector
  std::string integer(int64_t value);                     // an int64 of rank 0
  std::string scalar(double value);                       // a float of rank 0
  std::string boolean(bool value);                        // of rank 0

  /// Appends a node and returns its (first) result's name, which is `result` if given.
  std::string node(const std::string& op, const std::vector<std::string>& inputs,
                   const Attrs& attrs = {}, const std::string& result = "");
  std::vector<std::string> node_n(const std::string& op, const std::vector<std::string>& inputs,
                                  size_t results, const Attrs& attrs = {});
  /// Names of nodes and results from now on begin with it: "h.0.".
  std::string prefix;

  /// Appends to the model's metadata_props.
  void metadata(const std::string& key, const std::string& value);

  int64_t parameter_count() const;  // buffers are not counted
  /// Throws invalid_input if a file cannot be written.
  void write(const std::string& path) const;

 private:
  struct State;
  std::string persistent(const std::string& name, const Shape& shape, Source source, bool trained);
  std::unique_ptr<State> state_;
};

}  // namespace shardrun
