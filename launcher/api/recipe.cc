// Reading a recipe, and which flags it may have.
#include "recipe.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/printable.h"
#include "graph/onnx/file/metadata.h"
#include "ranks/world.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

constexpr const char* kKey = "shardrun.train";

// What a recipe may say: how to learn, never which files to read or write, nor on which machine.
constexpr const char* kFlags[] = {
    "--loss",      "--loss-output", "--freeze",     "--train",        "--train-only",
    "--shared",    "--dtype",       "--optimizer",  "--target-shift", "--beta1",
    "--beta2",     "--eps",         "--momentum",   "--nesterov",     "--weight-decay",
    "--decay-all", "--clip",        "--accumulate", "--global-batch", "--batch",
    "--dim",       "--seed",        "--steps",      "--lr",           "--min-lr",
    "--schedule",  "--warmup",      "--eval-every", "--eval-batches", "--validation",
    "--patience",  "--augment",     "--normalise",  "--sort-edges"};

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& where) {
  Recipe out;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    SR_REQUIRE(is_printable(word), invalid_input, where, ": '", word,
               "' has characters that cannot be shown");
    if (word.rfind("--", 0) == 0) {
      const bool known = std::find(std::begin(kFlags), std::end(kFlags), word) != std::end(kFlags);
      std::string all;
      for (const char* flag : kFlags) all += str(all.empty() ? "" : " ", flag);
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

std::vector<std::pair<std::string, std::string>> read_recipe(const std::string& path) {
  return at_boundary([&] {
    const auto metadata = read_onnx_metadata(path);
    const auto recipe = metadata.find(kKey);
    if (recipe == metadata.end()) return Recipe();
    return parse_recipe(recipe->second, str(path, ": metadata '", kKey, "'"));
  });
}

}  // namespace shardrun
