// The training step of a plain multi-layer perceptron.
#pragma once

#include <string>
#include <vector>

#include "graph/optimizer.h"

namespace shardrun::test {

/// Products by w0, w1, … with a relu behind each, and the sum of squares.
inline Graph perceptron(int64_t batch, const std::vector<int64_t>& widths,
                        const OptimizerOptions& optimizer = {}) {
  Graph g;
  g.name = "mlp";
  ValueId x = g.add_input("x", {DType::f32, {batch, widths.front()}}, Role::batch);
  const ValueId target = g.add_input("target", {DType::f32, {batch, widths.back()}}, Role::batch);
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string name = "w" + std::to_string(i);
    const ValueId w =
        g.add_persistent(name, {DType::f32, {widths[i], widths[i + 1]}}, Role::parameter, Source{});
    g.trainable[w] = true;
    x = g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, name + "/matmul");
    x = g.add("relu", {x}, {}, name + "/relu");
  }
  const ValueId difference = g.add("sub", {x, target}, {}, "difference");
  const ValueId square = g.add("mul", {difference, difference}, {}, "square");
  g.loss = g.add("reduce_sum", {square},
                 {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
  attach_optimizer(g, optimizer);
  return g;
}

}  // namespace shardrun::test
