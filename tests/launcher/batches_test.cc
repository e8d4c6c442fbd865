// What the data sources are told of a model's inputs.
#include "launcher/api/batches.h"

#include <gtest/gtest.h>

#include "graph/passes/training.h"

namespace shardrun {
namespace {

/// The field 'labels' of a loss over 5 classes that ignores one label, seen through a reshape.
BatchField labels_field(std::optional<int64_t> ignored) {
  Graph g;
  const ValueId labels = g.add_input("labels", {DType::i64, {2, 3}}, Role::batch);
  const ValueId logits = g.add_input("logits", {DType::f32, {6, 5}}, Role::batch);
  const ValueId flat = g.add("reshape", {labels}, {{"shape", Shape{6}}});
  Attrs attrs;
  if (ignored) attrs.set("ignore_index", *ignored);
  g.outputs = {g.add_node("cross_entropy", {logits, flat}, attrs, "losses")[0]};
  for (const BatchField& field : batch_fields(g)) {
    if (field.name == "labels") return field;
  }
  return {};
}

TEST(BatchFields, LabelsMayBeTheIgnoredOne) {
  const BatchField as_given = labels_field(-1);
  EXPECT_EQ(as_given.role, BatchField::Role::target);
  EXPECT_EQ(as_given.bound, 5);
  EXPECT_EQ(as_given.ignore, -1);
  EXPECT_EQ(labels_field(std::nullopt).ignore, -100);
  EXPECT_EQ(labels_field(kNoIgnoredLabel).ignore, std::nullopt);
}

/// An edge list is taken apart before it indexes: both its rows have the tables' bound.
TEST(BatchFields, BoundsAreSeenThroughMoves) {
  Graph g;
  const ValueId edges = g.add_input("edges", {DType::i64, {2, 9}}, Role::batch);
  const ValueId table = g.add_input("table", {DType::f32, {5, 3}}, Role::batch);
  const ValueId other = g.add_input("other", {DType::f32, {4, 3}}, Role::batch);
  const ValueId row = g.add_constant("row", Tensor::scalar_i64(1));
  const ValueId sources = g.add(
      "slice", {edges}, {{"starts", Shape{0, 0}}, {"ends", Shape{1, 9}}, {"steps", Shape{1, 1}}});
  const ValueId targets = g.add("gather", {edges, row}, {{"axis", int64_t{0}}});
  const auto bound = [&] {
    for (const BatchField& field : batch_fields(g)) {
      if (field.name == "edges") return field.bound;
    }
    return int64_t{-1};
  };
  g.outputs = {g.add("gather", {table, g.add("reshape", {sources}, {{"shape", Shape{9}}})},
                     {{"axis", int64_t{0}}})};
  EXPECT_EQ(bound(), 5);
  g.outputs.push_back(g.add("gather", {other, targets}, {{"axis", int64_t{0}}}));
  EXPECT_EQ(bound(), 4);
}

/// Categorical features in one table, each column with an embedding of its own size, and one that
/// is a number.
TEST(BatchFields, ColumnsHaveTheirOwnBounds) {
  Graph g;
  const ValueId table = g.add_input("features", {DType::i32, {6, 4}}, Role::batch);
  const ValueId wide = g.add("cast", {table}, {{"to", std::string("i64")}});
  const ValueId column = g.add_constant("column", Tensor::scalar_i64(2));
  const ValueId rest = g.add(
      "slice", {wide}, {{"starts", Shape{0, 0}}, {"ends", Shape{6, 2}}, {"steps", Shape{1, 1}}});
  const auto embedded = [&](const char* name, int64_t size, ValueId indices) {
    const ValueId weights = g.add_input(name, {DType::f32, {size, 3}}, Role::batch);
    g.outputs.push_back(g.add("gather", {weights, indices}, {{"axis", int64_t{0}}}));
  };
  embedded("a", 10, g.add("gather", {wide, column}, {{"axis", int64_t{1}}}));
  embedded("b", 5, rest);
  const BatchField field = batch_fields(g)[0];
  ASSERT_EQ(field.name, "features");
  EXPECT_EQ(field.column_bounds, (std::vector<int64_t>{5, 5, 10, 0}));
  EXPECT_EQ(field.bound, 5);
  embedded("c", 8, wide);
  EXPECT_EQ(batch_fields(g)[0].column_bounds, (std::vector<int64_t>{5, 5, 8, 8}));

  // Samples are no columns, and there may be many of them.
  const ValueId long_row = g.add_input("row", {DType::i64, {int64_t{1} << 40}}, Role::batch);
  embedded(
      "d", 5,
      g.add("slice", {long_row}, {{"starts", Shape{0}}, {"ends", Shape{4}}, {"steps", Shape{1}}}));
  const std::vector<BatchField> all = batch_fields(g);
  ASSERT_EQ(all[all.size() - 2].name, "row");
  EXPECT_TRUE(all[all.size() - 2].column_bounds.empty());
}

}  // namespace
}  // namespace shardrun
