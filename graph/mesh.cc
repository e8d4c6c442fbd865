// Mesh: parsing, coordinates and groups.
#include "graph/mesh.h"

#include <charconv>
#include <set>

#include "base/printable.h"
#include "graph/axes.h"

namespace shardrun {
namespace {

constexpr int64_t kUnknown = 0;  // a size that the number of ranks tells

int64_t parse_size(std::string_view text, std::string_view whole) {
  if (text == "?") return kUnknown;
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  SR_REQUIRE(ec == std::errc() && end == text.data() + text.size() && value >= 1, invalid_input,
             "mesh '", whole, "': '", text,
             "' is not a positive axis size; write data=2,model=4 or 2x4");
  return value;
}

/// "8": an axis of this name; "4*2": its sub-axes.
void add_axes(const std::string& name, std::string_view sizes, std::string_view whole,
              std::vector<Mesh::Axis>& axes) {
  const bool divided = sizes.find('*') != std::string_view::npos;
  size_t begin = 0;
  for (int part = 0; begin <= sizes.size(); ++part) {
    const size_t end = std::min(sizes.find('*', begin), sizes.size());
    axes.push_back({divided ? str(name, '.', part) : name,
                    parse_size(sizes.substr(begin, end - begin), whole)});
    begin = end + 1;
  }
}

/// Gives the axis of unknown size the one with which there are `ranks` ranks.
void find_unknown_size(std::vector<Mesh::Axis>& axes, std::string_view text, int64_t ranks) {
  Mesh::Axis* unknown = nullptr;
  int64_t known = 1;
  for (Mesh::Axis& axis : axes) {
    if (axis.size == kUnknown) {
      SR_REQUIRE(unknown == nullptr, invalid_input, "mesh '", text, "': the sizes of '",
                 unknown->name, "' and '", axis.name, "' are both unknown; give one of them");
      unknown = &axis;
    } else {
      SR_REQUIRE(!__builtin_mul_overflow(known, axis.size, &known), invalid_input, "mesh '", text,
                 "': more than 2^24 ranks");
    }
  }
  if (unknown == nullptr) return;
  SR_REQUIRE(ranks > 0, invalid_input, "mesh '", text, "': the size of '", unknown->name,
             "' follows from the number of ranks, which is not known here; give the size");
  SR_REQUIRE(ranks % known == 0, invalid_input, "mesh '", text, "': ", ranks,
             " ranks do not divide by ", known, ", what the other axes have, so no size of '",
             unknown->name, "' fits");
  unknown->size = ranks / known;
}

}  // namespace

Mesh::Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {
  SR_REQUIRE(axes_.size() <= Axes::kMost, invalid_input, "mesh: has ", axes_.size(),
             " axes; at most ", Axes::kMost, " are supported");
  std::set<std::string> names;
  int64_t ranks = 1;
  for (const Axis& axis : axes_) {
    SR_REQUIRE(!axis.name.empty(), invalid_input, "mesh: an axis has no name");
    SR_REQUIRE(axis.name.find_first_of(" ,+={}[]():?") == std::string::npos, invalid_input,
               "mesh: axis name '", axis.name, "' may not hold spaces or any of ,+={}[]():?");
    SR_REQUIRE(is_printable(axis.name), invalid_input, "mesh: axis name '", axis.name,
               "' has characters that cannot be shown");
    SR_REQUIRE(names.insert(axis.name).second, invalid_input, "mesh: axis '", axis.name,
               "' is named twice");
    SR_REQUIRE(axis.size >= 1, invalid_input, "mesh: axis '", axis.name, "' has size ", axis.size,
               ", wanted 1 or more");
    SR_REQUIRE(!__builtin_mul_overflow(ranks, axis.size, &ranks) && ranks <= (1 << 24),
               invalid_input, "mesh: more than 2^24 ranks");
  }
}

Mesh Mesh::parse(std::string_view text, int64_t ranks) {
  std::vector<Axis> axes;
  const bool named = text.find('=') != std::string_view::npos;
  int parts = 0;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(named ? ',' : 'x', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (named) {
      const size_t equals = part.find('=');
      SR_REQUIRE(equals != std::string_view::npos, invalid_input, "mesh '", text, "': '", part,
                 "' has no size; write data=2,model=4 or 2x4");
      add_axes(std::string(part.substr(0, equals)), part.substr(equals + 1), text, axes);
    } else {
      SR_REQUIRE(parts < 26, invalid_input, "mesh '", text, "' has more than 26 axes");
      add_axes(std::string(1, static_cast<char>('a' + parts)), part, text, axes);
    }
    ++parts;
    begin = end + 1;
  }
  find_unknown_size(axes, text, ranks);
  return Mesh(std::move(axes));
}

bool Mesh::has_unknown_size(std::string_view text) {
  return text.find('?') != std::string_view::npos;
}

std::vector<int> Mesh::named(std::string_view name) const {
  std::vector<int> parts;
  for (int i = 0; i < axis_count(); ++i) {
    const std::string& own = axes_[static_cast<size_t>(i)].name;
    if (own == name) return {i};
    if (own == str(name, '.', parts.size())) parts.push_back(i);
  }
  return parts;
}

int64_t Mesh::size() const {
  int64_t n = 1;
  for (const Axis& axis : axes_) n *= axis.size;
  return n;
}

std::vector<int64_t> Mesh::coordinates(int64_t rank) const {
  std::vector<int64_t> out(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    out[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return out;
}

int64_t Mesh::rank_at(const std::vector<int64_t>& coordinates) const {
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) rank = rank * axes_[i].size + coordinates[i];
  return rank;
}

std::vector<int64_t> Mesh::group(int64_t rank, const std::vector<int>& axes) const {
  int64_t count = 1;
  for (int axis : axes) count *= axis_size(axis);
  std::vector<int64_t> ranks;
  std::vector<int64_t> at = coordinates(rank);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    for (size_t k = axes.size(); k-- > 0;) {
      at[static_cast<size_t>(axes[k])] = rest % axis_size(axes[k]);
      rest /= axis_size(axes[k]);
    }
    ranks.push_back(rank_at(at));
  }
  return ranks;
}

std::string Mesh::to_string() const {
  std::string out;
  for (const Axis& axis : axes_)
    out += (out.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
  return out.empty() ? "1" : out;
}

}  // namespace shardrun
