// What a part of a source holds is that part of the whole, wherever it is cut.
#include <gtest/gtest.h>

#include <fstream>

#include "graph/graph.h"
#include "tests/graph/onnx/build.h"

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
  const test::TemporaryFolder folder;
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
    const std::string path = (folder / "values").string();
    std::ofstream(path, std::ios::binary)
        .write("head", 4)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
    source.file = std::make_shared<const InputFile>(path);
    source.offset = 4;
    source.shape = shape;
    source.dtype = DType::f32;
    expect_parts_of_the_whole(source, shape);
    EXPECT_EQ(read(source, {DType::f32, shape}, full_box(shape)), values);
  }
}

/// 0, 1, 2, … of `shape`, in memory.
Source counting(const Shape& shape, float first = 0) {
  std::vector<float> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  Source source;
  source.kind = Source::Kind::data;
  source.data = Tensor::from<float>(shape, values, DType::f32);
  return source;
}

TEST(Source, TransposedTensorsHaveDimsThatAreDivided) {
  Source source = counting({6, 4});  // of a weight [4, 6]
  source.perm = {1, 0};
  const Shape shape = {4, 6}, divided = {4, 3, 2}, outer = {2, 2, 6};
  EXPECT_EQ(read(source, {DType::f32, shape}, {{1, 2}, {2, 3}}),
            (std::vector<float>{9, 13, 17, 10, 14, 18}));
  const std::vector<float> whole = read(source, {DType::f32, shape}, full_box(shape));
  for (const Shape& other : {shape, divided, outer}) {
    EXPECT_EQ(read(source, {DType::f32, other}, full_box(other)), whole) << to_string(other);
    expect_parts_of_the_whole(source, other);
  }
  source = counting({2, 3, 4});
  source.perm = {2, 0, 1};
  expect_parts_of_the_whole(source, {4, 2, 3});
}

TEST(Source, PartsMakeUpATensor) {
  Source whole;
  whole.kind = Source::Kind::parts;
  Source turned = counting({2, 2}, 100);
  turned.perm = {1, 0};
  whole.parts = {{{{0, 2}, {0, 2}}, turned},
                 {{{0, 2}, {2, 4}}, counting({8}, 200)},  // of another shape, in the same order
                 {{{2, 1}, {0, 6}}, counting({1, 6}, 300)}};
  EXPECT_EQ(read(whole, {DType::f32, {3, 6}}, full_box({3, 6})),
            (std::vector<float>{100, 102, 200, 201, 202, 203, 101, 103, 204, 205, 206, 207, 300,
                                301, 302, 303, 304, 305}));
  for (const Shape& shape : {Shape{3, 6}, Shape{3, 3, 2}, Shape{3, 1, 6}})
    expect_parts_of_the_whole(whole, shape);
}

}  // namespace
}  // namespace shardrun
