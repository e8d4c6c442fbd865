// Copies of bf16 operands and results as f32 around another kernel.
#include "kernels/cpu/products/as_f32.h"

#include <algorithm>
#include <memory>

#include "base/round_up.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // elements

bool any_bf16(std::span<const TensorType> types) {
  return std::any_of(types.begin(), types.end(),
                     [](const TensorType& t) { return t.dtype == DType::bf16; });
}

std::vector<TensorType> widened(std::span<const TensorType> types) {
  std::vector<TensorType> out(types.begin(), types.end());
  for (TensorType& t : out) {
    if (t.dtype == DType::bf16) t.dtype = DType::f32;
  }
  return out;
}

/// Operands or results as the kernel of f32 sees them; those that are bf16 as copies in the
/// workspace. Of one prepared kernel, whose runs follow one another: they allocate nothing.
class Copies {
 public:
  /// From byte `*offset` of the workspace on, which is moved behind them.
  Copies(std::span<const TensorType> types, int64_t* offset) {
    for (TensorType& type : widened(types)) {
      const bool copied = type.dtype != types[views_.size()].dtype;
      at_.push_back(copied ? *offset : -1);
      if (copied) *offset += round_up_64(byte_size(type));
      views_.push_back({nullptr, std::move(type)});
    }
  }

  std::span<const TensorView> place(std::span<const TensorView> given, char* workspace) {
    for (size_t i = 0; i < given.size(); ++i)
      views_[i].data = at_[i] < 0 ? given[i].data : workspace + at_[i];
    return views_;
  }

  void read(std::span<const TensorView> given) const {
    for_each_part(given, [](const TensorView& bf16, float* wide, int64_t begin, int64_t n) {
      floats(bf16, begin, n, wide);
    });
  }

  void write(std::span<const TensorView> given) const {
    for_each_part(given, [](const TensorView& bf16, float* wide, int64_t begin, int64_t n) {
      put(bf16, begin, n, wide);
    });
  }

 private:
  template <class F>
  void for_each_part(std::span<const TensorView> given, F&& f) const {
    for (size_t i = 0; i < given.size(); ++i) {
      if (at_[i] < 0) continue;
      auto* wide = views_[i].as<float>();
      parallel_ranges(given[i].count(), kGrain, [&](int64_t begin, int64_t end) {
        f(given[i], wide + begin, begin, end - begin);
      });
    }
  }

  std::vector<TensorView> views_;
  std::vector<int64_t> at_;  // -1: no copy
};

std::optional<std::string> refuses(const KernelImpl& of, const KernelCall& call) {
  if (of.refuses == nullptr) return std::nullopt;
  const std::vector<TensorType> in = widened(call.in), out = widened(call.out);
  return of.refuses({call.node, in, out});
}

PreparedKernel prepare(const KernelImpl& of, const KernelCall& call) {
  if (!any_bf16(call.in) && !any_bf16(call.out)) return of.prepare(call);
  int64_t bytes = 0;
  const auto in = std::make_shared<Copies>(call.in, &bytes),
             out = std::make_shared<Copies>(call.out, &bytes);
  const std::vector<TensorType> in_types = widened(call.in), out_types = widened(call.out);
  const PreparedKernel inner = of.prepare({call.node, in_types, out_types});
  SR_REQUIRE(inner.kept_bytes == 0, internal, of.op, " '", call.node.name, "' as f32 keeps ",
             inner.kept_bytes, " bytes");
  const auto run = [=](const KernelArgs& args) {
    auto* work = static_cast<char*>(args.workspace);
    const auto wide_in = in->place(args.in, work), wide_out = out->place(args.out, work);
    in->read(args.in);
    inner.run({wide_in, wide_out, work + bytes});
    out->write(args.out);
  };
  return {run, bytes + inner.workspace_bytes, inner.impl};
}

}  // namespace

KernelList as_f32(KernelList list) {
  for (KernelImpl& impl : list) {
    impl = {impl.op, impl.name, [of = impl](const KernelCall& call) { return refuses(of, call); },
            [of = impl](const KernelCall& call) { return prepare(of, call); }};
  }
  return list;
}

}  // namespace shardrun::cpu
