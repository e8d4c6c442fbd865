// The example at the head of the public header, compiled as it stands there, and run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "shardrun/shardrun.h"

namespace {

int example() {
#include "header_example.inc"
  return 0;
}

TEST(HeaderExample, Trains) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("header_example_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::current_path(folder);
  shardrun::GptModel gpt;
  gpt.layers = 1, gpt.hidden = 16, gpt.heads = 2, gpt.vocab = 256, gpt.context = 8;
  shardrun::write_gpt(gpt, "gpt.onnx");
  std::ofstream text("shakespeare.txt");
  for (int i = 0; i < 2000; ++i) text << "to be or not to be, ";
  text.close();
  EXPECT_EQ(example(), 0);
  std::filesystem::current_path("/");
  std::filesystem::remove_all(folder);
}

}  // namespace
