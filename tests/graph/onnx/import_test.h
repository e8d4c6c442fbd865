// A test that imports models which it builds, and looks at what import says of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"

namespace shardrun::test {

class ImportTest : public testing::Test {
 protected:
  TemporaryFolder folder;
  ImportOptions options;
  ImportReport report;  // of the last import

  ImportTest() { options.evaluate = run_reference; }

  Graph import(const ModelBuilder& b) {
    report = {};
    Graph graph = OnnxFile(b.write(folder)).import(options, &report);
    check_graph(graph);
    return graph;
  }
  /// The error's message; empty if the model is imported.
  std::string refusal(const ModelBuilder& b) {
    try {
      import(b);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  bool noted(const std::string& text) const {
    return std::any_of(report.notes.begin(), report.notes.end(), [&](const std::string& note) {
      return note.find(text) != std::string::npos;
    });
  }
  static Tensor floats(const Shape& shape, const std::vector<float>& values) {
    return Tensor::from(shape, values, DType::f32);
  }
};

}  // namespace shardrun::test
