// JSON that is refused: where, and what stands there.
#include "graph/json_text.h"

#include <gtest/gtest.h>

namespace shardrun::test {
namespace {

template <class Json = nlohmann::json>
std::string refusal(const std::string& text) {
  try {
    parse_json<Json>(text, "f.json", "a list");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    return e.what();
  }
  return "";
}

TEST(JsonText, SaysWhatStandsWhere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[NaN]", "at line 1, column 2 stands 'NaN'"},
      {"{\n  \"a\": 1,\n  \"b\": tru\n}", "at line 3, column 8 stands 'tru'"},
      {"[-]", "at line 1, column 2 stands '-'"},
      {"{\"a\":1]", "at line 1, column 7 stands ']'"},
      {"[1, nulx]", "at line 1, column 5 stands 'nulx'"},
      {"[1 \"two\"]", "at line 1, column 4 stands '\"two\"'"},
      {"[1] [2]", "at line 1, column 5 stands '['"},
      {"\xEF\xBB\xBF[1,]", "at line 1, column 7 stands ']'"},
      {"[\"a\x1b\"]", "at line 1, column 4 stands '\\x1b'"},
      {"[\"a\nb\"]", "at line 1, column 4 stands '\\x0a'"},
      {"[\"\xff\"]", "at line 1, column 3 stands '\\xff'"},
      {std::string("[1]\0", 4), "at line 1, column 4 stands '\\x00'"},
      {std::string("[\0]", 3), "at line 1, column 2 stands '\\x00'"},
      {"[" + std::string(100, 'x') + "]",
       "at line 1, column 2 stands '" + std::string(40, 'x') + "…'"},
      {"[1,\n", "it ends too early, at line 2, column 1"},
      {"[\"a", "it ends too early, at line 1, column 4"},
      {" \n", "there is nothing in it"},
      {"", "there is nothing in it"}};
  for (const auto& [text, why] : cases)
    EXPECT_EQ(refusal(text), "f.json: is not JSON, wanted a list; " + why) << text;
  EXPECT_EQ(refusal("[1,\n -1e999]"),
            "f.json: line 2, column 2: -1e999 is a number that is too large");
  EXPECT_EQ(refusal(std::string(100, '[')), "f.json: lists and objects are nested deeper than 64");
}

TEST(JsonText, NamesAFieldThatIsThereTwice) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"a": 1, "b": 2, "a": 1})", "a"},
      {R"({"a": {"b": [{}, {"c": 1, "d": [1, 2], "c": {}}]}})", "a.b[1].c"},
      {R"([[], {"": 1, "": 2}])", "[1]."},
      {R"({"\u001b": 1, "\u001b": 2})", "\\x1b"}};
  for (const auto& [text, field] : cases) {
    const std::string wanted = "f.json: field '" + field + "' is there twice";
    EXPECT_EQ(refusal(text), wanted);
    EXPECT_EQ(refusal<nlohmann::ordered_json>(text), wanted);
  }
}

/// what() is a C string.
TEST(JsonText, NamesAFieldWithAByteOf0) {
  EXPECT_EQ(refusal(R"({"devi\u0000ces": 1})"), "f.json: field 'devi\\x00ces' has a byte of 0");
  EXPECT_EQ(refusal(R"({"a": [1, "b\u0000"]})"), "f.json: field 'a[1]' has a byte of 0");
  EXPECT_EQ(refusal(R"(["b\\u0000"])"), "");  // a backslash, and letters
}

TEST(JsonText, TakesEqualNamesInDifferentObjects) {
  const std::string text = R"({"a":{"a":{"a":[{"a":1},{"a":2}]}},"b":{"a":null}})";
  EXPECT_EQ(parse_json<nlohmann::json>(text, "f.json", "a list").dump(), text);
  EXPECT_EQ(parse_json<nlohmann::ordered_json>(text, "f.json", "a list").dump(), text);
}

}  // namespace
}  // namespace shardrun::test
