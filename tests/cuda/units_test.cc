// How kernels find their elements, and that they move as many at once as lie side by side.
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "base/tensor.h"
#include "device/device.h"
#include "kernels/cuda/own/indexing.h"
#include "kernels/cuda/own/movement.h"
#include "tests/cuda/host/on_host.h"
#include "tests/support/kernel_cases.h"

namespace shardrun {
namespace {

using cuda::BoxLoops;

constexpr uint64_t kSeed = 20261122;

/// Of numbers that `make` makes.
template <class F>
Tensor numbers(DType dtype, const Shape& shape, const F& make) {
  std::vector<double> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(make(i));
  return convert(Tensor::from(shape, values, DType::f64), dtype);
}

TEST(Units, DividesAsDivisionDoes) {
  constexpr int64_t kMost = INT32_MAX;
  std::mt19937_64 rng(kSeed);
  std::cout << "seed " << kSeed << "\n";
  const auto check = [](int64_t by, int64_t bound, int64_t n) {
    int64_t quotient = n;
    const int64_t rest = cuda::Divisor(by, bound).split(quotient);
    ASSERT_EQ(quotient, n / by) << n << " / " << by;
    ASSERT_EQ(rest, n % by) << n << " % " << by;
  };
  std::vector<int64_t> divisors = {kMost, kMost - 1, kMost / 2, kMost / 2 + 1};
  for (int64_t by = 1; by < 1000; ++by) divisors.push_back(by);
  for (int bit = 10; bit < 31; ++bit) {
    for (int64_t off : {-1, 0, 1}) divisors.push_back((int64_t{1} << bit) + off);
  }
  for (int i = 0; i < 500; ++i) divisors.push_back(static_cast<int64_t>(rng() % kMost) + 1);
  for (const int64_t by : divisors) {
    for (int i = 0; i < 200; ++i) check(by, kMost, static_cast<int64_t>(rng() % (kMost + 1ull)));
    for (const int64_t n : {int64_t{0}, by - 1, by, kMost / by * by - 1, kMost / by * by, kMost})
      check(by, kMost, n);
    const int64_t many = int64_t{1} << 40;  // more than 32 bits hold
    for (const int64_t n : {many, many / by * by - 1, many / by * by}) check(by, many, n);
  }
  check(int64_t{1} << 33, int64_t{1} << 40, (int64_t{5} << 33) + 7);
}

TEST(Units, AreAsLongAsEverythingIsAMultipleOf) {
  EXPECT_EQ(cuda::unit_of(0), 16);
  EXPECT_EQ(cuda::unit_of(48 | 8), 8);
  EXPECT_EQ(cuda::unit_of(256 | 64), 16);
  EXPECT_EQ(cuda::unit_of(7), 1);
}

Box whole(const Shape& shape) {
  Box box;
  for (int64_t size : shape) box.push_back({0, size});
  return box;
}

int64_t unit(const Shape& from, const Shape& to, const Box& region, int64_t element_bytes,
             int64_t off = 0) {
  alignas(64) static char memory[64];
  return cuda::move_of(cuda::loops_of(whole(from), whole(to), region), memory + off, memory,
                       element_bytes)
      .unit;
}

TEST(Units, OfBoxes) {
  // Half of the columns: rows of 8 bytes more than a multiple of 16 in one, not in the other.
  EXPECT_EQ(unit({6, 16}, {6, 8}, {{0, 6}, {0, 8}}, 2), 16);
  EXPECT_EQ(unit({6, 20}, {6, 8}, {{0, 6}, {0, 8}}, 2), 8);
  EXPECT_EQ(unit({6, 16}, {6, 16}, {{2, 3}, {4, 8}}, 2), 8);  // begins 8 bytes into a row
  EXPECT_EQ(unit({6, 7}, {6, 7}, {{0, 6}, {0, 7}}, 4), 8);    // 42 elements in one go
  EXPECT_EQ(unit({6, 7}, {6, 7}, {{0, 4}, {0, 7}}, 4), 16);
  EXPECT_EQ(unit({6, 16}, {6, 8}, {{0, 6}, {0, 8}}, 2, 6), 2);  // an address
  EXPECT_EQ(unit({6, 16}, {6, 1}, {{0, 6}, {3, 1}}, 8), 8);     // a column
  EXPECT_EQ(unit({6, 16}, {1, 1}, {{0, 1}, {0, 1}}, 1), 1);
  // 2 and 3 are one loop in both; 4 lies apart from them in the first.
  const BoxLoops loops =
      cuda::loops_of(whole({2, 3, 8}), whole({2, 3, 4}), {{0, 2}, {0, 3}, {0, 4}});
  EXPECT_EQ(loops.dims, 2);
  EXPECT_EQ(loops.size[0], 6);
  EXPECT_EQ(loops.from[0], 8);
  EXPECT_EQ(loops.to[0], 4);
  EXPECT_FALSE(loops.one_piece());
  EXPECT_TRUE(cuda::loops_of(whole({9, 3, 4}), whole({2, 3, 4}), whole({2, 3, 4})).one_piece());
}

/// Boxes of tensors of all kinds, some of which begin anywhere, moved and added as the host does
/// it.
TEST(Units, BoxesAreTheHosts) {
  std::mt19937_64 rng(kSeed + 1);
  const cuda::BoxesOnHost on;
  const auto up_to = [&](int64_t n) {
    return static_cast<int64_t>(rng() % static_cast<uint64_t>(n));
  };
  std::map<int64_t, int> units;
  for (int round = 0; round < 2000; ++round) {
    const DType dtype =
        std::array{DType::f32, DType::bf16, DType::f64,    DType::i64,
                   DType::i32, DType::u8,   DType::boolean}[static_cast<size_t>(up_to(7))];
    const int64_t element = size_of(dtype);
    Shape from, to;
    Box from_box, to_box, region;
    const size_t rank = static_cast<size_t>(up_to(5));
    for (size_t d = 0; d < rank; ++d) {
      const int64_t grain = up_to(2) == 0 ? 1 : 8 / (up_to(2) + 1), size = grain * up_to(4);
      const auto around = [&] {
        const int64_t before = up_to(3) == 0 ? grain * up_to(3) : 0,
                      behind = up_to(3) == 0 ? grain * up_to(3) : 0;
        return Range{10 - before, before + size + behind};
      };
      region.push_back({10, size});
      from_box.push_back(around()), to_box.push_back(around());
      from.push_back(from_box.back().size), to.push_back(to_box.back().size);
    }
    // Space to begin a few elements later.
    const int64_t off_from = up_to(2) * up_to(9), off_to = up_to(2) * up_to(9);
    const auto some = [&](size_t) { return up_to(90); };
    const Tensor source = numbers(dtype, {element_count(from) + off_from}, some),
                 got = numbers(dtype, {element_count(to) + off_to}, some);
    const Tensor before = convert(got, dtype), added = convert(got, dtype),
                 wanted = convert(got, dtype);
    const auto at = [&](const Tensor& t, int64_t off) {
      return static_cast<char*>(t.view().data) + off * element;
    };
    if (is_empty(region)) continue;
    const BoxLoops loops = cuda::loops_of(from_box, to_box, region);
    ++units[cuda::move_of(loops, at(source, off_from), at(got, off_to), element).unit];
    cuda::copy_box_on(on, at(source, off_from), at(got, off_to), loops, element);
    host_device().copy_box(at(source, off_from), from_box, at(wanted, off_to), to_box, region,
                           element);
    ASSERT_EQ(std::memcmp(got.data(), wanted.data(), static_cast<size_t>(byte_size(got.type()))), 0)
        << "round " << round;
    const Tensor sum = convert(before, dtype);
    cuda::add_box_on(on, at(source, off_from), at(added, off_to), loops, dtype);
    host_device().add_box(at(source, off_from), from_box, at(sum, off_to), to_box, region, dtype);
    ASSERT_EQ(std::memcmp(added.data(), sum.data(), static_cast<size_t>(byte_size(sum.type()))), 0)
        << "round " << round;
  }
  for (int64_t bytes : {1, 2, 4, 8, 16}) EXPECT_GT(units[bytes], 50) << bytes;
}

TEST(Units, BoxesThatTurnAreTiles) {
  using cuda::tiles_of;
  using cuda::turned;
  const auto tiles = tiles_of(turned({3, 40, 70}, {0, 2, 1}));
  ASSERT_TRUE(tiles);
  EXPECT_EQ(tiles->rows, 40);
  EXPECT_EQ(tiles->cols, 70);
  EXPECT_EQ(tiles->count, 3 * 2 * 3);
  // 2 and 35 lie side by side, and do so afterwards.
  EXPECT_EQ(tiles_of(turned({40, 2, 35}, {1, 2, 0}))->cols, 70);
  EXPECT_FALSE(tiles_of(turned({3, 40, 70}, {1, 0, 2}))) << "rows stay as they are";
  EXPECT_FALSE(tiles_of(turned({64, 9, 256}, {0, 2, 1}))) << "most of a tile would be empty";
  EXPECT_FALSE(tiles_of(turned({64, 256, 9}, {0, 2, 1})));
  EXPECT_FALSE(tiles_of(cuda::loops_of(whole({60, 40}), whole({60, 1}), {{0, 60}, {3, 1}})))
      << "a column's neighbours lie apart";
}

/// Elements that are not whole tiles, batches around and between the two dims, and tensors that
/// begin anywhere.
TEST(Units, TransposesAreTheReferences) {
  struct Turn {
    Shape shape;
    std::vector<int64_t> perm;
  };
  int in_tiles = 0;
  for (const Turn& turn : std::vector<Turn>{{{33, 50}, {1, 0}},
                                            {{16, 64}, {1, 0}},
                                            {{15, 64}, {1, 0}},
                                            {{2, 17, 3, 40}, {0, 3, 2, 1}},
                                            {{2, 17, 3, 40}, {2, 3, 0, 1}},
                                            {{5, 31, 1, 33, 2}, {3, 0, 4, 2, 1}},
                                            {{3, 16, 2, 2, 16}, {4, 2, 0, 3, 1}}}) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::u8}) {
      const int64_t element = size_of(dtype), count = element_count(turn.shape);
      Node node;
      node.op = "transpose";
      node.attrs = {{"perm", turn.perm}};
      const Tensor in = numbers(dtype, turn.shape, [](size_t i) { return i % 251; });
      const Tensor want = run_reference(node, std::array{in})[0];
      BoxLoops loops = cuda::turned(turn.shape, turn.perm);
      in_tiles += cuda::tiles_of(loops) ? 1 : 0;
      loops.from_offset = 3, loops.to_offset = 5;
      std::vector<char> from(static_cast<size_t>((count + 3) * element)),
          to(static_cast<size_t>((count + 6) * element), 'x');
      std::memcpy(from.data() + 3 * element, in.data(), static_cast<size_t>(count * element));
      cuda::copy_box_on(cuda::BoxesOnHost(), from.data(), to.data(), loops, element);
      EXPECT_EQ(
          std::memcmp(to.data() + 5 * element, want.data(), static_cast<size_t>(count * element)),
          0)
          << dtype << " " << to_string(turn.shape) << " by " << to_string(turn.perm);
      for (int64_t i = 0; i < element; ++i) {
        EXPECT_EQ(to[static_cast<size_t>(5 * element - 1 - i)], 'x');
        EXPECT_EQ(to[static_cast<size_t>((count + 5) * element + i)], 'x');
      }
    }
  }
  EXPECT_EQ(in_tiles, 5 * 4);
}

/// The unit of a pad or tile of f32.
int64_t spread_unit(const Shape& out, const Shape& in, const std::vector<int64_t>& before,
                    cuda::Beyond beyond) {
  alignas(64) static char memory[64];
  return cuda::SpreadDims(out, in, before, beyond).unit(memory, memory, 4);
}

TEST(Units, OfPadsAndTiles) {
  using cuda::Beyond;
  for (Beyond beyond : {Beyond::value, Beyond::edge, Beyond::mirrored}) {
    // Images with their channels last are padded pixel by pixel.
    EXPECT_EQ(spread_unit({2, 6, 7, 8}, {2, 4, 5, 8}, {0, 1, 1, 0}, beyond), 16);
    EXPECT_EQ(spread_unit({2, 6, 7, 3}, {2, 4, 5, 3}, {0, 1, 1, 0}, beyond), 4);
    EXPECT_EQ(spread_unit({2, 8, 5, 3}, {2, 4, 5, 3}, {0, 2, 0, 0}, beyond),
              beyond == Beyond::value ? 8 : 4);
  }
  // Along the last dim: where the row begins, ends and is padded on such boundaries.
  EXPECT_EQ(spread_unit({3, 24}, {3, 16}, {0, 4}, Beyond::value), 16);
  EXPECT_EQ(spread_unit({3, 24}, {3, 16}, {0, 2}, Beyond::value), 8);
  EXPECT_EQ(spread_unit({3, 24}, {3, 16}, {0, 4}, Beyond::edge), 4);
  EXPECT_EQ(spread_unit({6, 24}, {3, 12}, {0, 0}, Beyond::again), 16);
  EXPECT_EQ(spread_unit({6, 24}, {3, 6}, {0, 0}, Beyond::again), 8);
}

/// Results of `impl` against the reference's.
void expect_reference(const KernelImpl& impl, const Node& node, const std::vector<Tensor>& in) {
  Case c;
  c.node = node;
  for (const Tensor& t : in) c.in.push_back(t.type());
  c.out = infer_types(c.node, c.in);
  SCOPED_TRACE(describe(c));
  ASSERT_FALSE(impl.refuses({c.node, c.in, c.out}));
  expect_close(run_impl(impl, c, in)[0], run_reference(node, in)[0], 1e-6);
}

const KernelImpl& kernel_of(const KernelList& list, const std::string& op) {
  return *std::find_if(list.begin(), list.end(), [&](const KernelImpl& k) { return k.op == op; });
}

Tensor counted(DType dtype, const Shape& shape) {
  return numbers(dtype, shape, [](size_t i) { return i % 97; });
}

TEST(Units, PadsAndTilesAreTheReferences) {
  const KernelList list = cuda::movement_kernels_on<cuda::OnHost<1>>();
  for (DType dtype : {DType::f32, DType::bf16, DType::i64, DType::boolean}) {
    for (const auto& [shape, before, after] : std::vector<std::array<Shape, 3>>{
             {Shape{2, 4, 5, 16}, Shape{0, 1, 2, 0}, Shape{0, 1, 0, 0}},
             {Shape{2, 4, 5, 3}, Shape{0, 1, 1, 0}, Shape{0, 1, 1, 0}},
             {Shape{3, 16}, Shape{0, 8}, Shape{0, 8}},
             {Shape{3, 16}, Shape{1, 4}, Shape{0, 2}},
             {Shape{3, 5}, Shape{0, 1}, Shape{0, 3}}}) {
      for (const char* mode : {"constant", "edge", "reflect"}) {
        Node pad;
        pad.op = "pad";
        pad.attrs = {
            {"before", before}, {"after", after}, {"mode", std::string(mode)}, {"value", 1.0}};
        expect_reference(kernel_of(list, "pad"), pad, {counted(dtype, shape)});
      }
    }
    for (const auto& [shape, repeats] : std::vector<std::pair<Shape, Shape>>{
             {{3, 16}, {2, 3}}, {{3, 16}, {4, 1}}, {{3, 5}, {2, 3}}, {{1, 8}, {7, 1}}}) {
      Node tile;
      tile.op = "tile";
      tile.attrs = {{"repeats", repeats}};
      expect_reference(kernel_of(list, "tile"), tile, {counted(dtype, shape)});
    }
  }
}

/// Slices of several units, of which two updates go to the same.
TEST(Units, ScattersAreTheReferences) {
  const KernelList list = cuda::indexing_kernels_on<cuda::OnHost<1>>();
  const Tensor indices =
      numbers(DType::i64, {4, 1}, [](size_t i) { return i * 3 % 5 % 4; });  // 0, 3, 1, 0
  for (DType dtype : {DType::f32, DType::bf16, DType::i64, DType::i32}) {
    for (int64_t inner : {16, 3}) {
      for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
        Node node;
        node.op = "scatter_nd";
        node.attrs = {{"reduction", std::string(reduction)}};
        const Tensor updates = numbers(dtype, {4, inner}, [](size_t i) { return i % 3; });
        expect_reference(kernel_of(list, "scatter_nd"), node,
                         {counted(dtype, {5, inner}), indices, updates});
        node.attrs.set("batch_dims", int64_t{1});
        expect_reference(kernel_of(list, "scatter_nd"), node,
                         {counted(dtype, {4, 4, inner}),
                          numbers(DType::i64, {4, 3, 1}, [](size_t i) { return i * 3 % 5 % 4; }),
                          numbers(dtype, {4, 3, inner}, [](size_t i) { return i % 3; })});
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
