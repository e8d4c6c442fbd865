// Parsing of JSON texts that users give, with errors that name the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {

/// Throws invalid_input for a text that is not JSON: "plan.json: is not JSON, wanted a plan; at
/// line 3, column 14 stands 'NaN'".
[[noreturn]] void refuse_json(const std::string& text, const std::string& origin,
                              const char* wanted);
/// Throws invalid_input, naming the field, where an object has a field twice, or where a name or
/// text has a byte of 0, at which sentences would end.
void check_fields(const std::string& text, const std::string& origin);

/// `text`, which ought to be `wanted` ("a plan"), as one of nlohmann's kinds of Json. Throws
/// invalid_input, with `origin` in front, where it is not JSON, as check_fields does (of a field
/// that is there twice nlohmann keeps the last), and where lists and objects are nested beyond any
/// file of ours: writing and copying a value recurses, so a file of a million brackets would
/// overflow the stack.
template <class Json>
Json parse_json(const std::string& text, const std::string& origin, const char* wanted) {
  constexpr int kDeepest = 64;
  std::vector<size_t> fields;  // that each open object was given
  bool twice = false;
  const auto look = [&](int depth, typename Json::parse_event_t event, const Json& value) {
    SR_REQUIRE(depth <= kDeepest, invalid_input, origin,
               ": lists and objects are nested deeper than ", kDeepest);
    if (event == Json::parse_event_t::object_start) fields.push_back(0);
    if (event == Json::parse_event_t::key) ++fields.back();
    if (event == Json::parse_event_t::object_end) {
      twice |= value.size() != fields.back();
      fields.pop_back();
    }
    return true;
  };
  // The parser takes a byte of 0 for the end of the text.
  Json root = text.find('\0') == std::string::npos ? Json::parse(text, look, false)
                                                   : Json(Json::value_t::discarded);
  if (root.is_discarded()) refuse_json(text, origin, wanted);
  if (twice || text.find("\\u0000") != std::string::npos) check_fields(text, origin);
  return root;
}

/// The number, if it is whole and a T holds it. (nlohmann's get() cuts it off.)
template <class T, class Json>
std::optional<T> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<uint64_t>();
    return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.template get<int64_t>();
  return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
}

}  // namespace shardrun
