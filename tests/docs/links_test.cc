// Links between the pages of the documentation: each leads to a file, and to a heading of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;

struct Page {
  std::string text;  // without fenced code
  std::set<std::string> anchors;
};

/// As GitHub makes it of a heading: "Rules, kept `twice`" is "rules-kept-twice".
std::string anchor_of(const std::string& heading) {
  static const std::regex link(R"(\[([^\]]*)\]\([^)]*\))");
  std::string out;
  for (const char c : std::regex_replace(heading, link, "$1")) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') out += '-';
    if (c == '-' || c == '_' || byte >= 0x80 || std::isalnum(byte) != 0)
      out += static_cast<char>(std::tolower(byte));
  }
  return out;
}

Page read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  Page page;
  bool fenced = false;
  std::map<std::string, int> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced) continue;
    const size_t level = line.find_first_not_of('#');
    if (level != std::string::npos && level > 0 && line[level] == ' ') {
      const std::string anchor = anchor_of(line.substr(level + 1));
      const int before = seen[anchor]++;
      page.anchors.insert(before == 0 ? anchor : anchor + "-" + std::to_string(before));
    }
    page.text += line + "\n";
  }
  return page;
}

TEST(Links, LeadToFilesAndHeadings) {
  const fs::path source = SHARDRUN_SOURCE_DIR;
  std::map<fs::path, Page> pages;
  const auto add = [&](const fs::path& path) { pages[fs::weakly_canonical(path)] = read(path); };
  add(source / "README.md");
  add(source / "bench" / "RESULTS.md");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source / "docs"))
    if (entry.path().extension() == ".md") add(entry.path());

  static const std::regex link(R"(\]\(([^()\s]+)\))");
  int followed = 0;
  for (const auto& [path, page] : pages) {
    for (std::sregex_iterator at(page.text.begin(), page.text.end(), link), end; at != end; ++at) {
      const std::string target = (*at)[1].str();
      if (target.find("://") != std::string::npos) continue;
      SCOPED_TRACE(path.string() + ": " + target);
      const size_t hash = std::min(target.find('#'), target.size());
      const fs::path file =
          hash == 0 ? path : fs::weakly_canonical(path.parent_path() / target.substr(0, hash));
      EXPECT_TRUE(fs::exists(file));
      ++followed;
      if (hash == target.size()) continue;
      const auto found = pages.find(file);
      EXPECT_TRUE(found != pages.end() && found->second.anchors.contains(target.substr(hash + 1)));
    }
  }
  EXPECT_GT(followed, 300);
}

}  // namespace
}  // namespace shardrun::test
