// What every Communicator must do, as functions that one rank runs: the local tests run them on
// threads, the MPI tests on processes.
#pragma once

#include <string>
#include <vector>

#include "collectives/communicator.h"

namespace shardrun::test {

struct Case {
  std::string name;
  void (*run)(Communicator&);
};

/// All of them.
std::vector<Case> communicator_cases();
/// Of them, those in which a rank does not come.
std::vector<Case> absent_rank_cases();

}  // namespace shardrun::test
