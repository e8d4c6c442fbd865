// Measuring a machine, as `shardrun calibrate` does.
#pragma once

#include <functional>
#include <string>

#include "shardrun/shardrun.h"

namespace shardrun {

struct CalibrateRequest {
  std::string output;   // "": the user's own file, which plans for this machine read
  double seconds = 45;  // in all, about
  /// Called on the leader, on any thread, with what is measured: the part of it ("collectives
  /// between 2 ranks"), and what of that, which is empty where the part begins ("matmul bf16"). For
  /// each figure, hundreds of times a second.
  std::function<void(const std::string& part, const std::string& what)> on_progress = nullptr;
};

struct CalibrateReport {
  std::string path;
  int kernels = 0, collectives = 0;  // how many curves
  std::string disturbed;  // "" or how much of it something else on the machine slowed down
  double seconds = 0;
};
/// Measures this machine: kernels as one, two … ranks run them at the same time, and collectives
/// between threads; in a World of several MPI processes collectives between those alone, which adds
/// to what one process has measured before. Ranks have the cores divided among them, or as many
/// threads each as World::use_threads says: such kernels are added to those that are known. What
/// something else slowed down is measured again while there is time; what is left is in the
/// report and the file.
CalibrateReport calibrate(World& world, const CalibrateRequest& request);

}  // namespace shardrun
