// The second look at the command line, with the model's recipe.
#include "recipe.h"

namespace shardrun::cli {

Recipe add_recipe(const CLI::App& command, const std::vector<std::string>& words,
                  const OnnxModel& model) {
  Recipe out;
  out.words = words;
  std::vector<std::string> added;
  std::string overridden;
  for (const auto& [flag, value] : read_recipe(model)) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option == nullptr) continue;
    if (option->count() > 0) {
      overridden += (overridden.empty() ? "" : ", ") + flag;
      continue;
    }
    added.push_back(flag);
    if (!value.empty()) added.push_back(value);
  }
  if (!added.empty()) {
    out.line = "recipe of the model:";
    for (const std::string& word : added) out.line += " " + word;
  }
  if (!overridden.empty()) {
    out.line += out.line.empty() ? "recipe of the model: given otherwise in the call: "
                                 : " (given otherwise in the call: ";
    out.line += overridden + (added.empty() ? "" : ")");
  }
  out.words.insert(out.words.begin() + 1, added.begin(), added.end());
  return out;
}

}  // namespace shardrun::cli
