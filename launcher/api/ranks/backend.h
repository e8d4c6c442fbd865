// Backend: the kernels, device and collectives that ranks run on.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "exec/executor.h"
#include "kernels/kernel.h"
#include "planner/cost/cluster.h"
#include "program/compile.h"
#include "program/ops/weight_layout.h"
#include "ranks/rank_device.h"

namespace shardrun {

struct Backend {
  std::string_view name;  // as --device has it
  std::span<const KernelList* const> kernels;
  /// Do large products copy their operands, packed, so that they round an f32 weight on the way?
  bool packs_products;
  /// "" or why nothing can run on it here. Plans can be made all the same.
  std::string (*missing)();
  /// This machine's: cores that the process can keep busy, or GPUs.
  int (*devices)();
  /// What to plan for where nothing was measured. Works without a device.
  Cluster (*cluster)(int64_t ranks);
  /// The name of a Cluster that was measured of it: no other backend is planned by that.
  std::string_view measured_name;
  std::unique_ptr<RankDevice> (*open)(Communicator& host);  // as OpenDevice
  Collectives collectives;
  /// For keep_packed (runtime/program/keep_packed.h). Null: kernels take all weights as they lie.
  std::optional<WeightLayout> (*packed_weights)(const KernelCall& call) = nullptr;
  bool arenas_on_host = true;  // are they of the host's memory?
  StepNeeds needs{kernels};    // remembers what kernels need as long as they are there
};

/// One rank's device with no other rank, on the calling thread. Throws as open does.
std::shared_ptr<Device> device_alone();

const Backend& cpu_backend();
/// Null where the part for GPUs (launcher/cuda) is not next to libshardrun, or cannot be loaded.
const Backend* cuda_backend();
const std::string& why_no_cuda_backend();

/// The backend of this process: what use_backend said, else CUDA's where there is a GPU, else the
/// CPU's.
const Backend& backend();
/// What its Programs depend on, with as many threads as the calling one's kernels use.
BackendTraits backend_traits();
/// Throws invalid_input if nothing can run on it here.
void check_device();
/// Before the first plan. Throws invalid_input: no such backend, or not in this build.
void use_backend(std::string_view name);
void use_backend(const Backend& backend);  // one that stays

}  // namespace shardrun
