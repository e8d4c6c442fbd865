// The second look at the command line, with the model's recipe.
#include "recipe.h"

namespace shardrun::cli {
namespace {

/// A flag without its value would take the call's next word for it, such as the model's path; and a
/// value of one that takes none would stand for the model's path.
void check_value(const OnnxModel& model, const CLI::Option& option, const std::string& flag,
                 const std::string& value) {
  const bool takes_one = option.get_items_expected_max() > 0;
  if (takes_one != value.empty()) return;
  throw recipe_failure(
      model, takes_one ? flag + ": wants a value" : flag + ": takes no value, not '" + value + "'");
}

}  // namespace

Failure recipe_failure(const OnnxModel& model, const std::string& why) {
  return {Failure::Kind::call, model.path() + ": metadata 'shardrun.train': " + why};
}

Recipe add_recipe(const CLI::App& command, const std::vector<std::string>& words,
                  const OnnxModel& model) {
  Recipe out;
  out.words = words;
  std::vector<std::string> added;
  std::string overridden;
  for (const auto& [flag, value] : read_recipe(model)) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option == nullptr || !option->get_configurable()) continue;
    check_value(model, *option, flag, value);
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
