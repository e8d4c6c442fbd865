// main of the MPI tests: every rank runs every test; rank 0 prints as usual, the others only their
// failures, and any failure ends the job with status 1.
#include "tests/collectives/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string>

namespace shardrun::test {

std::unique_ptr<Communicator> world;

namespace {

/// Failures with the rank in front, one write each so that ranks' lines do not mix.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  /// GoogleTest does not say later which test runs: it holds its lock while it tells of a failure.
  void OnTestStart(const testing::TestInfo& info) override {
    test_ = std::string(info.test_suite_name()) + "." + info.name() + " ";
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ostringstream out;
    out << "[rank " << rank_ << "] " << test_
        << (result.file_name() != nullptr ? result.file_name() : "?") << ":" << result.line_number()
        << ": " << result.summary() << "\n";
    std::fputs(out.str().c_str(), stderr);
    std::fflush(stderr);
  }

 private:
  int rank_;
  std::string test_;
};

}  // namespace

Communicator& mpi_world() { return *world; }

}  // namespace shardrun::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    shardrun::test::world = shardrun::make_mpi_communicator();
  } catch (const shardrun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  shardrun::Communicator& world = *shardrun::test::world;
  world.set_timeout(30);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new shardrun::test::FailurePrinter(world.rank()));
  }
  const int failed = RUN_ALL_TESTS();
  if (failed != 0) {
    std::fflush(stdout);
    world.abort();  // a peer may still wait inside a test that this rank has left
  }
  shardrun::test::world.reset();
  shardrun::finalize_mpi();
  return 0;
}
