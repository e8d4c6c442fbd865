// Regular expressions that users and model files give, matched by RE2: in time linear in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace shardrun {

inline constexpr size_t kLongestPattern = 1000;  // bytes

/// One pattern in RE2's syntax, compiled once: Perl's without look-around and back-references.
/// Texts are UTF-8. Copies share the compiled pattern.
class Regex {
 public:
  /// `flag` is who gave it: "--freeze". Throws invalid_input, naming both, unless it is a pattern
  /// of at most kLongestPattern bytes, and 5,000 instructions once its repetitions are written out.
  Regex(std::string_view flag, const std::string& pattern);

  const std::string& pattern() const;
  bool occurs_in(std::string_view text) const;
  bool matches(std::string_view text) const;  // the whole of it
  int64_t instructions() const;               // a byte of text takes at most so many steps

 private:
  std::shared_ptr<const re2::RE2> compiled_;
};

/// All patterns of one flag, looked for in names. Together they take at most some seconds: beyond
/// 5e8 instructions times bytes of names they are refused.
class Regexes {
 public:
  /// Throws as Regex does.
  Regexes(std::string_view flag, const std::vector<std::string>& patterns);

  /// The first pattern that occurs in `name`; null if none does.
  const std::string* first_in(std::string_view name);
  /// The first pattern that occurs in none of `names`; null if each does in some.
  const std::string* first_in_none(const std::vector<std::string>& names);

 private:
  bool occurs(const Regex& regex, std::string_view name);

  std::string flag_;
  std::vector<Regex> regexes_;
  int64_t steps_ = 0;  // taken so far
};

}  // namespace shardrun
