// Goodput: the part of a long run's time that trains, where ranks fail.
#pragma once

#include <cstdint>

namespace shardrun {

/// All times in seconds.
struct Failures {
  double mtbf = 0;        // mean time between failures of one rank; they strike at random
  double checkpoint = 0;  // between two checkpoints, of training
  double stall = 0;       // that training waits for one
  double restart = 0;     // from a failure until training goes on from the last checkpoint
};

struct Goodput {
  double fraction = 1;            // of the time that advances training
  double seconds_to_failure = 0;  // mean, of the whole job
  double best_checkpoint = 0;     // Young's and Daly's interval: sqrt(2 stall / rate); 0: no stall
};

/// A stretch of training between two checkpoints is begun anew after each failure within it or
/// within a restart: its mean time is (e^(r (checkpoint + stall)) - 1) e^(r restart) / r for a rate
/// r of failures of all ranks (Daly, 2006, eq. 13). Throws invalid_input: a time that is negative
/// or above 3.6e12, or mtbf or checkpoint below 3.6e-3.
Goodput goodput(const Failures& failures, int64_t ranks);

}  // namespace shardrun
