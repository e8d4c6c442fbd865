// Arrays as numpy writes them.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace shardrun::test {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// "(40, 6)" or "(40,)"
inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "(";
  for (const int64_t& dim : shape)
    out += std::to_string(dim) + (&dim != &shape.back() ? ", " : shape.size() == 1 ? "," : "");
  return out + ")";
}

/// A .npy file as numpy.lib.format writes it.
inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                       int version = 1, const char* fortran = "False") {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  const size_t preamble = version == 1 ? 10 : 12;
  while ((header.size() + 1 + preamble) % 64 != 0) header += ' ';
  header += '\n';
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (size_t i = 0; i < preamble - 8; ++i) out += static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

/// Of floats or whole numbers.
template <class T>
std::string npy(const std::vector<int64_t>& shape, const std::vector<T>& values) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int64_t>);
  return npy(std::is_same_v<T, float> ? "<f4" : "<i8", shape_text(shape), bytes_of(values));
}

}  // namespace shardrun::test
