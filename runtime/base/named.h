// Values of an enum by the names that users give them, one list for parsing and for sentences.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun {

template <class Kind>
struct Named {
  std::string_view name;
  Kind kind;
  std::string_view also = "";  // what else it is called
};

/// kind_named(kSolvers, "lns"); nullopt: no such name.
template <class Kind, size_t count>
std::optional<Kind> kind_named(const Named<Kind> (&all)[count], std::string_view name) {
  for (const Named<Kind>& one : all) {
    if (one.name == name) return one.kind;
  }
  return std::nullopt;
}

/// name_of(kSolvers, SolverKind::lns); "" of what has none.
template <class Kind, size_t count>
constexpr std::string_view name_of(const Named<Kind> (&all)[count], Kind kind) {
  for (const Named<Kind>& one : all) {
    if (one.kind == kind) return one.name;
  }
  return "";
}

/// "auto, ilp, beam"; with `last` = " or ": "auto, ilp or beam".
template <class Kind, size_t count>
std::string names_of(const Named<Kind> (&all)[count], const char* last = ", ",
                     bool with_also = false) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += i + 1 == count ? last : ", ";
    out += all[i].name;
    if (with_also && !all[i].also.empty()) out += " (" + std::string(all[i].also) + ")";
  }
  return out;
}

}  // namespace shardrun
