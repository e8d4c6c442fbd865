// How plans are looked for below a limit of memory, in numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardrun {

struct LimitSettings {
  double wide_gap = 1e-2;  // relative: where more is unproven, the baselines are tried as well
  // Numbers of bytes for which a plan is looked for.
  double targets = 8;           // from one number to its double
  double gain = 0.99;           // times the best step: a plan that takes more has gained nothing
  int most_idle = 2;            // numbers in a row without a gain: the last
  int looked_nodes = 1000;      // of the steps at such numbers, where that makes them more
  double slower = 1.03;         // times the best step: a plan that takes more is the last, and
                                // steps whose bound is above are not looked at
  double kept_gain = 1.05;      // times the best step: a plan that takes more is not
                                // made faster by what is kept of it
  double seconds_divisor = 10;  // of the search's seconds, one in so many for each number
  double target_gap = 5e-3;     // relative to the best: there a search ends, for exact times differ
                                // from costs by more
  double shared_from = 0.9;     // of the bytes: copies are shared where so much is in use
  int target_rounds = 2;        // of the search
  int short_rounds = 3;         // the same where looks are short
  // Claims, which are more than an arena takes where results are written over operands.
  double claimed = 1.15;        // times the arena, at most
  double tight = 1.15;          // times the least: limits below may well be too low
  double more_claims = 0.03;    // times the least: what each look for the fewest bytes gets more
  int least_rounds = 6;         // such looks, where the first is the smallest of all: which of them
                                // has the smallest arena nobody knows
  int least_patience = 20;      // solutions in a row that are no better: then a look ends
  double least_divisor = 4;     // of such a look's seconds: with more it finds hardly fewer bytes
  double squeezed = 0.95;       // times the fewest bytes found: what is looked for then, in turn
  int squeezes = 4;             // such looks, as long as each finds so few
  int squeezed_rounds = 2;      // of each search
  double squeezed_divisor = 2;  // of its seconds
  // What to compute again is chosen for so many bytes, of those alive at the fullest moment if
  // nothing is.
  double capacity = 0.8;         // and its powers
  double close_capacity = 0.97;  // the same from a plan that nearly fits
  int capacities = 10;           // such powers
  int idle_capacities = 2;       // in a row that make a step claim no less: the last
  int misses = 4;                // steps in a row without a plan that fits: then that of the least
                                 // claims is looked at before any other
  // Searches that are open at once.
  int64_t open_bytes = int64_t{32} << 20;  // of the heap, whatever the limit
  size_t stay_open = 2;                    // the last used, however large
};
inline constexpr LimitSettings kLimit;

}  // namespace shardrun
