// RE2 behind Regex.
#include "base/regex.h"

#include <re2/re2.h>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr int64_t kMostMemory = int64_t{1} << 20;  // of a pattern and what matching it remembers
constexpr int kMostInstructions = 5000;
constexpr int64_t kMostSteps = 500'000'000;  // 5 to 8 ns each where RE2 runs out of that memory

/// What people bring from other syntaxes, else RE2's own words.
std::string reason(const re2::RE2& compiled) {
  const std::string& part = compiled.error_arg();
  if (part == "(?=" || part == "(?!" || part == "(?<")
    return part + " is not supported: RE2 has neither look-ahead nor look-behind";
  if (part.size() == 2 && part[0] == '\\' && part[1] >= '1' && part[1] <= '9')
    return part + " is not supported: RE2 has no back-references";
  return compiled.error();
}

}  // namespace

Regex::Regex(std::string_view flag, const std::string& pattern) {
  SR_REQUIRE(pattern.size() <= kLongestPattern, invalid_input, flag, " '", pattern.substr(0, 40),
             "…': the regular expression is ", pattern.size(), " bytes long, wanted at most ",
             kLongestPattern);
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMostMemory);
  auto compiled = std::make_shared<re2::RE2>(pattern, options);
  SR_REQUIRE(compiled->ok(), invalid_input, flag, " '", pattern,
             "': is not a regular expression: ", reason(*compiled));
  SR_REQUIRE(compiled->ProgramSize() <= kMostInstructions, invalid_input, flag, " '", pattern,
             "': the regular expression is ", compiled->ProgramSize(),
             " instructions once its repetitions are written out, wanted at most ",
             kMostInstructions);
  compiled_ = std::move(compiled);
}

const std::string& Regex::pattern() const { return compiled_->pattern(); }

bool Regex::occurs_in(std::string_view text) const {
  return re2::RE2::PartialMatch({text.data(), text.size()}, *compiled_);
}

bool Regex::matches(std::string_view text) const {
  return re2::RE2::FullMatch({text.data(), text.size()}, *compiled_);
}

int64_t Regex::instructions() const { return compiled_->ProgramSize(); }

Regexes::Regexes(std::string_view flag, const std::vector<std::string>& patterns) : flag_(flag) {
  for (const std::string& pattern : patterns) regexes_.emplace_back(flag, pattern);
}

bool Regexes::occurs(const Regex& regex, std::string_view name) {
  steps_ += regex.instructions() * static_cast<int64_t>(name.size());
  SR_REQUIRE(steps_ <= kMostSteps, invalid_input, flag_, ": ", regexes_.size(),
             " regular expressions take too long to look for in all names; give fewer or shorter "
             "ones");
  return regex.occurs_in(name);
}

const std::string* Regexes::first_in(std::string_view name) {
  for (const Regex& regex : regexes_) {
    if (occurs(regex, name)) return &regex.pattern();
  }
  return nullptr;
}

const std::string* Regexes::first_in_none(const std::vector<std::string>& names) {
  for (const Regex& regex : regexes_) {
    bool found = false;
    for (size_t i = 0; i < names.size() && !found; ++i) found = occurs(regex, names[i]);
    if (!found) return &regex.pattern();
  }
  return nullptr;
}

}  // namespace shardrun
