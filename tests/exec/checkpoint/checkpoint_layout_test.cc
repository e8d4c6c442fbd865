// Every byte of every value is in one rank's file, in the model file's shape, and evenly divided.
#include <gtest/gtest.h>

#include <map>

#include "base/crc32c.h"
#include "exec/checkpoint/layout.h"
#include "exec/checkpoint/spans.h"
#include "tests/exec/state_program.h"

namespace shardrun {
namespace {

using test::Shardings;
using test::StateValue;

std::string text(const Box& box) {
  std::string out;
  for (const Range& range : box) out += str(range.begin, ":", range.end(), " ");
  return out;
}

std::string text(const std::vector<Part>& parts) {
  std::string out;
  for (const Part& part : parts) out += text(part.file) + "= " + text(part.value) + "\n";
  return out;
}

TEST(Crc32c, IsTheOneOfRfc3720) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(crc32c("", 0), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(crc32c("56789", 5, crc32c("1234", 4)), 0xE3069283u);
}

TEST(Crc32c, PartsInAnyDivisionGiveTheWhole) {
  std::minstd_rand random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<char> message(1 + random() % 3000);
    for (char& c : message) c = static_cast<char>(random() % 5 == 0 ? random() : 0);
    const auto bytes = static_cast<int64_t>(message.size());
    const int readers = 1 + static_cast<int>(random() % 4);
    std::vector<Crc32cPart> parts(static_cast<size_t>(readers), Crc32cPart(bytes));
    for (int64_t at = 0; at < bytes;) {
      const int64_t some = std::min<int64_t>(bytes - at, 1 + static_cast<int64_t>(random() % 700));
      parts[random() % parts.size()].add(at, message.data() + at, some);
      at += some;
    }
    uint32_t sum = 0;
    for (const Crc32cPart& part : parts) sum ^= part.sum();
    EXPECT_EQ(crc32c_of_parts(sum, bytes), crc32c(message.data(), bytes)) << "trial " << trial;
  }
}

TEST(Spans, AreTheRunsThatLieTogether) {
  const auto of = [](const Box& inner, const Box& outer, int64_t first, int64_t count) {
    std::string out;
    Spans(inner, outer).each(first, count, [&](int64_t at, int64_t some) {
      out += str(at, "+", some, " ");
    });
    return out;
  };
  EXPECT_EQ(of({{0, 4}, {2, 3}}, {{0, 4}, {0, 9}}, 0, 12), "2+3 11+3 20+3 29+3 ");
  EXPECT_EQ(of({{0, 4}, {2, 3}}, {{0, 4}, {0, 9}}, 4, 3), "12+2 20+1 ");
  EXPECT_EQ(of({{1, 3}, {0, 9}}, {{0, 4}, {0, 9}}, 0, 27), "9+27 ");
  EXPECT_EQ(of({{5, 1}, {7, 2}}, {{5, 2}, {6, 4}}, 0, 2), "1+2 ");
  EXPECT_EQ(of({}, {}, 0, 1), "0+1 ");
}

TEST(PartsOf, DividedDims) {
  EXPECT_EQ(text(parts_of({4, 6}, {4, 6}, {{1, 2}, {0, 3}})), "1:3 0:3 = 1:3 0:3 \n");
  EXPECT_EQ(text(parts_of({4, 6}, {4, 3, 2}, {{0, 4}, {0, 3}, {1, 1}})),
            "0:4 1:2 = 0:4 0:1 1:2 \n0:4 3:4 = 0:4 1:2 1:2 \n0:4 5:6 = 0:4 2:3 1:2 \n");
  EXPECT_EQ(text(parts_of({4, 6}, {4, 3, 2}, {{0, 4}, {1, 2}, {0, 2}})),
            "0:4 2:6 = 0:4 1:3 0:2 \n");
  EXPECT_EQ(text(parts_of({6}, {3, 2}, {{0, 3}, {0, 2}})), "0:6 = 0:3 0:2 \n");
  EXPECT_EQ(text(parts_of({}, {}, {})), "= \n");
  EXPECT_EQ(text(parts_of({6}, {3, 2}, {{0, 0}, {0, 2}})), "");
  EXPECT_EQ(text(parts_of({1, 6}, {1, 1, 6, 1}, {{0, 1}, {0, 1}, {2, 2}, {0, 1}})),
            "0:1 2:4 = 0:1 0:1 2:4 0:1 \n");
  EXPECT_THROW(parts_of({6, 4}, {3, 8}, {{0, 3}, {0, 8}}), Error);
  EXPECT_THROW(parts_of({6}, {6, 2}, {{0, 6}, {0, 2}}), Error);
}

/// Both sides of a part are the same elements in the same order.
TEST(PartsOf, AnyBoxOfAnyDivision) {
  std::minstd_rand random(7);
  const auto extent = [&] { return 1 + static_cast<int64_t>(random() % 4); };
  for (int trial = 0; trial < 300; ++trial) {
    Shape file, value;
    const size_t dims = 1 + random() % 3;
    for (size_t d = 0; d < dims; ++d) {
      int64_t product = 1;
      for (size_t k = 1 + random() % 3; k > 0; --k) {
        value.push_back(extent());
        product *= value.back();
      }
      file.push_back(product);
    }
    Box box;
    for (int64_t size : value) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
      box.push_back(
          {begin, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(size - begin))});
    }
    std::vector<int64_t> by_file, by_value, whole;
    const auto places = [](const Box& inner, const Shape& outer, std::vector<int64_t>& out) {
      Spans(inner, full_box(outer))
          .each(0, element_count(box_shape(inner)), [&](int64_t at, int64_t count) {
            for (int64_t i = 0; i < count; ++i) out.push_back(at + i);
          });
    };
    for (const Part& part : parts_of(file, value, box)) {
      places(part.file, file, by_file);
      places(part.value, value, by_value);
    }
    EXPECT_EQ(by_file, by_value) << "trial " << trial;
    places(box, value, whole);
    std::sort(by_file.begin(), by_file.end());
    std::sort(whole.begin(), whole.end());
    EXPECT_EQ(by_file, whole) << "trial " << trial;
  }
}

const std::vector<StateValue> kValues = {
    {"w", {DType::f32, {100, 10}}},
    {"qkv", {DType::f32, {7, 12}}, {7, 3, 4}},
    {"b", {DType::f32, {10}}},
    {"scale", {DType::f32, {}}},
    {"count", {DType::i64, {}}, {}, Role::state},
    {"seen", {DType::boolean, {5}}, {}, Role::state},
    {"accumulated/w", {DType::f32, {100, 10}}, {}, Role::state, true},
    {"table", {DType::f32, {3, 3}}, {}, Role::constant},
    {"none", {DType::f32, {0, 4}}},
    {"half", {DType::bf16, {9, 2}}},
};

TEST(FileOfRank, EveryByteOnce) {
  std::minstd_rand random(11);
  for (const char* name : {"1", "a=2", "a=3", "a=2,b=2", "a=5", "a=2,b=3", "a=2,b=2,c=2"}) {
    const Mesh mesh = std::string(name) == "1" ? Mesh() : Mesh::parse(name);
    for (int trial = 0; trial < 10; ++trial) {
      const Shardings shardings = test::random_shardings(kValues, mesh, random);
      std::map<std::string, std::vector<int>> written;
      for (const StateValue& v : kValues)
        written[v.name].resize(static_cast<size_t>(element_count(v.type.shape)));
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        const Program program = test::state_program(kValues, mesh, shardings, rank);
        const RankFile file = file_of_rank(program.bindings, mesh, rank);
        int64_t at = static_cast<int64_t>(file.header.size());
        for (const Piece& piece : file.pieces) {
          EXPECT_EQ(piece.offset, at);
          at += piece.bytes;
          const Binding& b = program.bindings[piece.binding];
          EXPECT_EQ(piece.offset % size_of(b.global.dtype), 0);
          Spans(piece.part.file, full_box(b.file_shape))
              .each(0, element_count(box_shape(piece.part.file)),
                    [&](int64_t first, int64_t count) {
                      for (int64_t i = first; i < first + count; ++i)
                        ++written[b.name][static_cast<size_t>(i)];
                    });
          EXPECT_EQ(intersect(piece.part.value, b.box), piece.part.value)
              << "rank " << rank << " writes what it does not hold";
        }
        EXPECT_EQ(file.bytes, at);
      }
      for (const StateValue& v : kValues) {
        const bool kept = v.role != Role::constant && !v.zeroed;
        for (int times : written[v.name]) EXPECT_EQ(times, kept ? 1 : 0) << v.name << " " << name;
      }
    }
  }
}

TEST(FileOfRank, ReplicasShareTheWork) {
  const Mesh mesh = Mesh::parse("a=8");
  const std::vector<StateValue> values = {
      {"w", {DType::f32, {1000, 10}}}, {"b", {DType::f32, {10}}}, {"v", {DType::f32, {300, 30}}}};
  const Shardings whole = {{{}, {}}, {{}}, {{}, {}}};
  int64_t least = 1 << 30, most = 0, all = 0;
  for (int64_t rank = 0; rank < 8; ++rank) {
    const Program program = test::state_program(values, mesh, whole, rank);
    const RankFile file = file_of_rank(program.bindings, mesh, rank);
    const int64_t bytes = file.bytes - static_cast<int64_t>(file.header.size());
    least = std::min(least, bytes);
    most = std::max(most, bytes);
    all += bytes;
  }
  EXPECT_EQ(all, (10000 + 10 + 9000) * 4);
  EXPECT_LE(most - least, 2 * 30 * 4) << "two rows";
}

TEST(FileOfRank, NamesWhatItCannotKeep) {
  const Mesh mesh = Mesh::parse("a=2");
  Program program = test::state_program({{"w", {DType::f32, {4}}}}, mesh, {{{}}}, 0);
  program.bindings[0].sharding.partial = {{0, ReduceOp::sum}};
  try {
    file_of_rank(program.bindings, mesh, 0);
    FAIL() << "kept a partial sum";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "'w' lies as [-] partial(sum: a): checkpoints do not keep partial sums");
  }
}

}  // namespace
}  // namespace shardrun
