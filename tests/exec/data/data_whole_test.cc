// Graphs: one batch read whole, with masks for the splits, an adjacency made from edges, edges in
// the order of their targets, rows of features scaled.
#include <set>

#include "tests/exec/data/data_support.h"

namespace shardrun {
namespace {

using namespace test;  // NOLINT: the fixture and its helpers

constexpr int64_t kNodes = 5, kEdges = 6;

// Node 4 has features of zero and no edge; the edges are not sorted by target.
const std::vector<int64_t> kSources = {0, 1, 2, 3, 1, 0}, kTargets = {3, 0, 2, 0, 1, 2};
const std::vector<float> kFeatures = {1, 3, 0, 2, 2, 4, 5, 0, 0, 0};
const std::vector<int64_t> kLabels = {2, 1, 0, 2, 1};

std::string mask(const std::string& bits) {
  std::string bytes;
  for (char b : bits) bytes += static_cast<char>(b - '0');
  return npy("|b1", "(" + std::to_string(bits.size()) + ",)", bytes);
}

using Files = std::vector<std::pair<std::string, std::string>>;

Files graph_files() {
  std::vector<int64_t> edges = kSources;
  edges.insert(edges.end(), kTargets.begin(), kTargets.end());
  return {{"features", npy("<f4", "(5, 2)", bytes_of(kFeatures))},
          {"labels", npy("<i8", "(5,)", bytes_of(kLabels))},
          {"edge_index", npy("<i8", "(2, 6)", bytes_of(edges))},
          {"edge_weight", npy("<f4", "(6,)", bytes_of<float>({0, 1, 2, 3, 4, 5}))},
          {"train_mask", mask("11000")},
          {"val_mask", mask("00110")},
          {"test_mask", mask("00001")}};
}

std::vector<BatchField> sparse_fields() {
  return {field("features", DType::f32, {kNodes, 2}),
          field("edge_index", DType::i64, {2, kEdges}, kNodes),
          field("target", DType::i64, {kNodes}, 3, BatchRole::target)};
}

class Graphs : public DataTest {
 protected:
  std::string spec(const Files& files) { return "npz:" + write("graph.npz", npz(files)); }
  /// The files, one of them replaced, or left out if `bytes` is empty.
  static Files with(const std::string& name, const std::string& bytes) {
    Files out;
    for (const auto& [n, b] : graph_files()) {
      if (n != name) out.emplace_back(n, b);
      if (n == name && !bytes.empty()) out.emplace_back(n, bytes);
    }
    return out;
  }
};

TEST_F(Graphs, MasksChooseTheTargetsOfASplit) {
  const auto fields = sparse_fields();
  const auto data = open_data(spec(graph_files()), fields, {});
  EXPECT_EQ(data->batches(Split::validation), 1);
  EXPECT_EQ(data->batches(Split::test), 1);
  EXPECT_TRUE(data->same_each_step());
  using Labels = std::vector<int64_t>;
  for (int64_t step : {0, 7}) {
    EXPECT_EQ(read_all<int64_t>(*data, step, fields[2]), (Labels{2, 1, -100, -100, -100}));
    EXPECT_EQ(read_all<float>(*data, step, fields[0]), kFeatures);
  }
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[2], Split::validation),
            (Labels{-100, -100, 0, 2, -100}));
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[2], Split::test),
            (Labels{-100, -100, -100, -100, 1}));
  EXPECT_NE(data->describe().find("2 targets to train, 2 to validate, 1 to test"),
            std::string::npos)
      << data->describe();
  expect_boxes_cut_the_batch<float>(*data, fields[0]);
  expect_boxes_cut_the_batch<int64_t>(*data, fields[1]);
  expect_boxes_cut_the_batch<int64_t>(*data, fields[2]);
}

TEST_F(Graphs, RowsAreScaledToASumOfOne) {
  const auto fields = sparse_fields();
  DataOptions options;
  options.normalise = "rows";
  const auto data = open_data(spec(graph_files()), fields, options);
  const std::vector<float> want = {0.25F, 0.75F, 0, 1, 1.0F / 3, 2.0F / 3, 1, 0, 0, 0};
  EXPECT_EQ(read_all<float>(*data, 0, fields[0]), want);
  expect_boxes_cut_the_batch<float>(*data, fields[0]);
}

TEST_F(Graphs, AnAdjacencyIsMadeFromEdges) {
  const std::vector<BatchField> fields{field("features", DType::f32, {kNodes, 2}),
                                       field("adjacency", DType::boolean, {kNodes, kNodes}),
                                       field("target", DType::i64, {kNodes}, 3, BatchRole::target)};
  const auto data = open_data(spec(graph_files()), fields, {});
  const auto got = read_all<uint8_t>(*data, 0, fields[1]);
  std::set<std::pair<int64_t, int64_t>> found, wanted;
  for (int64_t i = 0; i < kNodes * kNodes; ++i) {
    if (got[static_cast<size_t>(i)] != 0) found.emplace(i % kNodes, i / kNodes);
  }
  for (size_t e = 0; e < kSources.size(); ++e) wanted.emplace(kSources[e], kTargets[e]);
  EXPECT_EQ(found, wanted);
  expect_boxes_cut_the_batch<uint8_t>(*data, fields[1]);
}

TEST_F(Graphs, EdgesAreSortedByTargetWithWhatIsTheirs) {
  auto fields = sparse_fields();
  fields.push_back(field("edge_weight", DType::f32, {kEdges}));
  DataOptions options;
  options.sort_edges = true;
  const auto data = open_data(spec(graph_files()), fields, options);
  const std::vector<int64_t> want = {1, 3, 1, 2, 0, 0, 0, 0, 1, 2, 2, 3};
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1]), want);
  EXPECT_EQ(read_all<float>(*data, 0, fields[3]), (std::vector<float>{1, 3, 4, 2, 5, 0}));
  // What is announced beforehand is what is read.
  EXPECT_EQ(data_contents(spec(graph_files()), "edge_index", {}, true).value().to_ints(), want);
  std::vector<int64_t> given = kSources;
  given.insert(given.end(), kTargets.begin(), kTargets.end());
  EXPECT_EQ(data_contents(spec(graph_files()), "edge_index", {}, false).value().to_ints(), given);
  expect_boxes_cut_the_batch<int64_t>(*data, fields[1]);
  expect_boxes_cut_the_batch<float>(*data, fields[3]);
  EXPECT_NE(open_error(spec(graph_files()), {fields[0], fields[2]}, options)
                .find("sort-edges wants an integer input [2, edges]"),
            std::string::npos);
}

TEST_F(Graphs, ArraysMayHaveOtherNames) {
  const std::vector<BatchField> fields{field("x", DType::f32, {kNodes, 2}),
                                       field("edges", DType::i64, {2, kEdges}, kNodes),
                                       field("target", DType::i64, {kNodes}, 3, BatchRole::target)};
  const auto data = open_data(spec(graph_files()) + ",x=features,edges=edge_index", fields, {});
  EXPECT_EQ(read_all<float>(*data, 0, fields[0]), kFeatures);
  EXPECT_NE(open_error(spec(graph_files()), fields).find("no array 'x'"), std::string::npos);
  EXPECT_NE(open_error(spec(graph_files()) + ",x=z,edges=edge_index", fields)
                .find("no array 'z', wanted for 'x'"),
            std::string::npos);
  EXPECT_NE(open_error(spec(graph_files()) + ",q=features", fields).find("no batch input 'q'"),
            std::string::npos);
}

TEST_F(Graphs, FortranOrderIsTheSameArray) {
  std::vector<int64_t> columns;  // numpy's order='F' of the edge list
  for (size_t e = 0; e < kSources.size(); ++e) {
    columns.push_back(kSources[e]);
    columns.push_back(kTargets[e]);
  }
  const auto fields = sparse_fields();
  const auto plain = open_data(spec(graph_files()), fields, {});
  const auto want = read_all<int64_t>(*plain, 0, fields[1]);
  const auto data = open_data(
      spec(with("edge_index", npy("<i8", "(2, 6)", bytes_of(columns), 1, "True"))), fields, {});
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1]), want);
}

TEST_F(Graphs, ShapesBindDims) {
  const DataShapes graph = data_shapes(spec(graph_files()), {"features", "edge_index", "none"});
  EXPECT_TRUE(graph.whole);
  EXPECT_EQ(graph.of, (std::map<std::string, Shape>{{"features", {5, 2}}, {"edge_index", {2, 6}}}));
  const DataShapes plain =
      data_shapes("npz:" + write("plain.npz", npz({graph_files()[0]})), {"features"});
  EXPECT_FALSE(plain.whole);
  EXPECT_TRUE(data_shapes("text:nothing", {"features"}).of.empty());
}

/// Without masks, arrays for the model's inputs that count samples are not announced; [5, 2] and
/// [2, 6] count none.
TEST_F(Graphs, ContentsWithoutMasks) {
  Files files = graph_files();
  files.resize(4);
  const std::string data = spec(files);
  const std::vector<std::string> both = {"features", "edge_index"};
  EXPECT_EQ(data_contents(data, "edge_index", both, false).value().count(), 2 * kEdges);
  EXPECT_FALSE(data_contents(data, "features", both, false));  // not integers
  EXPECT_FALSE(data_contents(data, "edge_index", {"edge_index"}, false));
  EXPECT_FALSE(data_contents(data, "labels", {"features", "labels", "none"}, false));
}

TEST_F(Graphs, BadArchivesAreRefusedWithFileArrayAndReason) {
  const auto refused = [&](const Files& files, const std::string& why,
                           std::vector<BatchField> fields = sparse_fields()) {
    const std::string what = open_error(spec(files), std::move(fields));
    EXPECT_NE(what.find("graph.npz"), std::string::npos) << what;
    EXPECT_NE(what.find(why), std::string::npos) << what << "\nwanted: " << why;
  };
  refused(with("val_mask", ""), "has masks, but no 'val_mask'; it has 'features'");
  refused(with("train_mask", mask("00000")), "array 'train_mask': is false everywhere");
  refused(with("test_mask", npy("<i8", "(5,)", bytes_of(kLabels))),
          "array 'test_mask': is [5] of '<i8', wanted booleans");
  refused(with("val_mask", mask("01110")),
          "array 'val_mask': has sample 1, and so has array 'train_mask'");
  refused(with("test_mask", mask("00011")),
          "array 'test_mask': has sample 3, and so has array 'val_mask'");
  refused(with("val_mask", mask("0110")), "array 'val_mask': has 4 elements, but");
  refused(with("labels", npy("<i8", "(5,)", bytes_of<int64_t>({0, 1, 2, 3, 0}))),
          "array 'labels': element 3 is 3, but the model's input 'target' takes 0 to 2");
  refused(with("labels", npy("<f4", "(5,)", bytes_of<float>({0, 1, 2, 0, 0}))),
          "array 'labels': elements are '<f4', but the model's input 'target' is i64[5]");
  refused(with("labels", npy("<i8", "(4,)", bytes_of<int64_t>({0, 1, 2, 0}))),
          "array 'train_mask': has 5 elements, but");
  refused(with("features", npy("<f4", "(5, 1)", bytes_of<float>({1, 2, 3, 4, 5}))),
          "array 'features': is [5, 1], but the model's input 'features' is [5, 2]");
  refused(with("edge_index", npy("<i8", "(2, 1)", bytes_of<int64_t>({0, 1}))),
          "array 'edge_index': is [2, 1], but the model's input 'edge_index' is [2, 6]");
  std::vector<int64_t> beyond(12, 0);
  beyond[7] = 5;
  refused(with("edge_index", npy("<i8", "(2, 6)", bytes_of(beyond))),
          "array 'edge_index': element 7 is 5, but the model's input 'edge_index' takes 0 to 4");
  refused(with("features", ""), "no array 'features'; it has 'labels'");
  std::vector<BatchField> regression = sparse_fields();
  regression[2].type.dtype = DType::f32;
  refused(graph_files(), "masks leave targets out", regression);
  std::vector<BatchField> counting = sparse_fields();
  counting[2].ignore.reset();
  refused(graph_files(), "masks leave targets out", counting);
}

/// A test is of the best validation's weights: without a validation there is none.
TEST_F(Graphs, WithoutAValidationTheTestIsNotEvaluated) {
  const std::string none = spec(with("val_mask", mask("00000")));
  const std::string why =
      "0 to validate, 1 to test (without a validation the test part is not evaluated)";
  const auto whole = open_data(none, sparse_fields(), {});
  EXPECT_NE(whole->describe().find(why), std::string::npos) << whole->describe();
  const std::vector<BatchField> fields{field("features", DType::f32, {2, 2}),
                                       field("target", DType::i64, {2}, 3, BatchRole::target)};
  const auto samples = open_data(none, fields, {});
  EXPECT_NE(samples->describe().find(why), std::string::npos) << samples->describe();
  EXPECT_EQ(open_data(spec(graph_files()), fields, {})->describe().find("without"),
            std::string::npos);
}

/// Targets are what they are.
TEST_F(Graphs, RowsOfInputsAreScaledAndTargetsAreNot) {
  const Files files{{"x", npy("<f4", "(2, 2)", bytes_of<float>({1, 3, 1, 3}))},
                    {"y", npy("<f4", "(2, 1)", bytes_of<float>({5, 5}))}};
  DataOptions options;
  options.validation_fraction = 0;
  for (const int64_t batch : {1, 2}) {  // samples, and all at once
    const std::vector<BatchField> fields{field("x", DType::f32, {batch, 2}),
                                         field("y", DType::f32, {batch, 1}, 0, BatchRole::target)};
    options.normalise = "rows";
    const auto data = open_data(spec(files), fields, options);
    const std::vector<float> x = read_all<float>(*data, 0, fields[0]);
    EXPECT_EQ(std::vector<float>(x.begin(), x.begin() + 2), (std::vector<float>{0.25F, 0.75F}));
    EXPECT_EQ(read_all<float>(*data, 0, fields[1]),
              std::vector<float>(static_cast<size_t>(batch), 5));
    options.normalise = "data";
    EXPECT_NE(open_error(spec(files), fields, options), "");
  }
}

/// The masks of samples, which are not one batch.
TEST_F(Graphs, MasksSplitSamplesToo) {
  const std::vector<BatchField> fields{field("features", DType::f32, {2, 2}),
                                       field("target", DType::i64, {2}, 3, BatchRole::target)};
  const auto data = open_data(spec(graph_files()), fields, {});
  EXPECT_EQ(data->batches(Split::validation), 1);
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1], Split::validation),
            (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1], Split::test), (std::vector<int64_t>{1, -100}));
  std::multiset<int64_t> seen;
  for (int64_t label : read_all<int64_t>(*data, 3, fields[1])) seen.insert(label);
  EXPECT_EQ(seen, (std::multiset<int64_t>{1, 2}));
  // Where the loss is the model's own, nothing is called a target.
  const std::vector<BatchField> inputs{field("features", DType::f32, {2, 2})};
  EXPECT_NE(open_data(spec(graph_files()), inputs, {})->describe().find("2 to train"),
            std::string::npos);
  for (const char* rows : {"(4, 2)", "(1, 2)"}) {
    const Files other = with("features", npy("<f4", rows, bytes_of(kFeatures)));
    EXPECT_NE(open_error(spec(other), inputs).find("array 'train_mask': has 5 elements, but"),
              std::string::npos);
  }
}

TEST(TokensOfGraphs, EndsOfEdgesAreNoTokens) { EXPECT_EQ(tokens_per_batch(sparse_fields()), 0); }

}  // namespace
}  // namespace shardrun
