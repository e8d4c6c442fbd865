// Reference matmul: an einsum by walking every index, and what the dense families share.
#include "graph/ops/einsum.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {

Doubles load(const TensorView& view) {
  Doubles out(static_cast<size_t>(view.count()));
  convert(view.data, view.type.dtype, out.data(), DType::f64, view.count());
  return out;
}

void store(const Doubles& values, const TensorView& view) {
  convert(values.data(), DType::f64, view.data, view.type.dtype, view.count());
}

KernelImpl plain(std::string op, std::function<void(const Node&, const KernelArgs&)> run) {
  return {std::move(op), "reference", [](const KernelCall&) { return std::nullopt; },
          [run = std::move(run)](const KernelCall& call) {
            return PreparedKernel{
                [run, node = call.node](const KernelArgs& args) { run(node, args); }, 0,
                "reference"};
          }};
}

namespace {

// Stride of each letter in a dense row-major operand; 0 where the operand does not have the letter.
std::vector<int64_t> strides_of(const std::string& loop, const std::string& term,
                                const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  std::vector<int64_t> out;
  for (char c : loop) {
    const size_t at = term.find(c);
    out.push_back(at == std::string::npos ? 0 : strides[at]);
  }
  return out;
}

// An operand of another type than the other one is rounded to the narrower.
void round_to(DType dtype, Doubles& values) {
  const auto count = static_cast<int64_t>(values.size());
  Tensor rounded(TensorType{dtype, {count}});
  convert(values.data(), DType::f64, rounded.data(), dtype, count);
  convert(rounded.data(), dtype, values.data(), DType::f64, count);
}

void matmul(const Node& node, const KernelArgs& args) {
  const Einsum e = Einsum::parse(node.attrs.s("equation"));
  const auto size = e.sizes(args.in[0].type.shape, args.in[1].type.shape);
  // Result letters outermost, in the result's order; the summed ones inside.
  std::string loop = e.out;
  for (char c : e.a) {
    if (e.out.find(c) == std::string::npos) loop += c;
  }
  const auto sa = strides_of(loop, e.a, args.in[0].type.shape),
             sb = strides_of(loop, e.b, args.in[1].type.shape);
  const size_t kept = e.out.size();
  int64_t inner = 1;
  for (size_t i = kept; i < loop.size(); ++i) inner *= size.at(loop[i]);
  Doubles a = load(args.in[0]), b = load(args.in[1]);
  const bool mixed = args.in[0].type.dtype != args.in[1].type.dtype;
  if (mixed) round_to(DType::bf16, args.in[0].type.dtype == DType::f32 ? a : b);
  Doubles out(static_cast<size_t>(args.out[0].count()));
  std::vector<int64_t> index(loop.size(), 0);
  int64_t pa = 0, pb = 0;
  for (double& result : out) {
    double sum = 0;
    for (int64_t i = 0; i < inner; ++i) {
      sum += a[static_cast<size_t>(pa)] * b[static_cast<size_t>(pb)];
      for (size_t d = loop.size(); d-- > kept;) {  // next summed index, like an odometer
        pa += sa[d], pb += sb[d];
        if (++index[d] < size.at(loop[d])) break;
        pa -= index[d] * sa[d], pb -= index[d] * sb[d];
        index[d] = 0;
      }
    }
    result = sum;
    for (size_t d = kept; d-- > 0;) {
      pa += sa[d], pb += sb[d];
      if (++index[d] < size.at(loop[d])) break;
      pa -= index[d] * sa[d], pb -= index[d] * sb[d];
      index[d] = 0;
    }
  }
  store(out, args.out[0]);
}

}  // namespace

KernelList matmul_kernels() { return {plain("matmul", matmul)}; }

}  // namespace shardrun::reference
