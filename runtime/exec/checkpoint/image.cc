// Gathering pieces, run by run.
#include "exec/checkpoint/image.h"

#include <algorithm>
#include <cstring>

#include "exec/checkpoint/spans.h"

namespace shardrun {

void Image::copy(int64_t begin, int64_t end, char* out) {
  const auto header = static_cast<int64_t>(file_.header.size());
  if (begin < header) {
    const int64_t some = std::min(end, header) - begin;
    std::memcpy(out, file_.header.data() + begin, static_cast<size_t>(some));
    begin += some;
    out += some;
  }
  while (begin < end) {
    const Piece& piece = piece_at(begin);
    const int64_t some = std::min(end, piece.offset + piece.bytes) - begin;
    copy_piece(piece, begin - piece.offset, begin - piece.offset + some, out);
    begin += some;
    out += some;
  }
}

const Piece& Image::piece_at(int64_t begin) const {
  return *std::upper_bound(file_.pieces.begin(), file_.pieces.end(), begin,
                           [](int64_t at, const Piece& p) { return at < p.offset + p.bytes; });
}

void Image::copy_piece(const Piece& piece, int64_t begin, int64_t end, char* out) {
  const Binding& b = of_.program().bindings[piece.binding];
  // In bytes: what is asked for may end within an element.
  Box inner = piece.part.value, outer = b.box;
  for (Box* box : {&inner, &outer}) box->push_back({0, size_of(b.global.dtype)});
  const Spans spans(inner, outer);
  Device& device = of_.device();
  const bool on_device = !device.is_host() && spans.run() == piece.bytes;
  const char* from = device.is_host() || on_device ? of_.view(b).as<char>() : copy_of(b);
  spans.each(begin, end - begin, [&](int64_t at, int64_t count) {
    if (on_device) {
      device.copy_out(out, from + at, count);
    } else {
      std::memcpy(out, from + at, static_cast<size_t>(count));
    }
    out += count;
  });
}

/// Of many short runs, each would take a device's latency.
const char* Image::copy_of(const Binding& binding) {
  if (held_ != binding.buffer) {
    copy_ = of_.read(binding);
    held_ = binding.buffer;
  }
  return static_cast<const char*>(copy_.data());
}

}  // namespace shardrun
