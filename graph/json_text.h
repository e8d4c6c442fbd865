// Parsing of JSON texts that users give, with errors that name the place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace shardrun {

/// `text`, which ought to be `wanted` ("a plan"), as one of nlohmann's kinds of Json. Throws
/// invalid_input, with `origin` in front, where it is not JSON or has lists and objects nested
/// beyond any file of ours: writing and copying a value recurses, so a file of a million brackets
/// would overflow the stack.
template <class Json>
Json parse_json(const std::string& text, const std::string& origin, const char* wanted) {
  constexpr int kDeepest = 64;
  const auto check_depth = [&](int depth, typename Json::parse_event_t, const Json&) {
    SR_REQUIRE(depth <= kDeepest, invalid_input, origin,
               ": lists and objects are nested deeper than ", kDeepest);
    return true;
  };
  Json root = Json::parse(text, check_depth, false);
  SR_REQUIRE(!root.is_discarded(), invalid_input, origin, ": is not JSON, wanted ", wanted);
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
