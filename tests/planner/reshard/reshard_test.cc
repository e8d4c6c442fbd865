// Reshardings: really executed on local ranks, and checked for being the cheapest.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "exec/collective_step.h"
#include "planner/reshard/reshard_moves.h"
#include "planner/reshard/reshard_table.h"
#include "tests/collectives/ranks.h"

namespace shardrun {
namespace {

using Kind = Collective::Kind;

/// Every Sharding of `rank` dims over the mesh's axes, partial sums and those of `others` among
/// them.
std::vector<Sharding> all_shardings(const Mesh& mesh, size_t rank,
                                    const std::vector<ReduceOp>& others = {}) {
  std::vector<ReduceOp> ops{ReduceOp::sum};
  ops.insert(ops.end(), others.begin(), others.end());
  std::vector<Sharding> out{Sharding::replicated(rank)};
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    std::vector<Sharding> next;
    for (const Sharding& s : out) {
      next.push_back(s);
      for (size_t d = 0; d < rank; ++d) {
        for (size_t at = 0; at <= s.dims[d].size(); ++at) {
          Sharding cut = s;
          cut.dims[d].insert(at, axis);
          next.push_back(cut);
        }
      }
      // Sums and maxima over different axes of one value have no meaning together.
      for (ReduceOp op : ops) {
        if (!s.partial.empty() && s.partial[0].op != op) continue;
        Sharding partial = s;
        partial.partial.push_back({axis, op});
        next.push_back(partial);
      }
    }
    out = std::move(next);
  }
  return out;
}

int64_t true_value(const Shape& strides, const std::vector<int64_t>& at) {
  int64_t flat = 0;
  for (size_t d = 0; d < at.size(); ++d) flat += strides[d] * at[d];
  return 3 * flat - 20;
}

template <class F>
void for_each_element(const Box& box, F f) {
  if (is_empty(box)) return;
  std::vector<int64_t> at;
  for (const Range& r : box) at.push_back(r.begin);
  for (int64_t local = 0;; ++local) {
    f(at, local);
    size_t d = box.size();
    while (d-- > 0) {
      if (++at[d] < box[d].end()) break;
      at[d] = box[d].begin;
      if (d == 0) return;
    }
    if (box.empty()) return;
  }
}

std::vector<int> partial_axes(const Sharding& s) {
  std::vector<int> axes;
  for (const auto& p : s.partial) axes.push_back(p.axis);
  return axes;
}

/// What `rank` holds of the value in sharding s: where it is a partial sum, the group's first
/// member holds what the others leave; where it is a product, all but one hold 1 or, of an even
/// number of them, -1.
Tensor local_value(const TensorType& type, const Sharding& s, const Mesh& mesh, int64_t rank) {
  const Box box = local_box(type.shape, s, mesh, mesh.coordinates(rank));
  Tensor out({type.dtype, box_shape(box)});
  const std::vector<int64_t> group = mesh.group(rank, partial_axes(s));
  const ReduceOp op = s.partial.empty() ? ReduceOp::sum : s.partial[0].op;
  const Shape strides = row_major_strides(type.shape);
  for_each_element(box, [&](const std::vector<int64_t>& at, int64_t local) {
    const int64_t truth = true_value(strides, at);
    auto summand = [&](size_t member) { return static_cast<int64_t>(member) * 7 + (truth % 5); };
    const size_t owner = static_cast<size_t>(truth + 20) % group.size();
    int64_t mine = truth;
    if (op == ReduceOp::prod) {
      const int64_t sign = group.size() % 2 == 1 ? -1 : 1;
      mine = group[owner] == rank ? truth : sign;
    }
    for (size_t m = 1; m < group.size() && op != ReduceOp::prod; ++m) {
      const bool sum = op == ReduceOp::sum;
      if (group[0] == rank && sum) mine -= summand(m);
      if (group[m] == rank) mine = sum ? summand(m) : truth - summand(m) - 10;
    }
    out.as<int32_t>()[local] = static_cast<int32_t>(mine);
  });
  return out;
}

struct Case {
  Sharding from, to;
};

/// Runs the sequence of each case on threads and compares what all ranks then hold with the value.
void run_sequences(const Mesh& mesh, const Shape& shape, const std::vector<Case>& cases,
                   const std::vector<std::vector<ReshardStep>>& sequences) {
  const TensorType type{DType::i32, shape};
  std::vector<std::vector<int>> axis_sets;
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(sequences[i].empty() ? cases[i].from : sequences[i].back().after, cases[i].to);
    for (const ReshardStep& step : sequences[i]) {
      if (std::find(axis_sets.begin(), axis_sets.end(), step.axes) == axis_sets.end())
        axis_sets.push_back(step.axes);
    }
  }
  const auto ranks = static_cast<size_t>(mesh.size());
  std::vector<std::vector<Tensor>> held(cases.size(), std::vector<Tensor>(ranks));
  test::run_ranks(static_cast<int>(ranks), [&](Communicator& world) {
    std::map<std::vector<int>, std::unique_ptr<Communicator>> groups;
    for (const std::vector<int>& axes : axis_sets) {
      std::vector<std::vector<int>> lists;
      for (int64_t r = 0; r < mesh.size(); ++r) {
        const std::vector<int64_t> g = mesh.group(r, axes);
        if (g[0] == r) lists.emplace_back(g.begin(), g.end());
      }
      groups[axes] = world.split(lists);
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      Tensor now = local_value(type, cases[i].from, mesh, world.rank());
      Sharding before = cases[i].from;
      for (const ReshardStep& step : sequences[i]) {
        const Collective c = collective_of(step, shape, before, mesh, world.rank());
        const CollectiveStep run(c, type.dtype, world.rank());
        const size_t me = static_cast<size_t>(
            std::find(c.group.begin(), c.group.end(), world.rank()) - c.group.begin());
        Tensor next({type.dtype, box_shape(c.out_boxes[me])});
        Tensor workspace({DType::u8, {run.workspace_bytes()}});
        run.run(now.data(), next.data(), workspace.data(), groups.at(step.axes).get());
        now = next;
        before = step.after;
      }
      held[i][static_cast<size_t>(world.rank())] = now;
    }
  });
  const Shape strides = row_major_strides(shape);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Sharding& to = cases[i].to;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      const Box box = local_box(shape, to, mesh, mesh.coordinates(rank));
      for_each_element(box, [&](const std::vector<int64_t>& at, int64_t local) {
        int64_t got = 0;
        bool first = true;
        for (int64_t member : mesh.group(rank, partial_axes(to))) {
          const int64_t part = held[i][static_cast<size_t>(member)].as<int32_t>()[local];
          const ReduceOp op = to.partial.empty() ? ReduceOp::sum : to.partial[0].op;
          got = first                  ? part
                : op == ReduceOp::sum  ? got + part
                : op == ReduceOp::prod ? got * part
                                       : std::max(got, part);
          first = false;
        }
        ASSERT_EQ(got, true_value(strides, at))
            << to_string(cases[i].from, mesh) << " -> " << to_string(to, mesh) << " of "
            << to_string(shape) << " on " << mesh.to_string() << ", rank " << rank << ", element "
            << local;
      });
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void run_cases(const Mesh& mesh, const Shape& shape, const std::vector<Case>& cases,
               const Cluster& cluster) {
  std::vector<std::vector<ReshardStep>> sequences;
  for (const Case& c : cases)
    sequences.push_back(cheapest_reshard({DType::i32, shape}, c.from, c.to, mesh, cluster));
  run_sequences(mesh, shape, cases, sequences);
}

void run_all_pairs(const char* mesh_text, const Shape& shape, size_t at_most = 100000,
                   const Cluster& cluster = {}) {
  const Mesh mesh = Mesh::parse(mesh_text);
  const std::vector<Sharding> all =
      all_shardings(mesh, shape.size(), {ReduceOp::max, ReduceOp::prod});
  std::vector<Case> cases;
  for (const Sharding& from : all) {
    for (const Sharding& to : all) cases.push_back({from, to});
  }
  if (cases.size() > at_most) {
    std::mt19937 random(11);
    std::shuffle(cases.begin(), cases.end(), random);
    cases.resize(at_most);
  }
  run_cases(mesh, shape, cases, cluster);
}

TEST(Reshard, EveryPairOnOneAxis) {
  run_all_pairs("2", {5});
  run_all_pairs("2", {4, 6});
  run_all_pairs("3", {4, 5});
  run_all_pairs("4", {10, 3});    // 3,3,3,1 and 1,1,1,0
  run_all_pairs("4", {2, 3, 5});  // empty shards
}

TEST(Reshard, EveryPairOnTwoAxes) {
  run_all_pairs("2x2", {4, 6});
  run_all_pairs("2x2", {5, 3});
  run_all_pairs("2x2", {3, 2, 5}, 900);
  run_all_pairs("2x3", {7, 4}, 500);
}

TEST(Reshard, SampledOnThreeAxes) {
  run_all_pairs("2x2x2", {5, 6}, 400);
  run_all_pairs("2x2x2", {3, 4, 2}, 400);
}

ReshardState state_of(const Sharding& s) {
  ReshardState out;
  for (size_t d = 0; d < s.dims.size(); ++d) {
    for (size_t at = 0; at < s.dims[d].size(); ++at)
      out.set_cut(static_cast<size_t>(s.dims[d][at]), d, at);
  }
  for (const auto& p : s.partial) out.set_partial(static_cast<size_t>(p.axis), p.op);
  return out;
}

/// The search takes no move that is never the cheapest; here each is made by itself.
TEST(Reshard, EveryMoveByItself) {
  std::set<Kind> made;
  for (const auto& [text, shape] : {std::pair{"2", Shape{5, 3}}, {"3", {4, 5}}, {"2x3", {7, 4}}}) {
    const Mesh mesh = Mesh::parse(text);
    const auto axes = static_cast<size_t>(mesh.axis_count());
    const std::vector<Sharding> all =
        all_shardings(mesh, shape.size(), {ReduceOp::max, ReduceOp::prod});
    std::vector<Case> cases;
    std::vector<std::vector<ReshardStep>> sequences;
    for (const Sharding& from : all) {
      std::vector<ReshardMove> moves;
      reshard_moves(state_of(from), axes, shape.size(), nullptr, moves);
      for (const ReshardMove& move : moves) {
        const auto after = std::find_if(
            all.begin(), all.end(), [&](const Sharding& s) { return state_of(s) == move.after; });
        ASSERT_NE(after, all.end()) << to_string(move.kind) << " of " << to_string(from, mesh);
        cases.push_back({from, *after});
        sequences.push_back({{move.kind, move.axes.list(), static_cast<int>(move.dim),
                              static_cast<int>(move.to_dim), move.op, *after, 0}});
        made.insert(move.kind);
      }
    }
    run_sequences(mesh, shape, cases, sequences);
    if (HasFatalFailure()) return;
  }
  for (const CollectiveTraits& traits : kCollectives)
    EXPECT_EQ(made.count(traits.kind) > 0, !traits.is_exchange()) << traits.name;
}

TEST(Reshard, EmptyIfNothingChanges) {
  const Mesh mesh = Mesh::parse("2x2");
  for (const Sharding& s : all_shardings(mesh, 2)) {
    EXPECT_TRUE(cheapest_reshard({DType::f32, {4, 4}}, s, s, mesh, Cluster{}).empty());
  }
}

TEST(Reshard, PicksTheOneRightCollective) {
  const Mesh mesh = Mesh::parse("data=2,model=4");
  const TensorType type{DType::f32, {1024, 1024}};
  auto kinds = [&](const char* from, const char* to) {
    std::vector<Kind> out;
    for (const auto& s : cheapest_reshard(type, parse_sharding(from, mesh),
                                          parse_sharding(to, mesh), mesh, Cluster{})) {
      out.push_back(s.kind);
    }
    return out;
  };
  EXPECT_EQ(kinds("[-, {model}] partial(sum: data)", "[-, {model}]"),
            std::vector{Kind::all_reduce});
  // The ranks along data hold the same partial sums: each sums half, then they gather. Of 4 MB at 2
  // GB/s:
  //   all_reduce 3.2 ms > slice 0.2 ms + all_reduce of 2 MB 1.6 ms + all_gather 1.1 ms
  EXPECT_EQ(kinds("[-, -] partial(sum: model)", "[-, -]"),
            (std::vector{Kind::slice, Kind::all_reduce, Kind::all_gather}));
  EXPECT_EQ(kinds("[-, -] partial(sum: data)", "[{data}, -]"), std::vector{Kind::reduce_scatter});
  EXPECT_EQ(kinds("[{data}, -]", "[-, -]"), std::vector{Kind::all_gather});
  EXPECT_EQ(kinds("[{data}, -]", "[-, {data}]"), std::vector{Kind::all_to_all});
  EXPECT_EQ(kinds("[-, -]", "[-, {model}]"), std::vector{Kind::slice});
  EXPECT_EQ(kinds("[-, -]", "[-, -] partial(sum: model)"), std::vector{Kind::keep_first});
  // One ring of 8 sends 7 messages, a ring of 4 and one of 2 together 4, and as many bytes.
  EXPECT_EQ(kinds("[{data,model}, -]", "[-, -]"),
            (std::vector{Kind::all_gather, Kind::all_gather}));
  // Both axes at once: 7/8 of the bytes move, not 1/2 + 3/4.
  EXPECT_EQ(kinds("[{data,model}, -]", "[-, {data,model}]"), std::vector{Kind::all_to_all});
  // The part that stays is not touched.
  EXPECT_EQ(kinds("[{data}, -] partial(sum: model)", "[{data}, -]"), std::vector{Kind::all_reduce});
}

TEST(Reshard, CostsFollowTheRingFormulas) {
  const Mesh mesh = Mesh::parse("a=4");
  Cluster cluster;
  cluster.within = {.bandwidth = 1e9, .latency = 1e-5};
  cluster.memory_bandwidth = {1e10};
  cluster.kernel_latency = 1e-6;
  const TensorType type{DType::f32, {1000, 8}};  // 32000 bytes whole
  const Sharding whole = Sharding::replicated(2), cut = parse_sharding("[{a}, -]", mesh),
                 partial = parse_sharding("[-, -] partial(sum: a)", mesh),
                 across = parse_sharding("[-, {a}]", mesh);
  auto seconds = [&](const Sharding& from, const Sharding& to) {
    return reshard_seconds(cheapest_reshard(type, from, to, mesh, cluster));
  };
  EXPECT_NEAR(seconds(cut, whole), 3e-5 + 0.75 * 32000 / 1e9, 1e-12);
  EXPECT_NEAR(seconds(partial, cut), 3e-5 + 0.75 * 32000 / 1e9, 1e-12);
  EXPECT_NEAR(seconds(partial, whole), 6e-5 + 1.5 * 32000 / 1e9, 1e-12);
  EXPECT_NEAR(seconds(cut, across), 3e-5 + 0.75 * 8000 / 1e9 + 1e-6 + 2 * 8000 / 1e10, 1e-12);
  EXPECT_NEAR(seconds(whole, cut), 1e-6 + 16000 / 1e10, 1e-12);  // read and written
  // Columns have to be packed: before an all_to_all the rows go apart, behind an all_gather each
  // rank's columns come into their rows.
  const double pack = 1e-6 + 2 * 32000 / 1e10;
  EXPECT_NEAR(seconds(across, whole), 3e-5 + 0.75 * 32000 / 1e9 + pack, 1e-12);
  EXPECT_NEAR(seconds(partial, across), 3e-5 + 0.75 * 32000 / 1e9 + pack, 1e-12);
}

/// No detour is cheaper: cost(from, to) <= cost(from, middle) + cost(middle, to) for every middle.
TEST(Reshard, NoDetourIsCheaper) {
  const Mesh mesh = Mesh::parse("a=2,b=3");
  for (const Shape& shape : {Shape{6, 4}, Shape{4096, 512}}) {
    for (const bool fast_b : {false, true}) {
      Cluster cluster;
      cluster.within = {.bandwidth = fast_b ? 1e11 : 1e9, .latency = 1e-5};
      cluster.between = {.bandwidth = 1e9, .latency = 1e-5};
      cluster.nodes = 2;
      cluster.devices = 3;
      const TensorType type{DType::f32, shape};
      const std::vector<Sharding> all = all_shardings(mesh, 2);
      std::vector<std::vector<double>> cost;
      for (const Sharding& from : all) {
        cost.emplace_back();
        for (const Sharding& to : all)
          cost.back().push_back(reshard_seconds(cheapest_reshard(type, from, to, mesh, cluster)));
      }
      for (size_t i = 0; i < all.size(); ++i) {
        for (size_t j = 0; j < all.size(); ++j) {
          for (size_t k = 0; k < all.size(); ++k) {
            EXPECT_LE(cost[i][j], cost[i][k] + cost[k][j] + 1e-12)
                << to_string(all[i], mesh) << " -> " << to_string(all[j], mesh) << " by way of "
                << to_string(all[k], mesh);
          }
        }
      }
    }
  }
}

/// Two dims that are cut over two axes each come together in one call, where a call costs more than
/// the longer way around one ring: a group of 4 takes 3 steps, two of 2 take 2.
TEST(Reshard, GathersSeveralDimsAtOnce) {
  const Mesh mesh = Mesh::parse("a=2,b=2");
  const TensorType type{DType::f32, {64, 32}};
  const Sharding from = parse_sharding("[{a}, {b}]", mesh), whole = Sharding::replicated(2);
  Cluster cluster;
  cluster.within = {.bandwidth = 1e9, .latency = 1e-6, .call_latency = 2e-5};
  cluster.memory_bandwidth = {1e11};
  const auto once = cheapest_reshard(type, from, whole, mesh, cluster);
  ASSERT_EQ(once.size(), 1u);
  EXPECT_EQ(once[0].kind, Kind::all_gather);
  EXPECT_EQ(once[0].axes, (std::vector<int>{0, 1}));
  const double copied = cluster.kernel_latency + 2 * 8192 / 1e11;
  EXPECT_NEAR(once[0].seconds, 2e-5 + 3e-6 + 0.75 * 8192 / 1e9 + copied, 1e-12);
  cluster.within.call_latency = 0;
  const auto twice = cheapest_reshard(type, from, whole, mesh, cluster);
  ASSERT_EQ(twice.size(), 2u);
  int64_t sent_once = 0, sent_twice = 0;
  const Collective gather = collective_of(once[0], type.shape, from, mesh, 3);
  EXPECT_EQ(to_string(gather, mesh, 3), "all_gather{axes=a,b dim=0,1}");
  sent_once = bytes_sent(gather, type.dtype, 3);
  Sharding before = from;
  for (const ReshardStep& step : twice) {
    sent_twice += bytes_sent(collective_of(step, type.shape, before, mesh, 3), type.dtype, 3);
    before = step.after;
  }
  EXPECT_EQ(sent_once, 3 * 16 * 32 * 4);
  EXPECT_EQ(sent_twice, sent_once);
}

/// Every pair again, where calls are so expensive that as few as possible are made.
TEST(Reshard, EveryPairWithExpensiveCalls) {
  Cluster cluster;
  cluster.within.call_latency = 1e-3;
  run_all_pairs("2x2", {4, 6}, 100000, cluster);
  run_all_pairs("2x2", {5, 3}, 100000, cluster);
  run_all_pairs("2x2", {2, 2, 3}, 900, cluster);  // what comes together in front of a dim is 2 long
  run_all_pairs("2x3", {7, 4}, 500, cluster);
  run_all_pairs("2x2x2", {3, 4, 2}, 400, cluster);
  run_all_pairs("2x2x2", {5, 6}, 400, cluster);
}

// The planner's edges are priced by tables, the program's collectives by single searches.
TEST(Reshard, TablesAgreeWithSearches) {
  Cluster nodes = host_cluster();
  nodes.nodes = 4;
  nodes.devices = 4;
  nodes.within = {200e9, 2e-6};
  nodes.between = {20e9, 9e-6};
  const std::vector<std::pair<const char*, std::vector<Shape>>> cases = {
      {"2", {{4}, {5, 1}}},
      {"4x4", {{64, 64}, {64, 16}, {10, 7, 1}}},
      {"2x2x4", {{64, 64}, {16, 32, 48}, {48, 16, 32}, {5, 9}, {2, 2, 64}, {3, 1, 40, 6}}},
      {"1x2x4", {{8, 12}}},
      {"2x2x2x2", {{16, 8}}}};
  std::mt19937 random(5);
  for (const auto& [text, shapes] : cases) {
    const Mesh mesh = Mesh::parse(text);
    ReshardTimes times(mesh, nodes);
    for (const Shape& shape : shapes) {
      for (const auto& [dtype, price] : {std::pair(DType::f32, SumPrice{}),
                                         {DType::bf16, SumPrice{}},
                                         {DType::f32, SumPrice{5e6, 1}},
                                         {DType::bf16, SumPrice{0, 0.25}}}) {
        const TensorType type{dtype, shape};
        const std::vector<Sharding> all =
            all_shardings(mesh, shape.size(), {ReduceOp::max, ReduceOp::prod});
        const int number = times.number_of(type, price);
        for (int i = 0; i < 300; ++i) {
          const Sharding &from = all[random() % all.size()], &to = all[random() % all.size()];
          const int a = times.number_of(from), b = times.number_of(to);
          const double want = reshard_seconds(times.steps(number, a, b));
          EXPECT_NEAR(times.seconds(number, a, b), want, 1e-6 * want)  // single precision
              << type << " " << to_string(from, mesh) << " to " << to_string(to, mesh);
          if (price == SumPrice{} || from.partial.empty()) {
            EXPECT_EQ(want, reshard_seconds(cheapest_reshard(type, from, to, mesh, nodes)));
          }
        }
      }
    }
  }
}

// Matrices of as many elements, of which no cut leaves one alone, and all pairs from one Sharding,
// are one search.
TEST(Reshard, TablesAreShared) {
  const Mesh mesh = Mesh::parse("2x4");
  const Cluster cluster = host_cluster();
  ReshardTimes times(mesh, cluster);
  const int tall = times.number_of(TensorType{DType::f32, {64, 16}}),
            wide = times.number_of(TensorType{DType::f32, {16, 64}});
  const int rows = times.number_of(Sharding{{{0}, {}}, {}});
  for (const Sharding& s : all_shardings(mesh, 2)) {
    times.seconds(tall, rows, times.number_of(s));
    times.seconds(wide, rows, times.number_of(s));
  }
  EXPECT_EQ(times.searches(), 1u);
}

// So are those from one sum, and to cuts of what has one element left.
TEST(Reshard, TablesHoldSumsAndEmptyShards) {
  const Mesh mesh = Mesh::parse("2x2x2");
  const Cluster cluster = host_cluster();
  ReshardTimes times(mesh, cluster);
  const int gradient = times.number_of(TensorType{DType::f32, {2, 64}}, SumPrice{1e6, 1});
  const int sum = times.number_of(Sharding{{{}, {}}, {{0, ReduceOp::sum}}});
  for (const Sharding& s : all_shardings(mesh, 2)) times.seconds(gradient, sum, times.number_of(s));
  EXPECT_EQ(times.searches(), 1u);
}

TEST(Reshard, ManyAxesStillArrive) {
  const Mesh mesh = Mesh::parse("2x2x2x2x2x2x2x2x2x2");
  Sharding from = Sharding::replicated(2), to = from;
  for (int axis = 0; axis < 10; ++axis) {
    from.dims[0].push_back(axis);
    to.dims[1].insert(0, axis);
  }
  const auto steps = cheapest_reshard({DType::f32, {2048, 2048}}, from, to, mesh, Cluster{});
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.back().after, to);
}

}  // namespace
}  // namespace shardrun
