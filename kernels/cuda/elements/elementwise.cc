// Element-wise calls: one generated kernel each.
#include <array>
#include <memory>
#include <optional>

#include "device/cuda/cuda.h"
#include "kernels/cuda/elements/element_kernel.h"
#include "kernels/cuda/elements/element_source.h"
#include "kernels/cuda/elements/nvrtc.h"
#include "kernels/cuda/families.h"

namespace shardrun::cuda {
namespace {

/// Source and machine code are made when a step first runs: a plan needs neither.
class ElementKernel {
 public:
  explicit ElementKernel(ElementChain chain) : chain_(std::move(chain)) {}

  void run(const KernelArgs& args) {
    if (!wide_) wide_ = made(16);
    const ElementSource* source = &wide_->source;
    if (source->threads == 0) return;
    // As many as fit into what a launch hands over; a step must not allocate.
    constexpr size_t kMost = 128;
    std::array<void*, kMost> pointers, arguments;
    SR_REQUIRE(args.in.size() + args.out.size() < kMost, internal, "a kernel of ", args.in.size(),
               " operands and ", args.out.size(), " results");
    size_t n = 0;
    uintptr_t all = 0;
    for (const auto& views : {args.in, args.out}) {
      for (const TensorView& view : views) {
        pointers[n] = view.data;
        arguments[n] = &pointers[n];
        all |= reinterpret_cast<uintptr_t>(view.data);
        ++n;
      }
    }
    const bool aligned = all % static_cast<uintptr_t>(source->alignment) == 0;
    if (!aligned && !narrow_) narrow_ = made(1);
    Made& made = aligned ? *wide_ : *narrow_;
    if (made.kernel == nullptr) made.kernel = runtime_kernel(made.source.text);
    auto count = static_cast<unsigned long long>(made.source.count);  // NOLINT: the kernel's type
    arguments[n] = &count;
    launch_runtime_kernel(made.kernel, made.source.threads, arguments.data(),
                          static_cast<cudaStream_t>(args.stream));
  }

 private:
  struct Made {
    ElementSource source;
    const void* kernel = nullptr;
  };
  Made made(int64_t widest) const { return {element_source(chain_, widest), nullptr}; }

  ElementChain chain_;
  std::optional<Made> wide_, narrow_;  // narrow: for pointers that are not aligned
};

/// Where result and operand hold the same bytes and may be the same memory.
bool is_copy(const Node& node) { return node.op == "identity" || node.op == "reshape"; }

PreparedKernel prepare(const KernelCall& call) {
  PreparedKernel prepared = element_kernel(chain_of(call));
  if (is_copy(call.node)) {
    prepared.run = [run = std::move(prepared.run)](const KernelArgs& args) {
      if (args.in[0].data != args.out[0].data) run(args);
    };
  }
  if (fuses_chains(call.node)) prepared.fuse = element_kernel;
  return prepared;
}

}  // namespace

PreparedKernel element_kernel(const ElementChain& chain) {
  const auto kernel = std::make_shared<ElementKernel>(chain);
  PreparedKernel prepared;
  prepared.run = [kernel](const KernelArgs& args) { kernel->run(args); };
  prepared.impl = "cuda:element";
  return prepared;
}

KernelList elementwise_kernels() {
  KernelList list;
  for (const std::string& op : element_ops())
    list.push_back({op, "cuda:element", element_refuses, prepare});
  return list;
}

}  // namespace shardrun::cuda
