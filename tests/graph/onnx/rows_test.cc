// Gathers and scatters of whole rows, however an exporter wrote them.
#include <gtest/gtest.h>

#include "graph/onnx/import.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using namespace test;  // NOLINT: the builder and its helpers

constexpr int64_t kRows = 4, kEdges = 6, kWidth = 3;

/// Indices [6], one of them negative, as rows of a [4, 3].
const std::vector<int64_t> kIndices = {2, 0, -1, 2, 3, 0};

class OnnxRows : public testing::Test {
 protected:
  TemporaryFolder folder;
  ImportOptions options;

  OnnxRows() {
    options.evaluate = run_reference;
    options.training = false;
    options.checked_indices = false;
  }

  /// data [4, 3] op updates [6, 3] through `indices`, which repeat the rows along the columns.
  ModelBuilder scatter(const char* reduction) {
    ModelBuilder b(18);
    b.input("data", {kRows, kWidth});
    b.input("rows", {kEdges}, kInt64);
    b.input("updates", {kEdges, kWidth});
    b.ints("axes", {1});
    b.ints("shape", {kEdges, kWidth});
    b.node("Unsqueeze", {"rows", "axes"}, {"column"});
    b.node("Expand", {"column", "shape"}, {"indices"});
    auto& node = b.node("ScatterElements", {"data", "indices", "updates"}, {"y"});
    set_int(node, "axis", 0);
    set_string(node, "reduction", reduction);
    b.output("y");
    return b;
  }

  NamedTensors feeds() const {
    std::vector<float> data, updates;
    for (int64_t i = 0; i < kRows * kWidth; ++i) data.push_back(static_cast<float>(i) - 5);
    for (int64_t i = 0; i < kEdges * kWidth; ++i) updates.push_back(static_cast<float>(i * 7 % 11));
    return {{"data", Tensor::from(Shape{kRows, kWidth}, data, DType::f32)},
            {"rows", Tensor::vector_i64(kIndices)},
            {"updates", Tensor::from(Shape{kEdges, kWidth}, updates, DType::f32)}};
  }

  static int64_t row(size_t edge) { return (kIndices[edge] + kRows) % kRows; }

  static int count(const Graph& graph, const std::string& op) {
    int n = 0;
    for (const Node& node : graph.nodes()) n += node.op == op;
    return n;
  }
};

TEST_F(OnnxRows, SumsOfRowsTakeNoIndexForEachElement) {
  const NamedTensors in = feeds();
  const Graph graph = OnnxFile(scatter("add").write(folder)).import(options);
  options.constants["rows"] = in.at("rows");  // as the edges of a graph are where they decide sizes
  const Graph constant = OnnxFile(scatter("add").write(folder)).import(options);
  for (const Graph* g : {&graph, &constant}) {
    EXPECT_EQ(count(*g, "scatter_elements"), 0) << to_string(*g);
    EXPECT_EQ(count(*g, "gather_grad"), 1) << to_string(*g);
  }
  NamedTensors without_rows = in;
  without_rows.erase("rows");
  const Tensor got = evaluate_graph(graph, in)[0], same = evaluate_graph(constant, without_rows)[0];
  std::vector<double> want;
  for (int64_t i = 0; i < kRows * kWidth; ++i) want.push_back(in.at("data").at(i));
  for (size_t e = 0; e < kIndices.size(); ++e) {
    for (int64_t k = 0; k < kWidth; ++k) {
      want[static_cast<size_t>(row(e) * kWidth + k)] +=
          in.at("updates").at(static_cast<int64_t>(e) * kWidth + k);
    }
  }
  for (int64_t i = 0; i < got.count(); ++i) {
    EXPECT_EQ(got.at(i), want[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(same.at(i), want[static_cast<size_t>(i)]) << i;
  }
}

/// The same numbers from the general form, which a maximum takes.
TEST_F(OnnxRows, OtherReductionsKeepTheirElements) {
  const NamedTensors in = feeds();
  const Graph graph = OnnxFile(scatter("max").write(folder)).import(options);
  EXPECT_EQ(count(graph, "scatter_elements"), 1);
  const Tensor got = evaluate_graph(graph, in)[0];
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t k = 0; k < kWidth; ++k) {
      double most = in.at("data").at(r * kWidth + k);
      for (size_t e = 0; e < kIndices.size(); ++e) {
        if (row(e) == r)
          most = std::max(most, in.at("updates").at(static_cast<int64_t>(e) * kWidth + k));
      }
      EXPECT_EQ(got.at(r * kWidth + k), most) << r << ", " << k;
    }
  }
}

TEST_F(OnnxRows, IndicesThatDifferAlongARowStayElements) {
  ModelBuilder b(18);
  b.input("data", {kRows, kWidth});
  b.input("indices", {kEdges, kWidth}, kInt64);
  b.input("updates", {kEdges, kWidth});
  auto& node = b.node("ScatterElements", {"data", "indices", "updates"}, {"y"});
  set_string(node, "reduction", "add");
  b.output("y");
  const Graph graph = OnnxFile(b.write(folder)).import(options);
  EXPECT_EQ(count(graph, "scatter_elements"), 1);
}

TEST_F(OnnxRows, RowsAreGatheredWhole) {
  for (const bool nd : {false, true}) {
    ModelBuilder b(18);
    b.input("data", {kRows, kWidth});
    b.input("rows", {kEdges}, kInt64);
    b.ints("axes", {1});
    b.ints("shape", {kEdges, kWidth});
    b.node("Unsqueeze", {"rows", "axes"}, {"column"});
    b.node("Expand", {"column", "shape"}, {"indices"});
    if (nd) {
      b.node("GatherND", {"data", "column"}, {"y"});
    } else {
      b.node("GatherElements", {"data", "indices"}, {"y"});
    }
    b.output("y");
    const Graph graph = OnnxFile(b.write(folder)).import(options);
    EXPECT_EQ(count(graph, "gather"), 1) << to_string(graph);
    EXPECT_EQ(count(graph, "gather_elements") + count(graph, "gather_nd"), 0);
    NamedTensors in = feeds();
    in.erase("updates");
    const Tensor got = evaluate_graph(graph, in)[0];
    for (size_t e = 0; e < kIndices.size(); ++e) {
      for (int64_t k = 0; k < kWidth; ++k) {
        EXPECT_EQ(got.at(static_cast<int64_t>(e) * kWidth + k),
                  in.at("data").at(row(e) * kWidth + k));
      }
    }
  }
}

/// x.gather(1, rows.unsqueeze(-1).expand(-1, -1, width)), and the scatter back: an index for each
/// row, none for each element. Two samples pick rows of their own, one by a negative number.
TEST_F(OnnxRows, EachSamplePicksRowsOfItsOwn) {
  constexpr int64_t kPicked = 5;
  const std::vector<int64_t> rows = {3, 0, 0, 2, -3, 1, 1, 2, 0, 3};
  for (const char* reduction : {"gather", "none", "add"}) {
    const bool gathers = std::string(reduction) == "gather";
    ModelBuilder b(18);
    b.input("data", {2, kRows, kWidth});
    b.input("rows", {2, kPicked}, kInt64);
    b.ints("axes", {2});
    b.ints("shape", {2, kPicked, kWidth});
    b.node("Unsqueeze", {"rows", "axes"}, {"column"});
    b.node("Expand", {"column", "shape"}, {"indices"});
    if (gathers) {
      set_int(b.node("GatherElements", {"data", "indices"}, {"y"}), "axis", 1);
    } else {
      b.input("updates", {2, kPicked, kWidth});
      auto& node = b.node("ScatterElements", {"data", "indices", "updates"}, {"y"});
      set_int(node, "axis", 1);
      set_string(node, "reduction", reduction);
    }
    b.output("y");
    const Graph graph = OnnxFile(b.write(folder)).import(options);
    EXPECT_EQ(count(graph, gathers ? "gather_nd" : "scatter_nd"), 1) << to_string(graph);
    EXPECT_EQ(count(graph, "gather_elements") + count(graph, "scatter_elements"), 0);
    std::vector<float> data, updates;
    for (int64_t i = 0; i < 2 * kRows * kWidth; ++i) data.push_back(static_cast<float>(i) - 5);
    for (int64_t i = 0; i < 2 * kPicked * kWidth; ++i)
      updates.push_back(static_cast<float>(i * 7 % 11));
    NamedTensors in = {{"data", Tensor::from(Shape{2, kRows, kWidth}, data, DType::f32)},
                       {"rows", Tensor::from(Shape{2, kPicked}, rows, DType::i64)}};
    if (!gathers)
      in.emplace("updates", Tensor::from(Shape{2, kPicked, kWidth}, updates, DType::f32));
    std::vector<float> want = data;
    if (gathers) want.assign(updates.size(), 0);
    for (size_t i = 0; i < updates.size(); ++i) {
      const size_t pick = i / kWidth, sample = pick / kPicked;
      const auto row = static_cast<size_t>((rows[pick] + kRows) % kRows);
      const size_t at = (sample * kRows + row) * kWidth + i % kWidth;
      if (gathers) {
        want[i] = data[at];
      } else {
        want[at] = std::string(reduction) == "add" ? want[at] + updates[i] : updates[i];
      }
    }
    const Tensor got = evaluate_graph(graph, in)[0];
    ASSERT_EQ(got.count(), static_cast<int64_t>(want.size()));
    for (int64_t i = 0; i < got.count(); ++i)
      EXPECT_EQ(got.at(i), want[static_cast<size_t>(i)]) << reduction << " " << i;
  }
}

}  // namespace
}  // namespace shardrun
