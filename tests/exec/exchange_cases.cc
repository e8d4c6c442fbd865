// Exchanges against the elements that each rank should have, which every rank can tell for itself.
#include "tests/exec/exchange_cases.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "exec/collective_step.h"
#include "planner/halo.h"
#include "planner/trial.h"

namespace shardrun::testing {
namespace {

constexpr uint32_t kSeed = 411;
constexpr int kCases = 60;  // per mesh

std::vector<Mesh> meshes_of(int ranks) {
  std::vector<Mesh> out;
  for (int a = 1; a <= ranks; ++a) {
    if (ranks % a != 0) continue;
    const int b = ranks / a;
    if (a > 1 && b > 1) out.emplace_back(std::vector<Mesh::Axis>{{"a", a}, {"b", b}});
  }
  out.emplace_back(std::vector<Mesh::Axis>{{"a", ranks}});
  if (ranks == 8) out.push_back(Mesh::parse("2x2x2"));
  return out;
}

struct Case {
  NodePlan plan;
  std::vector<Shape> in, out;
  bool result = false;
  DType dtype = DType::f64;
};

/// One operand, one result, of equal rank; each mesh axis cuts one dim of both. The dims of one are
/// in windows of the other's.
Case random_case(const Mesh& mesh, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  Case c;
  const DType dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::i64, DType::u8};
  c.dtype = dtypes[below(5)];
  const auto rank = static_cast<size_t>(1 + below(3));
  Shape anchor, other;
  for (size_t d = 0; d < rank; ++d) {
    anchor.push_back(below(12));  // 0 among them
    other.push_back(1 + below(12));
  }
  NodePlan& plan = c.plan;
  plan.in = {Sharding::replicated(rank)};
  plan.out = {Sharding::replicated(rank)};
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    const auto d = static_cast<size_t>(below(static_cast<int64_t>(rank)));
    plan.in[0].dims[d].push_back(axis);
    plan.out[0].dims[d].push_back(axis);
  }
  c.result = below(2) == 0;
  for (size_t d = 0; d < rank; ++d) {
    if (plan.in[0].dims[d].empty()) {
      anchor[d] = other[d];
      continue;
    }
    const int dim = static_cast<int>(d);
    const HaloWindow window{1 + below(3), 1 + below(3), below(9) - 6, below(9) - 2};
    plan.halos.push_back({{c.result, 0, dim}, {!c.result, 0, dim}, window});
  }
  c.in = {c.result ? anchor : other};
  c.out = {c.result ? other : anchor};
  return c;
}

/// [x0 | x1 | x0 …] along one dim.
Case random_blocks(const Mesh& mesh, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  Case c;
  const auto rank = static_cast<size_t>(1 + below(3)),
             dim = static_cast<size_t>(below(static_cast<int64_t>(rank)));
  Shape base;
  for (size_t d = 0; d < rank; ++d) base.push_back(1 + below(4));
  const int64_t operands = 1 + below(3);
  Sharding s = Sharding::replicated(rank);
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    const bool blocks = axis == 0 || below(2) == 0;
    s.dims[blocks ? dim : static_cast<size_t>(below(static_cast<int64_t>(rank)))].push_back(axis);
  }
  for (int64_t i = 0; i < operands; ++i) {
    Shape shape = base;
    shape[dim] = below(9);
    c.in.push_back(shape);
    c.plan.in.push_back(s);
  }
  Blocks blocks{{true, 0, static_cast<int>(dim)}, {}};
  Shape out = base;
  out[dim] = 0;
  for (int64_t k = 0; k < operands + below(3); ++k) {
    const int of = static_cast<int>(k < operands ? k : below(operands));
    blocks.of.push_back({false, of, static_cast<int>(dim)});
    out[dim] += c.in[static_cast<size_t>(of)][dim];
  }
  c.out = {out};
  c.plan.out = {s};
  c.plan.blocks = {blocks};
  c.result = true;
  return c;
}

/// Small whole numbers, exact in every dtype, and so are their sums.
double value_at(int64_t index, int64_t rank) {
  return static_cast<double>((index * 7 + rank * 3) % 11);
}

Tensor filled(const TensorType& type, int64_t rank) {
  std::vector<double> values(static_cast<size_t>(element_count(type.shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(static_cast<int64_t>(i), rank);
  return convert(Tensor::from(type.shape, values, DType::f64), type.dtype);
}

Tensor expected(const Collective& c, const TensorType& type, size_t me) {
  if (c.kind != Collective::Kind::halo_add) return cut_tensor(filled(type, 0), c.out_boxes[me]);
  Tensor sum({DType::f64, type.shape});
  for (size_t m = 0; m < c.group.size(); ++m) {
    Tensor placed({DType::f64, type.shape});
    const Tensor theirs = convert(filled(type, c.group[m]), DType::f64);
    copy_box(theirs.data(), full_box(type.shape), placed.data(), full_box(type.shape),
             c.in_boxes[m], size_of(DType::f64));
    for (int64_t i = 0; i < sum.count(); ++i) sum.as<double>()[i] += placed.as<double>()[i];
  }
  return cut_tensor(convert(sum, type.dtype), c.out_boxes[me]);
}

/// This rank's tensor before the exchange.
Tensor held(const Collective& c, const TensorType& type, size_t me) {
  const int64_t rank = c.kind == Collective::Kind::halo_add ? c.group[me] : 0;
  const Tensor whole = filled(type, rank);
  if (c.kind != Collective::Kind::block_exchange) return cut_tensor(whole, c.in_boxes[me]);
  Tensor out({type.dtype, box_shape(c.in_boxes[me])});
  int64_t row = 0;
  for (const Range& block : c.in_blocks[me]) {
    Box local = c.in_boxes[me], region = c.in_boxes[me];
    local[static_cast<size_t>(c.dim)].begin = block.begin - row;
    region[static_cast<size_t>(c.dim)] = block;
    copy_box(whole.data(), full_box(type.shape), out.data(), local, region, size_of(type.dtype));
    row += block.size;
  }
  return out;
}

void check_case(const Case& c, const Mesh& mesh, Communicator& world, int64_t& moved) {
  ASSERT_NO_THROW(check_node_plan(c.plan, c.in, c.out, mesh));
  const auto exchange = exchange_of(c.plan, c.in, c.out, c.result, 0, mesh, world.rank());
  if (!exchange) return;  // chunks are what is wanted, on all ranks alike
  const Collective& collective = *exchange;
  const TensorType type{c.dtype, (c.result ? c.out : c.in)[0]};
  std::vector<std::vector<int>> groups;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> members = mesh.group(rank, collective.axes);
    if (members.front() == rank) groups.emplace_back(members.begin(), members.end());
  }
  const std::unique_ptr<Communicator> group = world.split(groups);
  const CollectiveStep step(collective, c.dtype, world.rank());
  EXPECT_FALSE(step.is_local());
  EXPECT_EQ(step.workspace_bytes() % kArenaAlignment, 0);
  moved += step.workspace_bytes();
  const auto me = static_cast<size_t>(group->rank());
  const Tensor in = held(collective, type, me);
  Tensor out({c.dtype, box_shape(collective.out_boxes[me])});
  if (out.count() > 0) std::memset(out.data(), 0xcd, static_cast<size_t>(byte_size(out.type())));
  // What lies behind the workspace must stay.
  std::vector<char> workspace(static_cast<size_t>(step.workspace_bytes()) + 64, '\x5a');
  step.run(in.data(), out.data(), workspace.data(), group.get());
  for (size_t i = workspace.size() - 64; i < workspace.size(); ++i)
    ASSERT_EQ(workspace[i], '\x5a') << "behind the workspace";
  const Tensor want = expected(collective, type, me);
  ASSERT_TRUE(same_values(out, want, 0))
      << to_string(collective.kind) << " of " << type << " on mesh " << mesh.to_string() << ", "
      << to_string(c.plan, c.result, 0, mesh) << ", rank " << world.rank() << ", seed " << kSeed;
}

}  // namespace

void check_exchanges(Communicator& world) {
  if (world.rank() == 0) std::printf("seed %u\n", kSeed);
  for (const Mesh& mesh : meshes_of(world.size())) {
    std::mt19937 random(kSeed);
    int64_t moved = 0;
    for (int i = 0; i < kCases; ++i) {
      check_case(random_case(mesh, random), mesh, world, moved);
      if (i % 3 == 0) check_case(random_blocks(mesh, random), mesh, world, moved);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(moved > 0 || world.size() == 1);
  }
}

}  // namespace shardrun::testing
