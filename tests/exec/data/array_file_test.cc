// Arrays written in pieces, and read back by the reader of numpy's files.
#include "exec/data/array_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/tensor.h"
#include "exec/data/data_files.h"
#include "exec/data/data_internal.h"
#include "tests/exec/data/data_support.h"

namespace shardrun {
namespace {

using test::error_of;

class ArrayFileTest : public test::DataTest {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
};

std::vector<float> counted(const Shape& shape, float from) {
  std::vector<float> out(static_cast<size_t>(element_count(shape)));
  std::iota(out.begin(), out.end(), from);
  return out;
}

/// Every chunk of every dim, in a random order, each in pieces of a few elements.
void write_in_pieces(ArrayFile& file, size_t i, const std::vector<float>& values, int64_t parts,
                     int64_t most) {
  const Shape& shape = file.arrays()[i].type.shape;
  std::vector<Box> boxes = {full_box(shape)};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<Box> cut;
    for (const Box& box : boxes) {
      for (int64_t part = 0; part < parts; ++part) {
        cut.push_back(box);
        cut.back()[d] = shard_range(shape[d], parts, part);
      }
    }
    boxes = std::move(cut);
  }
  std::mt19937 random(7);
  std::shuffle(boxes.begin(), boxes.end(), random);
  for (const Box& box : boxes) {
    std::vector<float> dense(static_cast<size_t>(element_count(box_shape(box))));
    if (!dense.empty()) copy_box(values.data(), full_box(shape), dense.data(), box, box, 4);
    int64_t seen = 0;
    for_pieces(box, most, [&](const Box& part, int64_t first) {
      EXPECT_EQ(first, seen);
      EXPECT_LE(element_count(box_shape(part)), most);
      seen += element_count(box_shape(part));
      file.write(i, part, dense.data() + first);
    });
    EXPECT_EQ(seen, std::ssize(dense));
  }
}

TEST_F(ArrayFileTest, WhatIsWrittenInPiecesIsReadBack) {
  const std::vector<Shape> shapes = {{7, 5, 4}, {11}, {}, {3, 0, 2}, {1, 13}, {2, 3, 2, 5}};
  for (const int64_t parts : {1, 2, 3}) {
    for (const int64_t most : {1, 4, 9, 1000}) {
      std::vector<ArrayFile::Array> arrays;
      for (size_t i = 0; i < shapes.size(); ++i)
        arrays.push_back({str("layer/", i, ":0"), {DType::f32, shapes[i]}});
      {
        ArrayFile file(at("y.npz"), arrays);
        for (size_t i = 0; i < shapes.size(); ++i)
          write_in_pieces(file, i, counted(shapes[i], static_cast<float>(100 * i)), parts, most);
        file.finish();
      }
      const NpzArchive back(at("y.npz"));
      ASSERT_EQ(back.names().size(), shapes.size());
      for (size_t i = 0; i < shapes.size(); ++i) {
        const StoredArray* array = back.find(arrays[i].name);
        ASSERT_NE(array, nullptr);
        EXPECT_EQ(array->shape, shapes[i]);
        EXPECT_EQ(array->format, "<f4");
        std::vector<float> values(static_cast<size_t>(element_count(shapes[i])));
        std::copy_n(reinterpret_cast<const char*>(array->data), values.size() * 4,
                    reinterpret_cast<char*>(values.data()));
        EXPECT_EQ(values, counted(shapes[i], static_cast<float>(100 * i)));
      }
    }
  }
}

TEST_F(ArrayFileTest, EveryTypeThatNumpyHas) {
  const std::vector<std::pair<DType, const char*>> types = {
      {DType::f32, "<f4"}, {DType::f64, "<f8"}, {DType::f16, "<f2"}, {DType::i8, "|i1"},
      {DType::u8, "|u1"},  {DType::i32, "<i4"}, {DType::i64, "<i8"}, {DType::boolean, "|b1"}};
  for (const auto& [dtype, format] : types) {
    std::string bytes(static_cast<size_t>(3 * size_of(dtype)), '\1');
    ArrayFile file(at("one.npy"), {{"y", {dtype, {3}}}});
    file.write(0, full_box({3}), bytes.data());
    file.finish();
    const auto mapped = std::make_shared<MappedFile>(at("one.npy"));
    const StoredArray array = parse_npy(mapped->data(), mapped->size(), mapped, "one.npy");
    EXPECT_EQ(array.format, format);
    EXPECT_EQ(std::memcmp(array.data, bytes.data(), bytes.size()), 0);
  }
}

/// Until it is whole, what was there stays; and nothing is left of one that is not.
TEST_F(ArrayFileTest, AnUnfinishedFileChangesNothing) {
  const std::string path = write("y.npz", "old");
  { ArrayFile file(path, {{"y", {DType::f32, {4}}}}); }
  EXPECT_EQ(MappedFile(path).size(), 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ArrayFileTest, WhatCannotBeWritten) {
  const ArrayFile::Array one = {"y", {DType::f32, {4}}};
  EXPECT_EQ(error_of([&] { ArrayFile("y.txt", {one}); }), "y.txt: ends in neither .npz nor .npy");
  EXPECT_EQ(error_of([&] {
              ArrayFile("y.npy", {one, one});
            }),
            "y.npy: an .npy holds one array, there are 2; name an .npz");
  EXPECT_NE(error_of([&] { ArrayFile(at("none/y.npz"), {one}); }).find("cannot be written"),
            std::string::npos);
  std::filesystem::create_symlink("/dev/null", folder_ / "null.npz");
  EXPECT_EQ(error_of([&] { ArrayFile(at("null.npz"), {one}); }),
            at("null.npz") + ": cannot be written piece by piece; name a regular file");
}

}  // namespace
}  // namespace shardrun
