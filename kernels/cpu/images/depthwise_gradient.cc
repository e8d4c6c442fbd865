// conv_weight_grad where each channel is convolved alone, for windows that oneDNN has no kernel of
// that kind for: 16 channels at a time. Lines of x and dy are gathered as f32, 16 channels a
// position with zeros around the image; what type they have and where their channels stand is seen
// there alone.
#include <algorithm>
#include <array>

#include "base/round_up.h"
#include "graph/ops/window.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/images/convolution.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/processor.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int kSums = kLanesFitRegisters ? 9 : 5;  // in registers at a time
constexpr int64_t kMostTaps = 128;                 // of a window

// Lines of dy at a time: as many as have what they meet gathered in the second cache, if that is
// not too few, else for some of the channels at a time.
constexpr int64_t kMostLines = 8, kFewLines = 3, kNearBytes = int64_t{512} << 10;
// Parts of all lines, each with its own sums, at most, and lines in one at least, as it begins with
// gathering what a whole window meets. They depend on the shape alone.
constexpr int64_t kParts = 32, kLeastLines = 8;

/// Offset k of the window, and the line of x that it meets.
struct Meeting {
  int64_t k, at;
};

/// Positions of a line from its first channel on: `step` elements from one to the next, `plane`
/// from a channel to the next.
template <class T>
struct Line {
  const T* at;
  int64_t step, plane, positions;
};

/// 16 channels, or fewer if there are no more, as [position][16].
template <class T>
void gather(const Line<T>& from, int64_t channels, float* to) {
  if (channels == kLanes && from.step == 1 && from.positions >= kLanes) {
    for (int64_t p = 0; p < from.positions; p += kLanes) {
      p = std::min(p, from.positions - kLanes);
      Units tile[kLanes];
      for (int64_t c = 0; c < kLanes; ++c)
        tile[c] = std::bit_cast<Units>(load_lanes(from.at + c * from.plane + p));
      transpose(tile);
      std::memcpy(to + p * kLanes, tile, sizeof(tile));
    }
    return;
  }
  for (int64_t p = 0; p < from.positions; ++p) {
    for (int64_t c = 0; c < channels; ++c)
      to[p * kLanes + c] = as_float(from.at[p * from.step + c * from.plane]);
  }
}

/// Of a line of dy and a window: where position 0 meets x for each tap, and where its sum is.
struct Taps {
  const float* x[kMostTaps];
  float* sum[kMostTaps];
  int64_t count = 0;
};

/// Adds the products of n taps, from the first-th on; `step` floats from what a position of dy
/// meets to what the next one does.
template <int n>
void add_products(const Taps& taps, int64_t first, int64_t step, const float* dy,
                  int64_t positions) {
  const float* x[n];
  Lanes sum[n];
  for (int i = 0; i < n; ++i) x[i] = taps.x[first + i], sum[i] = load_lanes(taps.sum[first + i]);
  for (int64_t p = 0; p < positions; ++p) {
    const Lanes d = load_lanes(dy + p * kLanes);
    for (int i = 0; i < n; ++i) sum[i] += d * load_lanes(x[i] + p * step);
  }
  for (int i = 0; i < n; ++i) store_lanes(taps.sum[first + i], sum[i]);
}
template <int... n>
constexpr auto products_of(std::integer_sequence<int, n...>) {
  return std::array{add_products<n + 1>...};
}

class DepthwiseGradient {
 public:
  explicit DepthwiseGradient(const ConvolutionShape& s) : s_(s) {
    if (s_.in.size() == 1) {
      for (Shape* dims : {&s_.in, &s_.out, &s_.kernel, &s_.strides, &s_.dilations})
        dims->insert(dims->begin(), 1);
      s_.low.insert(s_.low.begin(), 0);
    }
    taps_ = element_count(s_.kernel);
    blocks_ = divide_up(s_.groups, kLanes);
    meetings_.resize(static_cast<size_t>(s_.out[0]));
    for (int64_t o = 0; o < s_.out[0]; ++o) {
      for (int64_t k = 0; k < s_.kernel[0]; ++k) {
        const int64_t i = o * s_.strides[0] + k * s_.dilations[0] - s_.low[0];
        if (i >= 0 && i < s_.in[0]) meetings_[static_cast<size_t>(o)].push_back({k, i});
      }
    }
    before_ = std::max<int64_t>(0, s_.low[1]);
    const int64_t reach = (s_.kernel[1] - 1) * s_.dilations[1] - s_.low[1],
                  last = (s_.out[1] - 1) * s_.strides[1] + reach;
    line_ = (before_ + std::max(s_.in[1], last + 1)) * kLanes;
    group_ = kMostLines;
    while (group_ > kFewLines && kept_lines(group_) * line_ * blocks_ * 4 > kNearBytes) --group_;
    kept_ = kept_lines(group_);
    spans_ = divide_up(blocks_, std::clamp<int64_t>(kNearBytes / 4 / (kept_ * line_), 1, blocks_));
    most_blocks_ = divide_up(blocks_, spans_);
    parts_ = std::min(kParts, divide_up(lines(), kLeastLines));
    sums_ = parts_ * blocks_ * taps_ * kLanes;
    own_ = most_blocks_ * (kept_ * line_ + group_ * dy_line());
  }

  int64_t workspace_bytes() const { return (sums_ + int64_t{omp_get_max_threads()} * own_) * 4; }

  template <class T>
  void run(const KernelArgs& args) const {
    auto* sums = static_cast<float*>(args.workspace);
    add_lines(args.in[0].as<T>(), args.in[1].as<T>(), sums);
    if (s_.weights_dtype == DType::f32) {
      add_parts(sums, args.out[0].as<float>());
    } else {
      add_parts(sums, args.out[0].as<uint16_t>());
    }
  }

 private:
  int64_t lines() const { return s_.batch * s_.out[0]; }  // of dy, of all images
  int64_t dy_line() const { return s_.out[1] * kLanes; }

  /// Lines [low, high) of x that lines [begin, end) of dy meet.
  std::pair<int64_t, int64_t> met_by(int64_t begin, int64_t end) const {
    int64_t low = s_.in[0], high = 0;
    for (int64_t line = begin; line < end; ++line) {
      for (const Meeting& m : meetings_[static_cast<size_t>(line)])
        low = std::min(low, m.at), high = std::max(high, m.at + 1);
    }
    return {low, high};
  }
  /// How many they are at most, of so many lines of dy.
  int64_t kept_lines(int64_t group) const {
    int64_t most = 1;
    for (int64_t line = 0; line < s_.out[0]; ++line) {
      const auto [low, high] = met_by(line, std::min(line + group, s_.out[0]));
      most = std::max(most, high - low);
    }
    return most;
  }

  /// The first of the block-th 16 channels. The last ones are those at the end, so that no vector
  /// sticks out; channels of two blocks are computed twice.
  int64_t first_channel(int64_t block) const {
    return std::max<int64_t>(0, std::min(block * kLanes, s_.groups - kLanes));
  }
  int64_t channels() const { return std::min(s_.groups, kLanes); }

  /// Blocks of 16 channels that are gathered together.
  struct Span {
    int64_t begin, end;
  };
  Span span(int64_t i) const { return {blocks_ * i / spans_, blocks_ * (i + 1) / spans_}; }

  /// Line `at` of an image of sizes `size`, from a channel on.
  template <class T>
  Line<T> line_of(const T* images, const Shape& size, int64_t image, int64_t at,
                  int64_t channel) const {
    const int64_t positions = size[0] * size[1];
    if (s_.channels_last) {
      const int64_t first = image * positions + at * size[1];
      return {images + first * s_.groups + channel, s_.groups, 1, size[1]};
    }
    const int64_t first = (image * s_.groups + channel) * positions + at * size[1];
    return {images + first, 1, positions, size[1]};
  }

  /// The same of all blocks of a span, `step` floats from one to the next.
  template <class T>
  void gather_span(const T* images, const Shape& size, int64_t image, int64_t at, Span span,
                   float* to, int64_t step) const {
    if (!s_.channels_last || channels() < kLanes) {
      for (int64_t b = span.begin; b < span.end; ++b, to += step)
        gather(line_of(images, size, image, at, first_channel(b)), channels(), to);
      return;
    }
    const Line<T> line = line_of(images, size, image, at, 0);  // as it lies in memory
    const int64_t whole = std::min(span.end, s_.groups / kLanes);
    for (int64_t p = 0; p < line.positions; ++p) {
      const T* from = line.at + p * line.step;
      float* out = to + p * kLanes;
      for (int64_t b = span.begin; b < whole; ++b, out += step)
        store_lanes(out, load_lanes(from + b * kLanes));
      if (whole < span.end) store_lanes(out, load_lanes(from + s_.groups - kLanes));
    }
  }

  /// A thread's memory: lines of x [block][kept_] and of dy [block][group_].
  struct Own {
    float *x, *dy;
  };
  float* x_line(const Own& own, int64_t line, int64_t b) const {
    return own.x + (b * kept_ + line % kept_) * line_ + before_ * kLanes;
  }

  /// Sums of each part, as [part][block][tap][16].
  template <class T>
  void add_lines(const T* x, const T* dy, float* sums) const {
    parallel_ranges(parts_ * spans_, 1, [&](int64_t begin, int64_t end) {
      float* memory = sums + sums_ + omp_get_thread_num() * own_;
      const Own own{memory, memory + kept_ * most_blocks_ * line_};
      std::fill(own.x, own.dy, 0.0f);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i / spans_;
        const Span blocks = span(i % spans_);
        float* to = sums + (part * blocks_ + blocks.begin) * taps_ * kLanes;
        std::fill_n(to, (blocks.end - blocks.begin) * taps_ * kLanes, 0.0f);
        add_span(x, dy, lines() * part / parts_, lines() * (part + 1) / parts_, blocks, own, to);
      }
    });
  }

  /// Of lines [begin, end): some lines of an image at a time.
  template <class T>
  void add_span(const T* x, const T* dy, int64_t begin, int64_t end, Span blocks, const Own& own,
                float* sums) const {
    const int64_t step = group_ * dy_line();  // from a block's lines of dy to the next one's
    for (int64_t next = 0; begin < end;) {
      const int64_t image = begin / s_.out[0], first = begin % s_.out[0];
      const int64_t last = std::min({first + group_, s_.out[0], first + end - begin});
      if (first == 0) next = 0;
      const auto [low, high] = met_by(first, last);
      for (next = std::max(next, low); next < high; ++next)
        gather_span(x, s_.in, image, next, blocks, x_line(own, next, 0), kept_ * line_);
      for (int64_t line = first; line < last; ++line)
        gather_span(dy, s_.out, image, line, blocks, own.dy + (line - first) * dy_line(), step);
      for (int64_t b = 0; b < blocks.end - blocks.begin; ++b) {
        for (int64_t line = first; line < last; ++line)
          add_line(line, own, b, own.dy + b * step + (line - first) * dy_line(),
                   sums + b * taps_ * kLanes);
      }
      begin += last - first;
    }
  }

  void add_line(int64_t line, const Own& own, int64_t b, const float* dy, float* sums) const {
    static constexpr auto kProducts = products_of(std::make_integer_sequence<int, kSums>{});
    Taps taps;
    for (const Meeting& m : meetings_[static_cast<size_t>(line)]) {
      for (int64_t k = 0; k < s_.kernel[1]; ++k) {
        taps.x[taps.count] = x_line(own, m.at, b) + (k * s_.dilations[1] - s_.low[1]) * kLanes;
        taps.sum[taps.count++] = sums + (m.k * s_.kernel[1] + k) * kLanes;
      }
    }
    for (int64_t first = 0, runs = divide_up(taps.count, kSums); runs > 0; --runs) {
      const int64_t n = divide_up(taps.count - first, runs);
      kProducts[static_cast<size_t>(n - 1)](taps, first, s_.strides[1] * kLanes, dy, s_.out[1]);
      first += n;
    }
  }

  template <class W>
  void add_parts(const float* sums, W* dw) const {
    const int64_t all = blocks_ * taps_ * kLanes;
    parallel_ranges(blocks_, row_grain(parts_ * taps_ * kLanes), [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t channel = first_channel(block);
        for (int64_t tap = 0; tap < taps_; ++tap) {
          Lanes sum{};
          for (int64_t part = 0; part < parts_; ++part)
            sum += load_lanes(sums + part * all + (block * taps_ + tap) * kLanes);
          // What another block computes as well is left to it.
          for (int64_t c = block * kLanes - channel; c < channels(); ++c)
            assign(dw[(channel + c) * taps_ + tap], sum[c]);
        }
      }
    });
  }

  ConvolutionShape s_;  // of two spatial dims
  int64_t taps_ = 1, blocks_ = 1, parts_ = 1;
  std::vector<std::vector<Meeting>> meetings_;          // by line of dy
  int64_t group_ = 1, kept_ = 1;                        // lines of dy and of x at a time
  int64_t spans_ = 1, most_blocks_ = 1;                 // of blocks, and how many are in one
  int64_t line_ = 0, before_ = 0, sums_ = 0, own_ = 0;  // floats; positions before a line's first
};

std::optional<std::string> refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  ConvolutionShape s = convolution_shape(call);
  if (s.groups == 1 || s.in_channels != 1 || s.out_channels != 1)
    return "convolves each channel alone";
  if (s.in.size() > 2) return "has one or two spatial dims";
  if (is_zero(s)) return "nothing is computed";
  if (element_count(s.kernel) > kMostTaps) return str("has windows of at most ", kMostTaps);
  if (!multiplies_bf16()) s.dtype = s.weights_dtype = DType::f32;  // what oneDNN would be given
  std::string why;
  const auto other = Convolution::make(s, &why);
  if (other && other->of_channels_alone()) return "oneDNN has one of its own";
  return std::nullopt;
}

}  // namespace

KernelList depthwise_kernels() {
  return {{"conv_weight_grad", "cpu:depthwise", refuses, [](const KernelCall& call) {
             const DepthwiseGradient kernel(convolution_shape(call));
             return PreparedKernel{[kernel, dtype = call.in[0].dtype](const KernelArgs& args) {
                                     if (dtype == DType::f32) {
                                       kernel.run<float>(args);
                                     } else {
                                       kernel.run<uint16_t>(args);
                                     }
                                   },
                                   kernel.workspace_bytes(), "cpu:depthwise"};
           }}};
}

}  // namespace shardrun::cpu
