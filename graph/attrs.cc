// Printing of attributes.
#include "graph/attrs.h"

namespace shardrun {
namespace {

std::string text(int64_t value) { return std::to_string(value); }
std::string text(double value) { return str(value); }

template <class T>
std::string list(const std::vector<T>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + text(values[i]);
  return out + "]";
}

}  // namespace

std::string to_string(const Attr& attr) {
  if (const auto* i = std::get_if<int64_t>(&attr)) return text(*i);
  if (const auto* f = std::get_if<double>(&attr)) return text(*f);
  if (const auto* s = std::get_if<std::string>(&attr)) return *s;
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr)) return list(*ints);
  return list(std::get<std::vector<double>>(attr));
}

std::string to_string(const Attrs& attrs) {
  std::string out;
  for (const auto& [name, value] : attrs.all())
    out += (out.empty() ? "" : ", ") + name + "=" + to_string(value);
  return out;
}

}  // namespace shardrun
