// The machine that a measurement was made on, as far as the system says.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardrun::cli {

struct Machine {
  std::string processor = "a processor";
  int cores = 1;                   // that this process can keep busy
  std::vector<std::string> flags;  // of those that kernels are chosen by
  int64_t memory_bytes = 0;
  double load = 0;   // runnable threads, mean of the last minute
  std::string date;  // 2026-11-21 20:36 UTC
};
Machine this_machine();

/// A few lines for people, with the versions of what the program is built of.
std::string describe(const Machine& machine);
nlohmann::json to_json(const Machine& machine);

}  // namespace shardrun::cli
