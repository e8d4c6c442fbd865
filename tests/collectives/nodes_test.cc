// Calls of ranks on several nodes, under a real mpirun: ranks of this machine pretend to be on
// nodes of two or three. What passes between nodes is counted where MPI is given it.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/collectives/cases.h"
#include "tests/collectives/in_shared_memory.h"
#include "tests/collectives/mpi_main.h"

namespace {

int ranks_per_node = 0;
int64_t bytes_out = 0, messages_out = 0;  // that this rank sends to other nodes

int world_rank_of(MPI_Comm comm, int rank) {
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(comm, &group);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  int out = 0;
  MPI_Group_translate_ranks(group, 1, &rank, world, &out);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return out;
}

}  // namespace

// In front of MPI's own (its profiling interface).
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  int own = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  if (ranks_per_node > 0 && world_rank_of(comm, to) / ranks_per_node != own / ranks_per_node) {
    bytes_out += count;
    ++messages_out;
  }
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace shardrun::test {
namespace {

/// Nodes of two and of three ranks, the last one perhaps smaller.
class Nodes : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (mpi_world().size() <= GetParam()) GTEST_SKIP() << "needs two nodes";
    world = make_mpi_communicator(GetParam());
    world->set_timeout(30);
  }
  void TearDown() override {
    ranks_per_node = 0;
    mpi_world().barrier();
  }

  struct Traffic {
    std::vector<int64_t> bytes;  // that each node sends to others
    int64_t messages = 0;        // of all ranks
  };
  /// On memory of `bytes` that the node's ranks share.
  Traffic traffic(int64_t bytes, const std::function<void(char* memory)>& call) {
    const Memory memory = world->allocate(bytes);
    EXPECT_EQ(memory.why_private, "");
    std::fill_n(memory.data.get(), bytes, 0);
    world->barrier();
    bytes_out = messages_out = 0;
    ranks_per_node = GetParam();
    call(memory.data.get());
    ranks_per_node = 0;
    std::vector<int64_t> all(2 * static_cast<size_t>(world->size()));
    const int64_t own[] = {bytes_out, messages_out};
    world->all_gather(own, all.data(), std::vector<int64_t>(static_cast<size_t>(world->size()), 2),
                      DType::i64);
    Traffic out;
    out.bytes.resize(static_cast<size_t>((world->size() - 1) / GetParam() + 1));
    for (int r = 0; r < world->size(); ++r) {
      out.bytes[static_cast<size_t>(r / GetParam())] += all[static_cast<size_t>(2 * r)];
      out.messages += all[static_cast<size_t>(2 * r + 1)];
    }
    return out;
  }

  /// What each node's ranks have of `counts`.
  std::vector<int64_t> by_node(const std::vector<int64_t>& counts) const {
    std::vector<int64_t> out((counts.size() - 1) / static_cast<size_t>(GetParam()) + 1);
    for (size_t r = 0; r < counts.size(); ++r)
      out[r / static_cast<size_t>(GetParam())] += counts[r];
    return out;
  }

  /// Equal parts; uneven ones, of which rank 1 has none.
  std::vector<std::vector<int64_t>> parts() const {
    const auto n = static_cast<size_t>(world->size());
    std::vector<std::vector<int64_t>> out(2, std::vector<int64_t>(n, 100001));
    for (size_t r = 0; r < n; ++r) out[1][r] = r == 1 ? 0 : 100001 + 3 * static_cast<int64_t>(r);
    return out;
  }

  std::unique_ptr<Communicator> world;
};

constexpr int64_t kNothingElse = 64;  // bytes with which nodes agree that a call goes this way

TEST_P(Nodes, DoWhatEveryCommunicatorDoes) {
  InSharedMemory shared(*world, int64_t{20} << 20);
  for (const Case& test : communicator_cases()) {
    SCOPED_TRACE(test.name);
    // Behind a call that was given up, the memory of a node's ranks is of no use.
    const bool gives_up =
        test.name == "timeout_names_the_missing_rank" || test.name.starts_with("absent_in_");
    if (!gives_up) test.run(shared);
  }
}

TEST_P(Nodes, GatherOnceForAllOfANodesRanks) {
  for (const std::vector<int64_t>& counts : parts()) {
    const int64_t all = std::reduce(counts.begin(), counts.end());
    const int64_t own = counts[static_cast<size_t>(world->rank())];
    const Traffic out = traffic((own + all) * 4, [&](char* memory) {
      world->all_gather(memory, memory + own * 4, counts, DType::f32);
    });
    const std::vector<int64_t> held = by_node(counts);
    for (size_t n = 0; n < held.size(); ++n) {
      const int64_t want = held[n] * 4 * (std::ssize(held) - 1);
      EXPECT_GE(out.bytes[n], want) << "node " << n;
      EXPECT_LE(out.bytes[n], want + kNothingElse) << "node " << n;
    }
  }
}

TEST_P(Nodes, PassSumsOnceForAllOfANodesRanks) {
  for (const std::vector<int64_t>& counts : parts()) {
    const int64_t all = std::reduce(counts.begin(), counts.end());
    const int64_t own = counts[static_cast<size_t>(world->rank())];
    std::vector<char> staging(
        static_cast<size_t>(world->reduce_scatter_staging(counts, DType::f32)));
    const Traffic out = traffic((own + all) * 4, [&](char* memory) {
      world->reduce_scatter(memory, memory + all * 4, counts, DType::f32, Reduction::sum,
                            staging.data());
    });
    // All nodes pass on sums of everything, but the last, which sends the others theirs. Where the
    // busiest node of few ranks sends less so, each rank sends its contributions itself.
    const std::vector<int64_t> held = by_node(counts);
    const std::vector<int64_t> ranks = by_node(std::vector<int64_t>(counts.size(), 1));
    std::vector<int64_t> passed(held.size(), all), contributed;
    passed.back() = all - held.back();
    for (size_t n = 0; n < held.size(); ++n) contributed.push_back(ranks[n] * (all - held[n]));
    const bool passes = all <= *std::max_element(contributed.begin(), contributed.end());
    EXPECT_TRUE(passes || ranks.front() != ranks.back());
    for (size_t n = 0; n < held.size(); ++n) {
      const int64_t want = (passes ? passed : contributed)[n] * 4;
      EXPECT_GE(out.bytes[n], want) << "node " << n;
      EXPECT_LE(out.bytes[n], want + kNothingElse) << "node " << n;
    }
  }
}

/// Sums of bf16 travel as f32: where two ranks a node would send less by themselves, they do.
TEST_P(Nodes, SendContributionsWhereTheyAreLess) {
  if (world->size() != 4 || GetParam() != 2) GTEST_SKIP() << "needs two nodes of two";
  const std::vector<int64_t> counts(4, 100000);
  std::vector<char> staging(
      static_cast<size_t>(world->reduce_scatter_staging(counts, DType::bf16)));
  const Traffic out = traffic(500000 * 2, [&](char* memory) {
    world->reduce_scatter(memory, memory + 400000 * 2, counts, DType::bf16, Reduction::sum,
                          staging.data());
  });
  EXPECT_EQ(out.bytes, (std::vector<int64_t>{800000, 800000}));
}

TEST_P(Nodes, SendWhatIsSmallAtOnce) {
  const std::vector<int64_t> counts(static_cast<size_t>(world->size()), 100);
  const Traffic out = traffic((world->size() + 1) * 400, [&](char* memory) {
    world->all_gather(memory, memory + 400, counts, DType::f32);
  });
  int64_t pairs = 0;
  for (int r = 0; r < world->size(); ++r) {
    for (int to = 0; to < world->size(); ++to) pairs += r / GetParam() != to / GetParam() ? 1 : 0;
  }
  EXPECT_EQ(out.messages, pairs);
}

/// One rank of a node speaks for it, so where the smallest node has one, what messages would pass
/// through stays as it is on all others.
TEST_P(Nodes, ReduceWhereBuffersLie) {
  const int64_t count = 60000;
  const Memory memory = world->allocate(count * 4);
  ASSERT_EQ(memory.why_private, "");
  const auto tail = static_cast<size_t>(world->all_reduce_staging(count, DType::f32));
  std::vector<char> staging(tail, 0x5a);
  float* data = reinterpret_cast<float*>(memory.data.get());
  std::fill_n(data, count, 1.0f);
  world->all_reduce(data, count, DType::f32, Reduction::sum, staging.data());
  EXPECT_EQ(std::count(data, data + count, static_cast<float>(world->size())), count);
  if (world->size() % GetParam() == 1 && world->rank() == 1) {
    EXPECT_EQ(std::count(staging.begin(), staging.end(), 0x5a), std::ptrdiff_t(tail));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Nodes, testing::Values(2, 3));

}  // namespace
}  // namespace shardrun::test
