// Exchanges against the elements that each rank should have, which every rank can tell for itself.
#include "tests/exec/exchange_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "exec/collective_step.h"
#include "graph/node_exchanges.h"
#include "planner/rules/numbered_rows.h"
#include "planner/rules/trial.h"

namespace shardrun::test {
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
  for (const Range& block : std::get<MemberBlocks>(c.payload)[me]) {
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
  if (!exchange) return;  // shards are what is wanted, on all ranks alike
  const Collective& collective = *exchange;
  const TensorType type{c.dtype, (c.result ? c.out : c.in)[0]};
  std::vector<std::vector<int>> groups;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> members = mesh.group(rank, collective.axes);
    if (members.front() == rank) groups.emplace_back(members.begin(), members.end());
  }
  const std::unique_ptr<Communicator> group = world.split(groups);
  const CollectiveStep step(collective, c.dtype, world.rank());
  EXPECT_FALSE(collective.traits().local);
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

/// A table and a sum of one shape, whose rows the numbers [n] in operand 1 name.
struct RowCase {
  NodePlan plan;
  Shape shape;
  Tensor numbers;  // of all ranks
  DType dtype = DType::f32;
};

RowCase random_rows(const Mesh& mesh, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  RowCase c;
  const DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::i64};
  c.dtype = dtypes[below(4)];
  const auto rank = static_cast<size_t>(1 + below(3));
  for (size_t d = 0; d < rank; ++d) c.shape.push_back(1 + below(9));
  Sharding table = Sharding::replicated(rank), numbers = Sharding::replicated(1);
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    if (axis == 0 || rank == 1 || below(2) == 0) {
      table.dims[0].push_back(axis);
      numbers.dims[0].push_back(axis);
    } else {
      table.dims[1].push_back(axis);
    }
  }
  std::vector<int64_t> values(static_cast<size_t>(below(3 * mesh.size()) + below(2)));
  for (int64_t& v : values) v = below(c.shape[0] + 2) - 1;  // some name nothing
  c.numbers = Tensor::vector_i64(values);
  if (below(2) == 0) c.numbers = convert(c.numbers, DType::i32);
  const ReduceOp ops[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};
  c.plan.in = {table, numbers};
  c.plan.out = {table};
  c.plan.rows = {{{false, 0, 0}, {false, 1, 0}, ReduceOp::sum, 0, 0},
                 {{true, 0, 0}, {false, 1, 0}, ops[below(3)], 0, 0}};
  return c;
}

Tensor part(const Tensor& whole, const Sharding& sharding, const Mesh& mesh, int64_t rank) {
  return cut_tensor(whole, local_box(whole.shape(), sharding, mesh, mesh.coordinates(rank)));
}

/// Runs a step with its workspace, behind which everything must stay.
void run_step(const CollectiveStep& step, const std::vector<Tensor>& in,
              const std::vector<Tensor>& out, Communicator& group) {
  EXPECT_EQ(step.workspace_bytes() % kArenaAlignment, 0);
  std::vector<TensorView> from, to;
  for (const Tensor& t : in) from.push_back(t.view());
  for (const Tensor& t : out) to.push_back(t.view());
  std::vector<char> workspace(static_cast<size_t>(step.workspace_bytes()) + 64, '\x5a');
  step.run(from, to, workspace.data(), &group);
  for (size_t i = workspace.size() - 64; i < workspace.size(); ++i)
    ASSERT_EQ(workspace[i], '\x5a') << "behind the workspace";
}

/// What a rank makes of row `row`: element k of it.
double made_at(int64_t row, int64_t k, int64_t rank) { return value_at(row * 5 + k, rank); }

void check_rows(RowCase c, const Mesh& mesh, Communicator& world, int64_t& moved) {
  const TensorType type{c.dtype, c.shape};
  const std::vector<TensorType> in = {type, c.numbers.type()}, out = {type};
  const std::vector<Shape> in_shapes = {c.shape, c.numbers.shape()}, out_shapes = {c.shape};
  count_rows(c.numbers, in, out, mesh, c.plan);
  ASSERT_NO_THROW(check_node_plan(c.plan, in_shapes, out_shapes, mesh));
  const Collective route = *route_of(c.plan, in_shapes, out_shapes, mesh, world.rank());
  std::vector<std::vector<int>> groups;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> members = mesh.group(rank, route.axes);
    if (members.front() == rank) groups.emplace_back(members.begin(), members.end());
  }
  const std::unique_ptr<Communicator> group = world.split(groups);
  const Tensor numbers = part(c.numbers, c.plan.in[1], mesh, world.rank());
  const Tensor renumbered(numbers.type()), routing({DType::i64, {routing_size(route)}});
  run_step(CollectiveStep(route, numbers.dtype(), world.rank()), {numbers}, {renumbered, routing},
           *group);
  if (testing::Test::HasFatalFailure()) return;

  const NodeBoxes boxes =
      node_boxes(c.plan, in_shapes, out_shapes, mesh, mesh.coordinates(world.rank()));
  const Box shard = local_box(c.shape, c.plan.in[0], mesh, mesh.coordinates(world.rank()));
  EXPECT_EQ(boxes.in[0], boxes.out[0]);
  Tensor table({c.dtype, box_shape(boxes.in[0])});
  const auto fetch = exchange_of(c.plan, in_shapes, out_shapes, false, 0, mesh, world.rank());
  const Tensor held = cut_tensor(filled(type, 0), shard);
  if (fetch) {
    moved += c.plan.rows[0].most_named;
    run_step(CollectiveStep(*fetch, c.dtype, world.rank()), {held, routing}, {table}, *group);
  } else {
    table = held;
  }
  if (testing::Test::HasFatalFailure()) return;
  const auto where = [&] {
    return str(" of ", type, " on mesh ", mesh.to_string(), ", ", to_string(c.plan, false, 0, mesh),
               ", rank ", world.rank(), ", seed ", kSeed);
  };
  // A gather by the new numbers finds what one by the old numbers finds in the whole table.
  const Tensor whole = cut_tensor(filled(type, 0), [&] {
    Box box = shard;
    box[0] = {0, c.shape[0]};
    return box;
  }());
  const int64_t width = c.shape[0] == 0 ? 0 : whole.count() / c.shape[0];
  for (int64_t i = 0; i < numbers.count(); ++i) {
    const int64_t row = numbers.int_at(i), place = renumbered.int_at(i);
    if (row < 0 || row >= c.shape[0]) {
      ASSERT_TRUE(place < 0 || place >= table.shape()[0]) << "number " << row << where();
      continue;
    }
    for (int64_t k = 0; k < width; ++k)
      ASSERT_EQ(table.at(place * width + k), whole.at(row * width + k)) << "row " << row << where();
  }

  // Every rank makes its own rows and those that it names.
  std::vector<double> made(static_cast<size_t>(table.count()), 77);  // 77: of no one
  for (int64_t row = shard[0].begin; row < shard[0].end(); ++row) {
    for (int64_t k = 0; k < width; ++k)
      made[static_cast<size_t>((row - shard[0].begin) * width + k)] = made_at(row, k, world.rank());
  }
  for (int64_t i = 0; i < numbers.count(); ++i) {
    const int64_t row = numbers.int_at(i);
    if (row < 0 || row >= c.shape[0]) continue;
    for (int64_t k = 0; k < width; ++k)
      made[static_cast<size_t>(renumbered.int_at(i) * width + k)] = made_at(row, k, world.rank());
  }
  const Tensor mine = convert(Tensor::from(table.shape(), made, DType::f64), c.dtype);
  Tensor got({c.dtype, box_shape(shard)});
  const auto add = exchange_of(c.plan, in_shapes, out_shapes, true, 0, mesh, world.rank());
  EXPECT_EQ(add.has_value(), fetch.has_value());
  if (add) {
    run_step(CollectiveStep(*add, c.dtype, world.rank()), {mine, routing}, {got}, *group);
  } else {
    got = mine;
  }
  if (testing::Test::HasFatalFailure()) return;
  for (int64_t row = shard[0].begin; row < shard[0].end(); ++row) {
    for (int64_t k = 0; k < width; ++k) {
      std::optional<double> want;
      for (int64_t member : route.group) {
        const std::vector<int64_t> theirs = part(c.numbers, c.plan.in[1], mesh, member).to_ints();
        const bool names = std::find(theirs.begin(), theirs.end(), row) != theirs.end();
        if (member != world.rank() && !names) continue;
        const double term = made_at(row, k, member);
        const ReduceOp op = c.plan.rows[1].op;
        want = !want                 ? term
               : op == ReduceOp::sum ? *want + term
               : op == ReduceOp::max ? std::max(*want, term)
                                     : std::min(*want, term);
      }
      ASSERT_EQ(got.at((row - shard[0].begin) * width + k), *want) << "row " << row << where();
    }
  }
}

}  // namespace

void check_row_exchanges(Communicator& world) {
  if (world.rank() == 0) std::printf("seed %u\n", kSeed);
  for (const Mesh& mesh : meshes_of(world.size())) {
    std::mt19937 random(kSeed);
    int64_t moved = 0;
    for (int i = 0; i < kCases; ++i) {
      check_rows(random_rows(mesh, random), mesh, world, moved);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(moved > 0 || world.size() == 1);
  }
}

void check_exchanges(Communicator& world) {
  if (world.rank() == 0) std::printf("seed %u\n", kSeed);
  for (const Mesh& mesh : meshes_of(world.size())) {
    std::mt19937 random(kSeed);
    int64_t moved = 0;
    for (int i = 0; i < kCases; ++i) {
      check_case(random_case(mesh, random), mesh, world, moved);
      if (i % 3 == 0) check_case(random_blocks(mesh, random), mesh, world, moved);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(moved > 0 || world.size() == 1);
  }
}

}  // namespace shardrun::test
