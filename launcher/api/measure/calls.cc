// Operands of a call, several times, and what times it.
#include "measure/calls.h"

#include <algorithm>

#include "base/round_up.h"
#include "graph/op_def.h"
#include "graph/program.h"
#include "graph/rearranged.h"
#include "program/ops/group_rows.h"
#include "ranks/backend.h"

namespace shardrun {
namespace {

constexpr double kMostCopies = 256;

/// Operands and results of a call, several times, in a rank's scratch memory: taken in turn, they
/// come from where those of a step do: made a while ago, not by the call before.
class Operands {
 public:
  Operands(const CalibrationCall& call, const std::vector<TensorType>& out,
           const PreparedKernel& kernel, double rotation, RankTeam::Scratch& scratch)
      : stream_(scratch.device().stream()) {
    double bytes = 0;
    const auto place = [&](size_t i) { return call.places.empty() ? -1 : call.places[i]; };
    for (const TensorType& t : call.in)
      bytes += static_cast<double>(round_up(byte_size(t), kArenaAlignment));
    for (size_t i = 0; i < out.size(); ++i)
      if (place(i) < 0) bytes += static_cast<double>(round_up(byte_size(out[i]), kArenaAlignment));
    const double copies = std::clamp(rotation / std::max(bytes, 1.0), 1.0, kMostCopies);
    sets_.resize(static_cast<size_t>(copies));
    const auto needed =
        (static_cast<int64_t>(bytes) + round_up(kernel.kept_bytes, kArenaAlignment)) *
        static_cast<int64_t>(sets_.size());
    char* at = scratch.bytes(round_up(kernel.workspace_bytes, kArenaAlignment) + needed);
    workspace_ = at;
    at += round_up(kernel.workspace_bytes, kArenaAlignment);
    for (Set& set : sets_) {
      for (size_t i = 0; i < call.in.size(); ++i) {
        set.in.push_back({at, call.in[i]});
        if (&set == &sets_[0]) {
          fill(scratch.device(), set.in.back(), call, i);
        } else {
          scratch.device().copy(at, sets_[0].in[i].data, byte_size(call.in[i]));
        }
        at += round_up(byte_size(call.in[i]), kArenaAlignment);
      }
      for (size_t i = 0; i < out.size(); ++i) {
        if (place(i) >= 0) {
          set.out.push_back({set.in[static_cast<size_t>(place(i))].data, out[i]});
          continue;
        }
        set.out.push_back({at, out[i]});
        at += round_up(byte_size(out[i]), kArenaAlignment);
      }
      if (kernel.kept_bytes == 0) continue;
      set.kept = at;
      scratch.device().copy_in(at, kernel.keep(args_of(set)).data(), kernel.kept_bytes);
      at += round_up(kernel.kept_bytes, kArenaAlignment);
    }
  }

  KernelArgs args(int64_t run) { return args_of(sets_[static_cast<size_t>(run) % sets_.size()]); }

 private:
  struct Set {
    std::vector<TensorView> in, out;
    char* kept = nullptr;
  };

  KernelArgs args_of(const Set& set) const {
    return {set.in, set.out, workspace_, stream_, set.kept};
  }

  /// Random elements, made on the host, and those over and over; the groups of such numbers.
  static void fill(Device& device, const TensorView& operand, const CalibrationCall& call,
                   size_t index) {
    const bool last = rearranged_operands(call.node) > 0 && index + 1 == call.in.size();
    const auto wanted = last ? RowGroups::wanted_by(call.node, call.in) : std::nullopt;
    if (wanted) {  // else it is weights in blocks
      const Tensor groups = groups_of(call, *wanted);
      device.copy_in(operand.data, groups.data(), byte_size(groups.type()));
      return;
    }
    const int64_t element = size_of(operand.type.dtype), count = operand.count(),
                  made = std::min(count, kMade);
    const Tensor some({operand.type.dtype, {made}});
    fill(some.view(), call, index);
    device.copy_in(operand.data, some.data(), made * element);
    for (int64_t done = made; done < count; done *= 2) {
      device.copy(operand.as<char>() + done * element, operand.data,
                  std::min(done, count - done) * element);
    }
  }

  static Tensor groups_of(const CalibrationCall& call, const RowGroups& groups) {
    const Tensor numbers(call.in[groups.numbers]);
    fill(numbers.view(), call, groups.numbers);
    Node node;
    node.op = node.name = "group_rows";
    node.attrs = {{"size", groups.size}, {"offset", groups.offset}};
    return run_reference(node, {&numbers, 1})[0];
  }

  static void fill(const TensorView& operand, const CalibrationCall& call, size_t index) {
    const DType dtype = operand.type.dtype;
    const OpDef& def = op_def(call.node.op);
    const int64_t bound =
        is_float(dtype) || def.index_bound == nullptr
            ? 2
            : def.index_bound(call.node, own_operands(call.node, call.in), index).value_or(2);
    dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      uint32_t state = 12345;
      for (int64_t i = 0; i < operand.count(); ++i) {
        if (i % kMade == 0) state = 12345;
        state = state * 1664525u + 1013904223u;
        const uint32_t random = state >> 8;  // 24 bits; the low ones repeat soon
        if constexpr (std::is_same_v<T, bool>) {
          operand.as<T>()[i] = random >> 23 != 0;
        } else if constexpr (std::is_integral_v<T>) {
          operand.as<T>()[i] = static_cast<T>((random * bound) >> 24);
        } else {
          operand.as<T>()[i] = static_cast<T>(0.1f + 0.8f * static_cast<float>(random) / 0x1p24f);
        }
      }
    });
  }

  static constexpr int64_t kMade = 1 << 18;
  std::vector<Set> sets_;
  char* workspace_ = nullptr;
  void* stream_;
};

}  // namespace

CalibrationCall matmul_call(DType dtype, const std::string& layout,
                            const std::array<int64_t, 3>& size) {
  const auto [m, n, k] = size;
  const bool a = layout[0] == 't', b = layout[1] == 't';
  CalibrationCall call;
  call.node.op = call.node.name = "matmul";
  call.node.attrs.set("equation", std::string(a ? "km" : "mk") + "," + (b ? "nk" : "kn") + "->mn");
  call.in = {{dtype, a ? Shape{k, m} : Shape{m, k}}, {dtype, b ? Shape{n, k} : Shape{k, n}}};
  if (layout == "tn" && dtype == DType::bf16)
    call.node.attrs.set("out_dtype", std::string(to_string(DType::f32)));
  return call;
}

CalibrationCall attention_call(DType dtype, const std::string& op,
                               const std::array<int64_t, 3>& size) {
  const auto [heads, length, width] = size;
  CalibrationCall call;
  call.node.op = call.node.name = op;
  call.node.attrs = {{"causal", int64_t{1}}, {"has_mask", int64_t{0}}, {"scale", 0.125}};
  const TensorType x{dtype, {1, heads, length, width}};
  call.in = op == "attention"
                ? std::vector{x, x, x}
                : std::vector{x, x, x, x, x, TensorType{DType::f32, {1, heads, length}}};
  return call;
}

RankTeam::Work work_of_call(const CalibrationCall& call, double rotation,
                            RankTeam::Scratch& scratch) {
  const std::vector<TensorType> out = infer_types(call.node, call.in);
  auto kernel = std::make_shared<PreparedKernel>(
      select_kernel(backend().kernels, KernelCall{call.node, call.in, out}));
  auto operands = std::make_shared<Operands>(call, out, *kernel, rotation, scratch);
  return {[kernel, operands](int64_t run) { kernel->run(operands->args(run)); },
          kernel->recordable};
}

double measure_call(RankTeam& team, const CalibrationCall& call) {
  constexpr double kBeyondAllCaches = 8;
  const double rotation = team.extent().rotation * (call.from_memory ? kBeyondAllCaches : 1);
  return team.measure(
      [&](RankTeam::Scratch& scratch) { return work_of_call(call, rotation, scratch); });
}

}  // namespace shardrun
