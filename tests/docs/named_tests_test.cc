// The tests that the documentation names exist.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What `pattern` finds in the files of `folder` that end in `extension`: its two groups, joined
/// by a dot.
std::set<std::string> found(const fs::path& folder, const std::string& extension,
                            const std::regex& pattern) {
  std::set<std::string> out;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != extension) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at)
      out.insert((*at)[1].str() + "." + (*at)[2].str());
  }
  return out;
}

TEST(NamedTests, Exist) {
  const fs::path source = SHARDRUN_SOURCE_DIR;
  const std::set<std::string> tests =
      found(source / "tests", ".cc", std::regex(R"(TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))"));
  const std::set<std::string> named =
      found(source / "docs", ".md", std::regex(R"(`([A-Z]\w*)\.([A-Z]\w*)`)"));
  EXPECT_GT(tests.size(), 500u);
  EXPECT_GT(named.size(), 50u);
  for (const std::string& name : named) EXPECT_TRUE(tests.contains(name)) << name;
}

}  // namespace
}  // namespace shardrun::test
