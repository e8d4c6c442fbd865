// What a terminal would act on is written out; all else stays.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

TEST(Printable, WhatATerminalActsOnIsWrittenOut) {
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m"), "\\x1b[31mred\\x1b[0m");
  EXPECT_EQ(printable("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(printable("two\nlines\r\tand\x7f"), "two\\x0alines\\x0d\\x09and\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m");  // the one-character CSI
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b"),
            "a\\u202eb");                                   // text from right to left
  EXPECT_EQ(printable("\xf3\xa0\x81\x81"), "\\U000e0041");  // an invisible tag
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");           // no UTF-8
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b");           // longer than needed
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half a surrogate
}

TEST(Printable, WhatIsShownStays) {
  for (const std::string text : {"", "model.layers.0/MatMul_1 [8, 3]", "\\x1b", "größe", "模型",
                                 "вес", "😀", "weights: 100 %"}) {
    EXPECT_TRUE(is_printable(text)) << text;
    EXPECT_EQ(printable(text), text);
  }
  for (int c = 0; c < 256; ++c) {
    const std::string text(1, static_cast<char>(c)), once = printable(text);
    EXPECT_EQ(printable(once), once) << c;
    EXPECT_EQ(is_printable(text), once == text) << c;
  }
}

TEST(Printable, AnExcerptHasWholeLetters) {
  EXPECT_EQ(excerpt("größe", 7), "größe");  // 7 bytes
  EXPECT_EQ(excerpt("größe", 6), "größ…");
  EXPECT_EQ(excerpt("größe", 5), "grö…");
  EXPECT_EQ(excerpt("größe", 3), "gr…");
  EXPECT_EQ(excerpt("😀😀", 7), "😀…");
  EXPECT_EQ(excerpt("\x1b[31m", 1), "\\x1b…");
  EXPECT_EQ(excerpt(std::string("a\0b", 3), 2), "a\\x00…");
  EXPECT_EQ(excerpt(std::string(9, '\x80'), 8).size(), 4 * 4 + std::string("…").size());
}

}  // namespace
}  // namespace shardrun
