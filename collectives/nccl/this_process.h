// A number that names this process on its machine.
#pragma once

#include <cstdint>
#include <random>

namespace shardrun::cuda {

/// Drawn at random: ids of processes repeat, on other machines and in other containers of this one.
inline uint64_t this_process() {
  static const uint64_t number = [] {
    std::random_device draw;
    return uint64_t{draw()} << 32 | draw();
  }();
  return number;
}

}  // namespace shardrun::cuda
