// What patterns match, and that none takes long, whatever it is.
#include "base/regex.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"

namespace shardrun {
namespace {

std::string refusal(const std::string& pattern) {
  try {
    Regex("--freeze", pattern);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    return e.what();
  }
  return "";
}

TEST(Regex, OccursInAndMatches) {
  const Regex layer("--freeze", R"(h\.(\d+)\.attn)");
  EXPECT_TRUE(layer.occurs_in("gpt.h.11.attn.weight"));
  EXPECT_FALSE(layer.matches("gpt.h.11.attn.weight"));
  EXPECT_TRUE(layer.matches("h.11.attn"));
  EXPECT_FALSE(layer.occurs_in("gpt.h.attn.weight"));
  EXPECT_TRUE(Regex("--freeze", "^(wte|wpe)$").matches("wpe"));
  EXPECT_TRUE(Regex("--freeze", "^gewicht.$").occurs_in("gewicht\u00e4"));  // one letter
}

TEST(Regex, RefusalsNameFlagAndPattern) {
  EXPECT_EQ(refusal("layer(0"),
            "--freeze 'layer(0': is not a regular expression: missing ): layer(0");
  EXPECT_EQ(refusal("^(?!head)"),
            "--freeze '^(?!head)': is not a regular expression: (?! is not supported: RE2 has "
            "neither look-ahead nor look-behind");
  EXPECT_EQ(refusal(R"((a)\1)"),
            R"(--freeze '(a)\1': is not a regular expression: \1 is not supported: RE2 has no )"
            "back-references");
  EXPECT_NE(refusal(std::string(1001, 'a')).find("is 1001 bytes long, wanted at most 1000"),
            std::string::npos);
  EXPECT_EQ(refusal(std::string(1000, 'a')), "");
  EXPECT_NE(refusal("((a{100}){9})b{900}c{900}d{900}e{900}f{900}").find("instructions"),
            std::string::npos);
}

TEST(Regex, HundredsOfGroupsAndLongTextsTakeNoTime) {
  const auto begin = std::chrono::steady_clock::now();
  std::string groups;
  for (int i = 0; i < 190; ++i)
    groups += "(a*)*";                   // each doubles the time of a search that backtracks
  const std::string text(200'000, 'a');  // each letter a frame of its stack
  EXPECT_FALSE(Regex("--freeze", groups + "b").matches(text + "c"));
  EXPECT_TRUE(Regex("--freeze", "(x|a)*").matches(text));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Regexes, FindTheFirst) {
  Regexes regexes("--train", {"weight$", "^h"});
  ASSERT_NE(regexes.first_in("h.0.bias"), nullptr);
  EXPECT_EQ(*regexes.first_in("h.0.bias"), "^h");
  EXPECT_EQ(*regexes.first_in("h.0.weight"), "weight$");
  EXPECT_EQ(regexes.first_in("wte.bias"), nullptr);
  EXPECT_EQ(regexes.first_in_none({"h.0.bias", "wte.weight"}), nullptr);
  EXPECT_EQ(*regexes.first_in_none({"h.0.bias", "wte.bias"}), "weight$");
}

TEST(Regexes, EndWhereTheyTakeTooLong) {
  Regexes regexes("--freeze", {"(a|b)*a(a|b){900}c"});
  const std::string name(4000, 'a');
  try {
    for (int i = 0; i < 1'000'000; ++i) EXPECT_EQ(regexes.first_in(name), nullptr);
    ADD_FAILURE() << "4 GB of names were searched";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--freeze: 1 regular expressions take too long"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace shardrun
