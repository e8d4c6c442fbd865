// A second look at a JSON text that was refused, for the place and for what stands there.
#include "graph/json_text.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "base/printable.h"

namespace shardrun {
namespace {

constexpr size_t kMostOfText = 40;

/// The first field that stands twice in its object, and where the parser stops.
class SecondLook : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string twice;      // "flops.f32.peak", "measured[0].ranks"
  std::string zero;       // the first whose name or text has a byte of 0
  std::string number;     // one that no double holds
  std::string token;      // the last one that was read
  bool in_text = false;   // the parser stopped between quotes
  size_t characters = 0;  // that were read; 0: the parser takes the text

  bool null() override { return item(); }
  bool boolean(bool) override { return item(); }
  bool number_integer(number_integer_t) override { return item(); }
  bool number_unsigned(number_unsigned_t) override { return item(); }
  bool number_float(number_float_t, const string_t&) override { return item(); }
  bool string(string_t& value) override {
    note_zero(value);
    return item();
  }
  bool binary(binary_t&) override { return item(); }
  bool start_object(size_t) override { return open(false); }
  bool start_array(size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().name = name;
    if (!open_.back().names.insert(name).second && twice.empty()) twice = place();
    note_zero(name);
    return true;
  }
  bool parse_error(size_t at, const std::string& last,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    characters = at, token = last;
    in_text = std::string_view(error.what()).find("invalid string") != std::string_view::npos;
    if (error.id == kNumberOverflow) number = last;
    return false;
  }

 private:
  struct Open {
    bool list = false;
    size_t index = 0;
    std::string name;
    std::set<std::string> names;
  };
  bool open(bool list) {
    open_.push_back({list, 0, "", {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return item();
  }
  void note_zero(const std::string& value) {
    if (zero.empty() && value.find('\0') != std::string::npos) zero = place();
  }
  bool item() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  std::string place() const {
    std::string out;
    for (const Open& open : open_) {
      if (open.list) {
        out += str("[", open.index, "]");
      } else {
        out += (out.empty() ? "" : ".") + excerpt(open.name, kMostOfText);
      }
    }
    return out;
  }

  std::vector<Open> open_;
};

SecondLook look_at(const std::string& text) {
  SecondLook out;
  nlohmann::json::sax_parse(text, &out);
  return out;
}

/// "line 2, column 7", both from 1, the column in bytes.
std::string place_of(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const size_t newline = before.rfind('\n');
  return str("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
             at - (newline == std::string_view::npos ? 0 : newline + 1) + 1);
}

bool in_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z') || byte == '.' || byte == '+' || byte == '-' || byte == '_';
}

size_t word_begin(std::string_view text, size_t at) {
  while (at > 0 && in_word(text[at - 1])) --at;
  return at;
}

/// Does a word that is cut short, such as "tru" or "1.", end at `at`?
bool ends_cut_word(std::string_view text, size_t at) {
  const std::string_view word = text.substr(word_begin(text, at), at - word_begin(text, at));
  const bool literal = word == "true" || word == "false" || word == "null";
  return !word.empty() && !literal && (word.back() < '0' || word.back() > '9');
}

/// Where the token begins whose last byte is text[last]. The parser writes control characters as
/// eight: <U+001B>.
size_t token_begin(std::string_view text, size_t last, size_t characters) {
  size_t begin = last + 1;
  for (size_t seen = 0; seen < characters && begin > 0;)
    seen += static_cast<unsigned char>(text[--begin]) < 0x20 ? 8 : 1;
  return begin;
}

}  // namespace

void refuse_json(const std::string& text, const std::string& origin, const char* wanted) {
  const SecondLook look = look_at(text);
  SR_REQUIRE(look.number.empty(), invalid_input, origin, ": ",
             place_of(text, look.characters - std::min(look.characters, look.number.size())), ": ",
             excerpt(look.number, kMostOfText), " is a number that is too large");
  const std::string what = str(origin, ": is not JSON, wanted ", wanted);
  SR_REQUIRE(text.find_first_not_of(" \t\r\n") != std::string::npos, invalid_input, what,
             "; there is nothing in it");
  size_t begin = look.characters == 0 ? text.find('\0') : look.characters - 1;
  SR_REQUIRE(begin < text.size(), invalid_input, what, "; it ends too early, at ",
             place_of(text, text.size()));
  size_t end = begin + 1;
  if (text[begin] == '"') {
    begin = token_begin(text, begin, look.token.size());
  } else if (!look.in_text && in_word(text[begin])) {
    begin = word_begin(text, begin);
    while (end < text.size() && in_word(text[end])) ++end;
  } else if (!look.in_text && ends_cut_word(text, begin)) {
    end = begin, begin = word_begin(text, begin);
  }
  fail(ErrorKind::invalid_input, what, "; at ", place_of(text, begin), " stands '",
       excerpt(std::string_view(text).substr(begin, end - begin), kMostOfText), "'");
}

void check_fields(const std::string& text, const std::string& origin) {
  const SecondLook look = look_at(text);
  SR_REQUIRE(look.twice.empty(), invalid_input, origin, ": field '", look.twice,
             "' is there twice");
  SR_REQUIRE(look.zero.empty(), invalid_input, origin, ": field '", look.zero, "' has a byte of 0");
}

}  // namespace shardrun
