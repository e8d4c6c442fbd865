// Tags of layouts, and places of elements.
#include "program/ops/weight_layout.h"

#include <algorithm>
#include <sstream>

namespace shardrun {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

WeightLayout WeightLayout::parse(const std::string& tag) {
  const auto require = [&](bool good, const char* what) {
    SR_REQUIRE(good, invalid_input, "layout '", tag, "' ", what);
  };
  WeightLayout out;
  std::vector<bool> capital(tag.size());
  size_t at = 0;
  for (; at < tag.size() && !is_digit(tag[at]); ++at) {
    const bool upper = tag[at] >= 'A' && tag[at] <= 'Z';
    const int64_t dim = tag[at] - (upper ? 'A' : 'a');
    require(dim >= 0 && static_cast<size_t>(dim) < tag.size() &&
                std::find(out.order.begin(), out.order.end(), dim) == out.order.end(),
            "wants a letter for each dim, once");
    capital[static_cast<size_t>(dim)] = upper;
    out.order.push_back(dim);
  }
  for (const int64_t dim : out.order)
    require(static_cast<size_t>(dim) < out.order.size(), "leaves out a dim");
  while (at < tag.size()) {
    int64_t block = 0;
    for (; at < tag.size() && is_digit(tag[at]) && block < 1 << 16; ++at)
      block = block * 10 + (tag[at] - '0');
    const int64_t dim = at < tag.size() ? tag[at++] - 'a' : -1;
    require(block > 0 && dim >= 0 && static_cast<size_t>(dim) < out.order.size() &&
                capital[static_cast<size_t>(dim)],
            "wants blocks of dims with capitals, as 16a");
    out.blocks.push_back(block);
    out.of.push_back(dim);
  }
  for (const int64_t dim : out.order)
    require(!capital[static_cast<size_t>(dim)] ||
                std::find(out.of.begin(), out.of.end(), dim) != out.of.end(),
            "has a capital without blocks");
  return out;
}

std::string WeightLayout::to_string() const {
  std::string out;
  for (const int64_t dim : order) {
    const bool in_blocks = std::find(of.begin(), of.end(), dim) != of.end();
    out += static_cast<char>((in_blocks ? 'A' : 'a') + dim);
  }
  for (size_t b = 0; b < blocks.size(); ++b) out += str(blocks[b], static_cast<char>('a' + of[b]));
  return out;
}

Shape WeightLayout::counts(const Shape& dims) const {
  SR_REQUIRE(order.size() == dims.size(), invalid_input, "layout ", to_string(), " has ",
             order.size(), " dims, weights have ", shardrun::to_string(dims));
  Shape block(dims.size(), 1), out = dims;
  for (size_t b = 0; b < of.size(); ++b) block[static_cast<size_t>(of[b])] *= blocks[b];
  for (size_t d = 0; d < dims.size(); ++d) out[d] = (dims[d] + block[d] - 1) / block[d];
  return out;
}

TensorType WeightLayout::type(const TensorType& weights) const {
  int64_t elements = element_count(counts(weights.shape));
  for (const int64_t block : blocks) elements *= block;
  return {weights.dtype, {elements}};
}

int64_t WeightLayout::place(const Shape& dims, Shape at) const {
  int64_t out = 0, step = 1;
  for (size_t b = of.size(); b-- > 0; step *= blocks[b]) {
    int64_t& index = at[static_cast<size_t>(of[b])];
    out += index % blocks[b] * step;
    index /= blocks[b];
  }
  const Shape count = counts(dims);
  for (size_t o = order.size(); o-- > 0;) {
    const auto d = static_cast<size_t>(order[o]);
    out += at[d] * step;
    step *= count[d];
  }
  return out;
}

std::vector<WeightLayout> parse_layouts(const std::string& tags) {
  std::vector<WeightLayout> out;
  std::istringstream in(tags);
  for (std::string tag; in >> tag;) out.push_back(WeightLayout::parse(tag));
  return out;
}

}  // namespace shardrun
