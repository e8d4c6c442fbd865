// What ranks with checked collectives find: for threads and for processes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/checked.h"

namespace shardrun::test {

/// All ranks of `world`, checked.
inline std::unique_ptr<Communicator> checked(Communicator& world) {
  std::vector<int> all(static_cast<size_t>(world.size()));
  for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
  return make_checked(world.split({all}));
}

/// What `call` throws, and within how many seconds.
template <class F>
std::pair<std::string, double> refusal(const F& call) {
  const auto start = std::chrono::steady_clock::now();
  std::string text;
  try {
    call();
  } catch (const Error& e) {
    text = e.what();
  }
  return {text, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "wanted '" << part << "' in: " << text;
}

/// The same results as without.
inline void checked_calls_are_made(Communicator& world) {
  const auto comm = checked(world);
  const auto n = static_cast<size_t>(comm->size());
  float sum = static_cast<float>(comm->rank() + 1);
  std::vector<char> staging(static_cast<size_t>(comm->all_reduce_staging(1, DType::f32)) + 64);
  void* const at =
      reinterpret_cast<void*>((reinterpret_cast<intptr_t>(staging.data()) + 63) / 64 * 64);
  comm->all_reduce(&sum, 1, DType::f32, Reduction::sum, at);
  EXPECT_EQ(sum, static_cast<float>(n * (n + 1) / 2));
  std::vector<int64_t> all(n);
  const int64_t mine = comm->rank();
  comm->all_gather(&mine, all.data(), std::vector<int64_t>(n, 1), DType::i64);
  for (size_t r = 0; r < n; ++r) EXPECT_EQ(all[r], static_cast<int64_t>(r));
  EXPECT_EQ(comm->any_of(uint64_t{1} << comm->rank()), (uint64_t{1} << n) - 1);
  const auto pair = comm->split({{0, 1}});
  if (pair) pair->barrier();
  comm->barrier();
}

/// The last rank calls all_gather, the others broadcast.
template <class Calls>
void only_the_last_gathers(Calls& comm) {
  int64_t mine = 0;
  std::vector<int64_t> all(static_cast<size_t>(comm.size()));
  if (comm.rank() == comm.size() - 1) {
    comm.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DType::i64);
  } else {
    comm.broadcast(&mine, 8, 0);
  }
}

/// Both sides are named, on every rank, and at once.
inline void other_calls_are_refused(Communicator& world) {
  const int last = world.size() - 1;
  {
    const auto comm = checked(world);
    comm->barrier();
    const auto [text, seconds] = refusal([&] { only_the_last_gathers(*comm); });
    expect_parts(text, {"checked collectives: rank 0 enters call 2, broadcast of 8 bytes",
                        "rank " + std::to_string(last) + " call 2, all_gather of " +
                            std::to_string(8 * world.size()) + " bytes"});
    EXPECT_LT(seconds, 20) << "it was waited for";
  }
  {
    const auto comm = checked(world);
    const auto [text, seconds] = refusal([&] {
      char bytes[64] = {};
      comm->broadcast(bytes, comm->rank() == last ? 64 : 32, 0);
    });
    expect_parts(text, {"broadcast of 32 bytes", "broadcast of 64 bytes"});
  }
  world.barrier();
}

/// Three ranks enter a group each with the next one: nobody ever comes. The job is over then.
inline void circles_are_found(Communicator& world) {
  const auto comm = checked(world);
  std::vector<std::unique_ptr<Communicator>> pairs;  // of {0, 1}, {1, 2}, {0, 2}
  for (const std::vector<int>& pair : {std::vector{0, 1}, {1, 2}, {0, 2}})
    pairs.push_back(comm->split({pair}));
  if (comm->rank() < 3) {
    const auto [text, seconds] =
        refusal([&] { pairs[static_cast<size_t>(comm->rank())]->barrier(); });
    std::printf("rank %d: found after %.2f s\n", comm->rank(), seconds);
    expect_parts(text, {"ranks wait for each other in different calls", "rank 0", "rank 1",
                        "rank 2", "barrier between ranks 0 and 1", "barrier between ranks 1 and 2",
                        "barrier between ranks 0 and 2"});
    EXPECT_LT(seconds, 20);
    world.members().job->linger(2);  // the others ask, too
  }
}

/// Calls of a device, that `over` makes a communicator for: their results, and both sides where
/// they differ, from each other or from a call of the host.
template <class Over>
void device_calls_are_checked(Communicator& world, const Over& over) {
  const auto host = checked(world);
  const int last = world.size() - 1;
  {
    const auto comm = checked_as(*host, over(*host));
    EXPECT_FALSE(comm->recordable());
    EXPECT_EQ(&comm->host(), host.get());
    float data[4] = {1, 2, 3, 4};
    comm->all_reduce(data, 4, DType::f32, Reduction::max, nullptr);
    EXPECT_EQ(data[3], 4);
    const auto part = comm->split({{0, last}});
    if (part) part->all_reduce(data, 2, DType::f32, Reduction::max, nullptr);
    if (part) part->host().barrier();
    host->barrier();
    const auto [text, seconds] = refusal([&] { only_the_last_gathers(*comm); });
    expect_parts(text, {"checked collectives: rank 0 enters call 3, device broadcast of 8 bytes",
                        "rank " + std::to_string(last) + " call 3, device all_gather of "});
    EXPECT_LT(seconds, 20) << "it was waited for";
  }
  const auto comm = checked_as(*host, over(*host));
  const auto [text, seconds] = refusal([&] {
    float data[4] = {};
    if (comm->rank() == last) {
      comm->all_reduce(data, 4, DType::f32, Reduction::sum, nullptr);
    } else {
      host->barrier();
    }
  });
  expect_parts(text, {", barrier between", "device all_reduce of 16 bytes"});
  world.barrier();
  // Where the host is not checked the device's calls are its own.
  auto own = over(world);
  const Communicator* const same = own.get();
  EXPECT_EQ(checked_as(world, std::move(own)).get(), same);
}

/// A rank that only takes its time is no circle.
inline void late_ranks_are_waited_for(Communicator& world) {
  const auto comm = checked(world);
  const auto first = comm->split({{0, 1}}), second = comm->split({{1, 2}});
  if (comm->rank() == 2) world.members().job->linger(1.5);
  if (first) first->barrier();
  if (second) second->barrier();
  comm->barrier();
}

}  // namespace shardrun::test
