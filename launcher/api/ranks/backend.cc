// The CPU's backend, and the choice.
#include "ranks/backend.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <vector>

#include "base/process/processors.h"
#include "kernels/cpu/cpu.h"
#include "ranks/world.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

std::atomic<const Backend*> chosen{nullptr};

}  // namespace

const Backend& cpu_backend() {
  static const std::array<const KernelList*, 2> lists = {&cpu_kernels(), &reference_kernels()};
  static const Backend cpu = {"cpu",
                              lists,
                              true,
                              [] { return std::string(); },
                              usable_cores,
                              [](int64_t) { return host_cluster(); },
                              "host",
                              [](Communicator& host) -> std::unique_ptr<RankDevice> {
                                return std::make_unique<HostRank>(host);
                              },
                              Collectives::together,
                              packed_weights};
  return cpu;
}

std::shared_ptr<Device> device_alone() {
  struct Alone {
    std::vector<std::unique_ptr<Communicator>> host = make_local_communicators(1);
    std::unique_ptr<RankDevice> on = backend().open(*host[0]);
  };
  auto alone = std::make_shared<Alone>();
  Device& device = alone->on->device();
  return {std::move(alone), &device};
}

const Backend& backend() {
  if (const Backend* backend = chosen) return *backend;
  static const Backend& found = [&]() -> const Backend& {
    const Backend* cuda = cuda_backend();
    return cuda != nullptr && cuda->missing().empty() ? *cuda : cpu_backend();
  }();
  return found;
}

BackendTraits backend_traits() {
  const Backend& of = backend();
  BackendTraits traits = traits_of(of.kernels, of.packs_products);
  traits.threads = omp_get_max_threads();
  if (of.packed_weights != nullptr) traits.packed_weights = of.packed_weights;
  traits.needs = of.needs;
  traits.fusion = [needs = of.needs](const Program& program, const Step& step, int threads) {
    return needs.fusion(program, step, threads);
  };
  return traits;
}

void check_device() {
  const std::string missing = backend().missing();
  SR_REQUIRE(missing.empty(), invalid_input, "device ", backend().name, ": ", missing,
             "; run with --device cpu");
}

void use_backend(std::string_view name) {
  SR_REQUIRE(name == "cpu" || name == "cuda", invalid_input, "device '", name,
             "': wanted cpu or cuda");
  if (name == "cpu") return use_backend(cpu_backend());
  const Backend* cuda = cuda_backend();
  SR_REQUIRE(cuda != nullptr, invalid_input, "device cuda: ", why_no_cuda_backend());
  use_backend(*cuda);
}
void use_backend(const Backend& backend) { chosen = &backend; }

void use_device(const std::string& name) {
  at_boundary([&] { use_backend(name); });
}
std::string device_in_use() { return std::string(backend().name); }

}  // namespace shardrun
