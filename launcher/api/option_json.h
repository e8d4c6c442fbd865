// Options as JSON, by their table.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "option_fields.h"

namespace shardrun {

template <class T>
nlohmann::json option_value(const T& value) {
  return value;
}
template <class T>
nlohmann::json option_value(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

/// The fields with one of these uses, by name.
template <class Options>
nlohmann::json options_json(const Options& options, unsigned use) {
  nlohmann::json out = nlohmann::json::object();
  each_option(options, [&](const OptionRow& row, const auto& value) {
    if (row.use & use) out[row.name] = option_value(value);
  });
  return out;
}

/// What require_same is given: values, and of a file that each machine has at its own place
/// {"a plan_file", true}.
template <class Options>
nlohmann::json same_on_ranks(const Options& options) {
  nlohmann::json out = options_json(options, kSame);
  each_option(options, [&](const OptionRow& row, const auto& value) {
    if constexpr (requires { value.empty(); }) {
      if (row.use & kSamePresence) out[std::string("a ") + row.name] = !value.empty();
    }
  });
  return out;
}

}  // namespace shardrun
