// run_ranks: a function on n local ranks, each a thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "collectives/communicator.h"

namespace shardrun::test {

/// Runs body(communicator) on n threads. A rank that throws fails the test and ends the others.
inline void run_ranks(int n, const std::function<void(Communicator&)>& body, double timeout = 60) {
  auto ranks = make_local_communicators(n);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    rank->set_timeout(timeout);
    threads.emplace_back([&body, &rank] {
      try {
        body(*rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank->rank() << ": " << error.what();
        rank->abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shardrun::test
