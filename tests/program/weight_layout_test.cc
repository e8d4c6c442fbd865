// Tags of layouts, there and back, and places of elements.
#include "program/ops/weight_layout.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

TEST(WeightLayout, IsWrittenAsItIsRead) {
  for (const char* tag : {"abcd", "acdb", "AcdB32a2b", "BAcd8a16b2a", "Acdb16a", "cdBA16b64a2b"})
    EXPECT_EQ(WeightLayout::parse(tag).to_string(), tag);
  const WeightLayout layout = WeightLayout::parse("AcdB32a2b");
  EXPECT_EQ(layout.order, (std::vector<int64_t>{0, 2, 3, 1}));
  EXPECT_EQ(layout.blocks, (std::vector<int64_t>{32, 2}));
  EXPECT_EQ(layout.of, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(parse_layouts("AcdB32a2b BAcd8a16b2a"),
            (std::vector{layout, WeightLayout::parse("BAcd8a16b2a")}));
}

TEST(WeightLayout, RefusesWhatIsNone) {
  for (const char* tag : {"aacd", "acd", "ab?", "Ab", "ab16a", "AbB16a", "Ab16", "Ab0a", "Ab16c",
                          "Ab99999999999a", "A16ab"})
    EXPECT_THROW(WeightLayout::parse(tag), Error) << tag;
  EXPECT_THROW(WeightLayout::parse("abc").type({DType::f32, {4, 4}}), Error);
}

TEST(WeightLayout, PlacesElementsInBlocks) {
  const WeightLayout layout = WeightLayout::parse("AcB4a2b");  // [O / 4][taps][C / 2][4][2]
  const Shape dims = {6, 3, 5};
  EXPECT_EQ(layout.counts(dims), (Shape{2, 2, 5}));
  EXPECT_EQ(layout.type({DType::bf16, dims}), (TensorType{DType::bf16, {2 * 5 * 2 * 8}}));
  EXPECT_EQ(layout.place(dims, {0, 0, 0}), 0);
  EXPECT_EQ(layout.place(dims, {0, 1, 0}), 1);
  EXPECT_EQ(layout.place(dims, {1, 0, 0}), 2);
  EXPECT_EQ(layout.place(dims, {0, 2, 0}), 8);
  EXPECT_EQ(layout.place(dims, {0, 0, 1}), 16);
  EXPECT_EQ(layout.place(dims, {5, 2, 4}), 80 + 64 + 8 + 2);
}

}  // namespace
}  // namespace shardrun
