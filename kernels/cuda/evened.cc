// Which operand lies so that a copy may pay, and its parts.
#include "kernels/cuda/evened.h"

#include <algorithm>
#include <map>

#include "base/round_up.h"

namespace shardrun::cuda {
namespace {

constexpr int64_t kGroup = 8;       // bf16 numbers of 16 bytes
constexpr int64_t kFewLines = 256;  // fewer are no product to speak of

}  // namespace

int64_t EvenedPlan::workspace_bytes() const {
  int64_t most = 0;
  for (const Part& part : parts) most = std::max(most, part.shape.workspace_bytes());
  return copy_bytes + most;
}

std::optional<EvenedPlan> evened(const LtShape& s, double least_flops, int64_t most_bytes) {
  const double flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.cols) *
                       static_cast<double>(s.depth);
  const bool odd_a = s.a.ld % kGroup != 0, odd_b = s.b.ld % kGroup != 0;
  if (s.in != DType::bf16 || s.ends() || s.batch > 1 || s.starts.size() > 1 ||
      flops < least_flops || odd_a == odd_b)
    return std::nullopt;
  EvenedPlan out;
  out.of_a = odd_a;
  const bool transposed = odd_a ? s.transpose_a : s.transpose_b;
  // Stored lines by lines' length: a is [rows, depth] or [depth, rows]; b [depth, cols] or turned.
  const bool along_depth = odd_a != transposed;
  const int64_t across = odd_a ? s.rows : s.cols;
  const int64_t lines = along_depth ? s.depth : across;
  out.width = along_depth ? across : s.depth;
  out.pitch = round_up(out.width, kGroup);
  out.from_pitch = odd_a ? s.a.ld : s.b.ld;
  int64_t some = std::max(most_bytes / (out.pitch * 2), kFewLines) / kFewLines * kFewLines;
  if (along_depth && lines > some && s.out != DType::f32) return std::nullopt;
  some = std::min(some, lines);
  const LtShape::Start& start = s.starts[0];
  for (int64_t first = 0; first < lines; first += some) {
    EvenedPlan::Part part;
    part.shape = s;
    part.shape.starts = {{}};
    part.first = first, part.lines = std::min(some, lines - first);
    part.a = start.a, part.b = start.b, part.d = start.d;
    if (along_depth) {
      part.shape.depth = part.lines;
      part.shape.adds_c = first > 0;
      if (odd_a) {
        part.b += s.transpose_b ? first * s.b.ld : first;
      } else {
        part.a += s.transpose_a ? first : first * s.a.ld;
      }
    } else if (odd_a) {
      part.shape.rows = part.lines;
      part.d += first;
    } else {
      part.shape.cols = part.lines;
      part.d += first * s.d.ld;
    }
    (odd_a ? part.shape.a : part.shape.b).ld = out.pitch;
    out.parts.push_back(part);
  }
  out.copy_bytes = round_up(some * out.pitch * 2, 256);
  return out;
}

EvenedProduct::EvenedProduct(EvenedPlan plan) : plan_(std::move(plan)) {
  std::map<std::string, std::shared_ptr<LtProduct>> made;
  for (const EvenedPlan::Part& part : plan_.parts) {
    std::shared_ptr<LtProduct>& product = made[part.shape.key()];
    if (!product) product = make_lt_product(part.shape);
    products_.push_back(product);
  }
}

void EvenedProduct::run(const LtOperands& o, void* workspace, void* stream) const {
  char* const rest = static_cast<char*>(workspace) + plan_.copy_bytes;
  const auto at = [](const void* base, int64_t element) {
    return static_cast<const void*>(static_cast<const uint16_t*>(base) + element);
  };
  for (size_t i = 0; i < products_.size(); ++i) {
    const EvenedPlan::Part& part = plan_.parts[i];
    const void *a = at(o.a, part.a), *b = at(o.b, part.b);
    const void*& copied = plan_.of_a ? a : b;
    const EvenLines body{static_cast<const uint16_t*>(copied) + part.first * plan_.from_pitch,
                         static_cast<EvenLines::Eight*>(workspace), plan_.width, plan_.from_pitch,
                         plan_.pitch / kGroup};
    launch_even_lines(static_cast<cudaStream_t>(stream), body, part.lines);
    copied = workspace;
    void* d = static_cast<char*>(o.d) + part.d * size_of(part.shape.out);
    products_[i]->run({a, b, d, part.shape.adds_c ? d : nullptr}, rest, stream);
  }
}

}  // namespace shardrun::cuda
