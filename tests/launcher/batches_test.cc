// What the data sources are told of a model's inputs.
#include "launcher/api/batches.h"

#include <gtest/gtest.h>

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
}

}  // namespace
}  // namespace shardrun
