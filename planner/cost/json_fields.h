// Strict reading of JSON objects: every field is asked for by name, and those that nobody asked for
// are errors.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace shardrun {

using Json = nlohmann::ordered_json;

/// One JSON object, its place in the file, and which of its fields were asked for. Getters throw
/// invalid_input naming origin, field, what they got and what they wanted. Origin and object
/// outlive it.
class Fields {
 public:
  Fields(const Json& object, const std::string& origin, std::string place)
      : object_(object), origin_(origin), place_(std::move(place)) {
    if (!object.is_object()) wrong("", object, "an object");
  }

  const Json* find(const std::string& name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  const Json& get(const std::string& name) {
    const Json* value = find(name);
    SR_REQUIRE(value != nullptr, invalid_input, origin_, ": field '", place_, name, "' is missing");
    return *value;
  }

  std::string text(const std::string& name) {
    const Json& value = get(name);
    if (!value.is_string()) wrong(name, value, "a text");
    return value.get<std::string>();
  }
  double number(const std::string& name, bool zero = false) {
    return number_of(name, get(name), zero);
  }
  double number(const std::string& name, bool zero, double otherwise) {
    const Json* value = find(name);
    return value == nullptr ? otherwise : number_of(name, *value, zero);
  }
  int64_t count(const std::string& name, int64_t otherwise) {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    const double number = number_of(name, *value, false);
    if (number != std::floor(number) || number > 0x1p53) wrong(name, *value, "a whole number");
    return static_cast<int64_t>(number);
  }
  bool flag(const std::string& name, bool otherwise) {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }
  Fields object(const std::string& name) { return Fields(get(name), origin_, place_ + name + "."); }
  /// The objects of a list; none if the field is missing.
  std::vector<Fields> objects(const std::string& name) {
    std::vector<Fields> out;
    const Json* list = find(name);
    if (list == nullptr) return out;
    if (!list->is_array()) wrong(name, *list, "a list");
    for (size_t i = 0; i < list->size(); ++i)
      out.emplace_back((*list)[i], origin_, place_ + name + "[" + std::to_string(i) + "].");
    return out;
  }
  std::vector<double> numbers(const std::string& name) {
    const Json& list = get(name);
    if (!list.is_array() || list.empty()) wrong(name, list, "a list of numbers");
    std::vector<double> out;
    for (const Json& item : list) out.push_back(number_of(name, item, false));
    return out;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& item : object_.items()) out.push_back(item.key());
    return out;
  }

  /// After everything was asked for.
  void finish() const {
    for (const auto& item : object_.items()) {
      if (known_.count(item.key()) > 0) continue;
      std::string wanted;
      for (const std::string& name : known_) wanted += (wanted.empty() ? "" : ", ") + name;
      fail(ErrorKind::invalid_input, origin_, ": field '", place_, item.key(),
           "' is not known; known are ", wanted);
    }
  }

  [[noreturn]] void wrong(const std::string& name, const Json& got, const char* wanted) const {
    std::string place = place_ + name;
    if (!place.empty() && place.back() == '.') place.pop_back();
    fail(ErrorKind::invalid_input, origin_, ": ",
         place.empty() ? "the file" : "field '" + place + "'", " is ", excerpt(got.dump(), 40),
         ", wanted ", wanted);
  }

 private:
  double number_of(const std::string& name, const Json& value, bool zero) const {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(number) || number < 0 || (number == 0 && !zero))
      wrong(name, value, zero ? "a number of at least 0" : "a number above 0");
    // Sums and quotients of such figures are finite.
    if (number > 1e30 || (number < 1e-30 && number > 0))
      wrong(name, value, "a number from 1e-30 to 1e30");
    return number;
  }

  const Json& object_;
  const std::string& origin_;
  std::string place_;
  std::set<std::string> known_;
};

}  // namespace shardrun
