// Attrs: the named attributes of a node.
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"

namespace shardrun {

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

/// Getters without a default throw internal if the attribute is absent or of another type.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> init) : map_(init) {}

  bool has(const std::string& name) const { return map_.count(name) > 0; }
  void set(const std::string& name, Attr value) { map_[name] = std::move(value); }

  int64_t i(const std::string& name) const { return get<int64_t>(name); }
  double f(const std::string& name) const { return get<double>(name); }
  const std::string& s(const std::string& name) const { return get<std::string>(name); }
  const std::vector<int64_t>& ints(const std::string& name) const {
    return get<std::vector<int64_t>>(name);
  }
  int64_t i(const std::string& name, int64_t otherwise) const {
    return has(name) ? i(name) : otherwise;
  }
  double f(const std::string& name, double otherwise) const {
    return has(name) ? f(name) : otherwise;
  }
  std::string s(const std::string& name, const std::string& otherwise) const {
    return has(name) ? s(name) : otherwise;
  }

  const std::map<std::string, Attr>& all() const { return map_; }
  friend bool operator==(const Attrs&, const Attrs&) = default;

 private:
  template <class T>
  const T& get(const std::string& name) const {
    auto it = map_.find(name);
    SR_REQUIRE(it != map_.end(), internal, "attribute '", name, "' is missing");
    const T* value = std::get_if<T>(&it->second);
    SR_REQUIRE(value != nullptr, internal, "attribute '", name, "' has another type");
    return *value;
  }
  std::map<std::string, Attr> map_;
};

std::string to_string(const Attr& attr);
std::string to_string(const Attrs& attrs);  // "axis=1, perm=[0, 2, 1]"

}  // namespace shardrun
