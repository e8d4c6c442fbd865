// What a part of a source holds is that part of the whole, wherever it is cut.
#include <gtest/gtest.h>

#include <fstream>

#include "graph/graph.h"
#include "tests/graph/onnx_build.h"

namespace shardrun {
namespace {

/// All boxes of [0, size), [0, 1), [size - 1, size) and [1, size - 1) in each dim.
std::vector<Box> boxes_of(const Shape& shape) {
  std::vector<Box> boxes(1);
  for (const int64_t size : shape) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Range part : {Range{0, size}, {0, 1}, {size - 1, 1}, {1, size - 2}}) {
        if (part.size < 0) continue;
        longer.push_back(box);
        longer.back().push_back(part);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

std::vector<float> read(const Source& source, const TensorType& type, const Box& box) {
  std::vector<float> values(static_cast<size_t>(element_count(box_shape(box))));
  read_source(source, type, box, 5, values.data());
  return values;
}

void expect_parts_of_the_whole(const Source& source, const Shape& shape) {
  const TensorType type{DType::f32, shape};
  const std::vector<float> whole = read(source, type, full_box(shape));
  const Shape strides = row_major_strides(shape);
  for (const Box& box : boxes_of(shape)) {
    const Shape inner = row_major_strides(box_shape(box));
    const std::vector<float> part = read(source, type, box);
    for (size_t i = 0; i < part.size(); ++i) {
      int64_t at = 0, rest = static_cast<int64_t>(i);
      for (size_t d = 0; d < shape.size(); ++d) {
        at += (box[d].begin + rest / inner[d]) * strides[d];
        rest %= inner[d];
      }
      ASSERT_EQ(part[i], whole[static_cast<size_t>(at)]) << to_string(shape) << " at " << at;
    }
  }
}

TEST(Source, PartsAreThoseOfTheWhole) {
  const testing::TemporaryFolder folder;
  for (const Shape& shape : {Shape{}, Shape{6}, Shape{1}, Shape{4, 3}, Shape{5, 4, 1, 1},
                             Shape{4, 3, 3, 3}, Shape{3, 1, 4}, Shape{1, 2, 1, 3}}) {
    std::vector<float> values(static_cast<size_t>(element_count(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5F;
    Source source;
    for (const Source::Kind kind : {Source::Kind::normal, Source::Kind::uniform}) {
      source.kind = kind;
      source.a = 1, source.b = 3;
      source.stream = "w";
      expect_parts_of_the_whole(source, shape);
    }
    source.kind = Source::Kind::data;
    source.data = Tensor::from<float>(shape, values, DType::f32);
    expect_parts_of_the_whole(source, shape);
    EXPECT_EQ(read(source, {DType::f32, shape}, full_box(shape)), values);

    source = {};
    source.kind = Source::Kind::file;
    source.path = (folder / "values").string();
    std::ofstream(source.path, std::ios::binary)
        .write("head", 4)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
    source.offset = 4;
    source.shape = shape;
    source.dtype = DType::f32;
    expect_parts_of_the_whole(source, shape);
    EXPECT_EQ(read(source, {DType::f32, shape}, full_box(shape)), values);
  }
}

}  // namespace
}  // namespace shardrun
