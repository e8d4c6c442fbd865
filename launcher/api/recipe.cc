// Reading a recipe, and which flags it may have.
#include "recipe.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "option_fields.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

constexpr const char* kKey = "shardrun.train";

/// What a recipe may say: how to learn, never which files to read or write, nor on which machine.
const std::vector<std::string>& recipe_flags() {
  static const std::vector<std::string> flags = [] {
    std::vector<OptionRow> rows;
    each_option_row([&](const OptionRow& row) {
      if (row.recipe != RecipePart::none) rows.push_back(row);
    });
    std::stable_sort(rows.begin(), rows.end(),
                     [](const OptionRow& a, const OptionRow& b) { return a.recipe < b.recipe; });
    std::vector<std::string> out;
    out.reserve(rows.size());
    for (const OptionRow& row : rows) out.emplace_back(row.flag);
    return out;
  }();
  return flags;
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& where) {
  Recipe out;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    SR_REQUIRE(is_printable(word), invalid_input, where, ": '", printable(word),
               "' has characters that cannot be shown");
    if (word.rfind("--", 0) == 0) {
      const std::vector<std::string>& flags = recipe_flags();
      const bool known = std::find(flags.begin(), flags.end(), word) != flags.end();
      std::string all;
      for (const std::string& flag : flags) all += str(all.empty() ? "" : " ", flag);
      SR_REQUIRE(known, invalid_input, where, ": '", word,
                 "' is not a flag that a model may give; those are ", all);
      out.emplace_back(word, "");
      continue;
    }
    SR_REQUIRE(!out.empty() && out.back().second.empty(), invalid_input, where, ": '", word,
               "' stands where a flag is wanted");
    out.back().second = word;
  }
  return out;
}

Recipe recipe_of(const OnnxFile& file) {
  constexpr size_t kLongest = 1 << 20;
  const auto& metadata = file.metadata();
  const auto recipe = metadata.find(kKey);
  if (recipe == metadata.end()) return {};
  const std::string where = str(file.path(), ": metadata '", kKey, "'");
  SR_REQUIRE(recipe->second.size() <= kLongest, invalid_input, where, " takes ",
             recipe->second.size(), " bytes, wanted at most ", kLongest);
  return parse_recipe(recipe->second, where);
}

}  // namespace shardrun
