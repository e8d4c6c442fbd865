// A call's op, attributes and types in one string.
#include "kernels/call_signature.h"

namespace shardrun {
namespace {

template <class T>
void append_raw(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::string signature(const KernelCall& call) {
  std::string key = call.node.op;
  for (const auto& [name, attr] : call.node.attrs.all()) {
    key += '\0';
    key += name;
    append_raw(key, attr.index());
    if (const auto* i = std::get_if<int64_t>(&attr)) append_raw(key, *i);
    if (const auto* f = std::get_if<double>(&attr)) append_raw(key, *f);
    if (const auto* s = std::get_if<std::string>(&attr)) key += *s;
    if (const auto* v = std::get_if<std::vector<int64_t>>(&attr)) {
      append_raw(key, v->size());
      for (int64_t i : *v) append_raw(key, i);
    }
    if (const auto* v = std::get_if<std::vector<double>>(&attr)) {
      append_raw(key, v->size());
      for (double f : *v) append_raw(key, f);
    }
  }
  for (std::span<const TensorType> types : {call.in, call.out}) {
    key += '|';
    for (const TensorType& type : types) {
      append_raw(key, type.dtype);
      append_raw(key, type.shape.size());
      for (int64_t extent : type.shape) append_raw(key, extent);
    }
  }
  return key;
}

}  // namespace shardrun
