// Data movement ops of any dtype: each result is one or more strided copies.
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/strided_copy.h"

namespace shardrun::cpu {
namespace {

std::optional<std::string> never(const KernelCall&) { return std::nullopt; }

PreparedKernel one_copy(StridedCopy copy) {
  return {[copy = std::move(copy)](const KernelArgs& args) {
            copy.run(args.in[0].data, args.out[0].data);
          },
          0, "cpu:copy"};
}

PreparedKernel transpose(const KernelCall& call) {
  return one_copy(StridedCopy::transpose(call.in[0].shape, call.node.attrs.ints("perm"),
                                         size_of(call.in[0].dtype)));
}

PreparedKernel expand(const KernelCall& call) {
  const Shape &in = call.in[0].shape, &out = call.out[0].shape;
  const Shape dense = row_major_strides(in);
  Shape strides(out.size(), 0);
  const size_t skip = out.size() - in.size();
  for (size_t d = 0; d < in.size(); ++d) strides[skip + d] = in[d] == 1 ? 0 : dense[d];
  return one_copy(
      StridedCopy(out, strides, 0, row_major_strides(out), 0, size_of(call.in[0].dtype)));
}

PreparedKernel slice(const KernelCall& call) {
  const Shape dense = row_major_strides(call.in[0].shape), &out = call.out[0].shape;
  const auto &starts = call.node.attrs.ints("starts"), &steps = call.node.attrs.ints("steps");
  Shape strides;
  int64_t base = 0;
  for (size_t d = 0; d < out.size(); ++d) {
    base += starts[d] * dense[d];
    strides.push_back(steps[d] * dense[d]);
  }
  return one_copy(
      StridedCopy(out, strides, base, row_major_strides(out), 0, size_of(call.in[0].dtype)));
}

// [3, 4] repeated {2, 5}: dims [2, 3, 5, 4] from strides [0, 4, 0, 1].
PreparedKernel tile(const KernelCall& call) {
  const Shape& in = call.in[0].shape;
  const Shape dense = row_major_strides(in);
  const auto& repeats = call.node.attrs.ints("repeats");
  Shape dims, strides;
  for (size_t d = 0; d < in.size(); ++d) {
    dims.insert(dims.end(), {repeats[d], in[d]});
    strides.insert(strides.end(), {0, dense[d]});
  }
  return one_copy(
      StridedCopy(dims, strides, 0, row_major_strides(dims), 0, size_of(call.in[0].dtype)));
}

PreparedKernel concat(const KernelCall& call) {
  const auto axis = static_cast<size_t>(call.node.attrs.i("axis"));
  const Shape dst = row_major_strides(call.out[0].shape);
  std::vector<StridedCopy> copies;
  int64_t at = 0;
  for (const TensorType& t : call.in) {
    copies.emplace_back(t.shape, row_major_strides(t.shape), 0, dst, at * dst[axis],
                        size_of(t.dtype));
    at += t.shape[axis];
  }
  return {[copies](const KernelArgs& args) {
            for (size_t i = 0; i < copies.size(); ++i)
              copies[i].run(args.in[i].data, args.out[0].data);
          },
          0, "cpu:copy"};
}

PreparedKernel split(const KernelCall& call) {
  const auto axis = static_cast<size_t>(call.node.attrs.i("axis"));
  const Shape src = row_major_strides(call.in[0].shape);
  std::vector<StridedCopy> copies;
  int64_t at = 0;
  for (const TensorType& t : call.out) {
    copies.emplace_back(t.shape, src, at * src[axis], row_major_strides(t.shape), 0,
                        size_of(t.dtype));
    at += t.shape[axis];
  }
  return {[copies](const KernelArgs& args) {
            for (size_t i = 0; i < copies.size(); ++i)
              copies[i].run(args.in[0].data, args.out[i].data);
          },
          0, "cpu:copy"};
}

// `value` in every element.
void fill_with(const TensorView& out, double value) {
  uint64_t element = 0;
  convert(&value, DType::f64, &element, out.type.dtype, 1);
  const int64_t size = size_of(out.type.dtype);
  parallel_ranges(out.count(), 1 << 16, [&](int64_t begin, int64_t end) {
    switch (size) {
      case 1:
        std::fill(out.as<uint8_t>() + begin, out.as<uint8_t>() + end,
                  static_cast<uint8_t>(element));
        break;
      case 2:
        std::fill(out.as<uint16_t>() + begin, out.as<uint16_t>() + end,
                  static_cast<uint16_t>(element));
        break;
      case 4:
        std::fill(out.as<uint32_t>() + begin, out.as<uint32_t>() + end,
                  static_cast<uint32_t>(element));
        break;
      default: std::fill(out.as<uint64_t>() + begin, out.as<uint64_t>() + end, element);
    }
  });
}

PreparedKernel fill(const KernelCall& call) {
  const double value = call.node.attrs.f("value");
  return {[value](const KernelArgs& args) { fill_with(args.out[0], value); }, 0, "cpu:copy"};
}

std::optional<std::string> pad_refuses(const KernelCall& call) {
  const std::string mode = call.node.attrs.s("mode", "constant");
  if (mode != "constant") return str("pads with a constant, not in mode ", mode);
  return std::nullopt;
}

PreparedKernel pad(const KernelCall& call) {
  const Shape &in = call.in[0].shape, dst = row_major_strides(call.out[0].shape);
  const auto& before = call.node.attrs.ints("before");
  int64_t base = 0;
  for (size_t d = 0; d < in.size(); ++d) base += before[d] * dst[d];
  const StridedCopy copy(in, row_major_strides(in), 0, dst, base, size_of(call.in[0].dtype));
  const double value = call.node.attrs.f("value", 0.0);
  return {[copy, value](const KernelArgs& args) {
            fill_with(args.out[0], value);
            copy.run(args.in[0].data, args.out[0].data);
          },
          0, "cpu:copy"};
}

}  // namespace

KernelList movement_kernels() {
  return {{"transpose", "cpu:copy", never, transpose}, {"expand", "cpu:copy", never, expand},
          {"slice", "cpu:copy", never, slice},         {"tile", "cpu:copy", never, tile},
          {"concat", "cpu:copy", never, concat},       {"split", "cpu:copy", never, split},
          {"fill", "cpu:copy", never, fill},           {"pad", "cpu:copy", pad_refuses, pad}};
}

}  // namespace shardrun::cpu
