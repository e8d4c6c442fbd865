// What the data sources are given of a model's inputs.
#include "launcher/api/train/batches.h"

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

/// Labels [2, 6] as `from` 1 on or not, compared with the logits of a table's rows.
struct TokenModel {
  Graph g;
  ValueId tokens = g.add_input("tokens", {DType::i64, {2, 6}}, Role::batch);
  ValueId table = g.add_persistent("table", {DType::f32, {9, 4}}, Role::parameter, Source{});

  ValueId slice(ValueId id, std::vector<int64_t> starts, const std::vector<int64_t>& ends) {
    const std::vector<int64_t> steps(starts.size(), 1);
    return g.add("slice", {id}, {{"starts", std::move(starts)}, {"ends", ends}, {"steps", steps}});
  }
  ValueId logits() { return g.add("gather", {table, tokens}, {{"axis", int64_t{0}}}); }
  void compare(ValueId logits, ValueId labels) {
    g.outputs.push_back(g.add_node("cross_entropy", {logits, labels})[0]);
  }
  BatchField field(const std::string& name) const {
    for (const BatchField& f : batch_fields(g)) {
      if (f.name == name) return f;
    }
    return {};
  }
};

TEST(BatchFields, LabelsThatTheModelShiftsAreTheTokensThemselves) {
  TokenModel plain, cut, padded;
  for (TokenModel* m : {&plain, &cut, &padded}) {
    const ValueId labels = m->g.add_input("labels", {DType::i64, {2, 6}}, Role::batch);
    if (m == &plain) m->compare(m->logits(), labels);
    if (m == &cut)  // logits[:, :-1] with labels[:, 1:]
      m->compare(m->slice(m->logits(), {0, 0, 0}, {2, 5, 4}), m->slice(labels, {0, 1}, {2, 6}));
    if (m != &padded) continue;  // logits with pad(labels)[:, 1:]
    const ValueId wide = m->g.add("pad", {labels},
                                  {{"before", Shape{0, 0}},
                                   {"after", Shape{0, 1}},
                                   {"mode", std::string("constant")},
                                   {"value", -100.0}});
    m->compare(m->logits(), m->slice(wide, {0, 1}, {2, 7}));
  }
  EXPECT_EQ(plain.field("labels").shift, 1);
  EXPECT_EQ(cut.field("labels").shift, 0);
  EXPECT_EQ(padded.field("labels").shift, 0);
  EXPECT_EQ(plain.field("labels").role, BatchField::Role::target);
  EXPECT_EQ(plain.field("tokens").role, BatchField::Role::input);
  TrainOptions asked;
  asked.target_shift = "0";
  EXPECT_EQ(batch_fields(plain.g, asked)[1].shift, 0);
  asked.target_shift = "2";
  EXPECT_THROW(batch_fields(plain.g, asked), Error);
  // Logits cut at their front are compared with earlier labels: places 1 … 5 with labels 1 … 5.
  TokenModel front;
  const ValueId labels = front.g.add_input("labels", {DType::i64, {2, 6}}, Role::batch);
  front.compare(front.slice(front.logits(), {0, 1, 0}, {2, 6, 4}),
                front.slice(labels, {0, 1}, {2, 6}));
  EXPECT_EQ(front.field("labels").shift, 1);
}

/// Tokens that the loss is compared with, too, stay an input if they are alone.
TEST(BatchFields, TokensThatAreTheirOwnTargetsAreAnInput) {
  TokenModel m;
  m.compare(m.slice(m.logits(), {0, 0, 0}, {2, 5, 4}), m.slice(m.tokens, {0, 1}, {2, 6}));
  EXPECT_EQ(m.field("tokens").role, BatchField::Role::input);
}

TEST(BatchFields, ATargetIsGuessedWhereNothingShowsOne) {
  const auto role = [](const char* name, bool embedded) {
    TokenModel m;
    const ValueId other = m.g.add_input(name, {DType::i64, {2, 6}}, Role::batch);
    m.g.outputs = {m.logits(), m.g.add("cast", {other}, {{"to", std::string("f32")}})};
    if (embedded)
      m.g.outputs.push_back(m.g.add("gather", {m.table, other}, {{"axis", int64_t{0}}}));
    return m.field(name).role;
  };
  EXPECT_EQ(role("following", false), BatchField::Role::target);
  EXPECT_EQ(role("segments", true), BatchField::Role::input);
  EXPECT_EQ(role("labels", true), BatchField::Role::target);
}

}  // namespace
}  // namespace shardrun
