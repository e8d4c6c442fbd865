// What a Communicator says where a rank does not come: which one it is, who only waits for it, and
// that nobody waits for ever.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "base/error.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/staging.h"

namespace shardrun::test {
namespace {

/// A rank that does not come is named, and nobody waits for ever.
void timeout_names_the_missing_rank(Communicator& c) {
  if (c.size() == 1) return;
  std::vector<int> all;
  for (int r = 0; r < c.size(); ++r) all.push_back(r);
  const std::unique_ptr<Communicator> other = c.split({all});
  other->set_timeout(0.2);
  if (c.rank() != 1) return;
  try {
    char byte = 0;
    other->recv(&byte, 1, 0);
    ADD_FAILURE() << "recv returned without a send";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::comm);
    const std::string want =
        str("recv of 1 bytes on rank 1 of ", c.size(), ": waited 0.2 s for rank 0");
    EXPECT_EQ(std::string(error.what()).substr(0, want.size()), want);
  }
}

/// Of a part of the job's ranks, its own numbers are not what they are called by.
constexpr double kShort = 0.4;  // s
void absent(Communicator& c, const std::string& call, const std::function<void(Communicator&)>& f) {
  if (c.size() != 4) return;
  const std::unique_ptr<Communicator> pair = c.split({{0, 2}, {1, 3}});
  pair->set_timeout(kShort);
  if (c.rank() != 1) {
    if (c.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1800));
    return;
  }
  try {
    f(*pair);
    ADD_FAILURE() << call << " came back";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::comm);
    const std::string want = call + " on rank 1 (between ranks 1 and 3): ",
                      end = ", which has stopped or makes other calls", got = error.what();
    EXPECT_EQ(got.substr(0, want.size()), want);
    EXPECT_NE(got.find(": waited 0.4 s for rank 3"), std::string::npos) << got;
    EXPECT_TRUE(got.ends_with(end)) << got;
  }
}

constexpr int64_t kLong = 3000;  // elements
std::vector<float> numbers() { return std::vector<float>(2 * kLong, 1); }

void absent_in_all_gather(Communicator& c) {
  absent(c, "all_gather of 24000 bytes", [](Communicator& pair) {
    std::vector<float> from = numbers(), to = numbers();
    pair.all_gather(from.data(), to.data(), std::vector<int64_t>{kLong, kLong}, DType::f32);
  });
}
void absent_in_all_reduce(Communicator& c) {
  absent(c, "all_reduce of 12 bytes", [](Communicator& pair) {
    std::vector<float> data(3);
    Staging staging(pair.all_reduce_staging(3, DType::f32));
    pair.all_reduce(data.data(), 3, DType::f32, Reduction::sum, staging.data());
  });
}
void absent_in_reduce_scatter(Communicator& c) {
  absent(c, "reduce_scatter of 24000 bytes", [](Communicator& pair) {
    std::vector<float> from = numbers(), to = numbers();
    const std::vector<int64_t> counts{kLong, kLong};
    Staging staging(pair.reduce_scatter_staging(counts, DType::f32));
    pair.reduce_scatter(from.data(), to.data(), counts, DType::f32, Reduction::sum, staging.data());
  });
}
void absent_in_all_to_all(Communicator& c) {
  absent(c, "all_to_all of 24000 bytes", [](Communicator& pair) {
    std::vector<float> from = numbers(), to = numbers();
    const std::vector<int64_t> counts{kLong, kLong};
    pair.all_to_all(from.data(), counts, to.data(), counts, DType::f32);
  });
}
/// What a rank that sends nothing waits for, as at an edge of an image that is cut.
void absent_sender_in_all_to_all(Communicator& c) {
  absent(c, "all_to_all of 12000 bytes", [](Communicator& pair) {
    std::vector<float> from = numbers(), to = numbers();
    const std::vector<int64_t> sent{0, 0}, received{0, kLong};
    pair.all_to_all(from.data(), sent, to.data(), received, DType::f32);
  });
}
void absent_in_broadcast(Communicator& c) {
  absent(c, "broadcast of 12000 bytes", [](Communicator& pair) {
    std::vector<float> data(kLong);
    pair.broadcast(data.data(), kLong * 4, 1);
  });
}
void absent_in_barrier(Communicator& c) {
  absent(c, "barrier", [](Communicator& pair) { pair.barrier(); });
}

/// Rank 0 waits for rank 1, which waits for rank 3: that one is to blame. Of threads, who finds out
/// first ends the job.
void who_waits_is_not_blamed(Communicator& c) {
  if (c.size() != 4) return;
  const std::unique_ptr<Communicator> row = c.split({{0, 1}, {2, 3}});
  const std::unique_ptr<Communicator> column = c.split({{0, 2}, {1, 3}});
  row->set_timeout(kShort);
  column->set_timeout(kShort);
  if (c.rank() > 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    return;
  }
  try {
    (c.rank() == 0 ? *row : *column).barrier();
    ADD_FAILURE() << "came back";
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool ended = text.find("another rank ended the job") != std::string::npos;
    EXPECT_TRUE(ended || text.find("for rank 3") != std::string::npos) << text;
    EXPECT_TRUE(ended || text.find(", which has stopped") != std::string::npos) << text;
    EXPECT_TRUE(ended || c.rank() == 1 ||
                text.find("which waits in barrier for rank 3") != std::string::npos)
        << text;
    if (c.members().job) c.members().job->linger(0.6);  // rank 0 may be about to ask
  }
}

}  // namespace

std::vector<Case> absent_rank_cases() {
  return {{"timeout_names_the_missing_rank", timeout_names_the_missing_rank},
          {"absent_in_all_gather", absent_in_all_gather},
          {"absent_in_all_reduce", absent_in_all_reduce},
          {"absent_in_reduce_scatter", absent_in_reduce_scatter},
          {"absent_in_all_to_all", absent_in_all_to_all},
          {"absent_sender_in_all_to_all", absent_sender_in_all_to_all},
          {"absent_in_broadcast", absent_in_broadcast},
          {"absent_in_barrier", absent_in_barrier},
          {"who_waits_is_not_blamed", who_waits_is_not_blamed}};
}

}  // namespace shardrun::test
