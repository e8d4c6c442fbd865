// Recipes in the metadata of models.
#include "recipe.h"
#include "tests/graph/onnx/build.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

std::string with_recipe(const std::string& recipe) {
  ModelBuilder b;
  b.input("x", {2});
  b.node("Relu", {"x"}, {"y"});
  b.output("y");
  add_metadata(&b.model, "shardrun.train", recipe);
  return b.model.SerializeAsString();
}

}  // namespace

std::vector<BadFile> bad_recipes() {
  BadFiles files("model.onnx", [](const std::string& path) { recipe_of(path); });
  const auto add = [&](const std::string& name, const std::string& recipe,
                       std::vector<std::string> words) {
    words.emplace_back("metadata 'shardrun.train'");
    files.add(name, with_recipe(recipe), std::move(words));
  };
  files.add("as it should be", with_recipe("--lr 0.1 --optimizer adamw"), {});
  add("a file to write", "--checkpoint /etc/passwd", {"'--checkpoint' is not a flag that a model"});
  add("a file to read", "--data text:/etc/shadow", {"'--data' is not a flag that a model"});
  add("a plan", "--plan /tmp/x", {"'--plan' is not a flag"});
  add("native code", "--ops evil.so", {"'--ops' is not a flag"});
  add("a flag that is not known", "--frobnicate 3", {"'--frobnicate' is not a flag"});
  add("a flag and its value in one word", "--lr=3", {"'--lr=3' is not a flag"});
  add("no flag", "lr 3", {"'lr' stands where a flag is wanted"});
  add("two values", "--lr 3 4", {"'4' stands where a flag is wanted"});
  add("what a shell would run", "; rm -rf /", {"';' stands where a flag is wanted"});
  add("what a terminal acts on", "--lr \x1b[2J", {"cannot be shown"});
  add("a NUL", std::string("--lr\0x", 6), {"cannot be shown"});
  add("bytes that are no text", "--lr \xff\xfe", {"cannot be shown"});
  add("two megabytes", std::string(2 << 20, 'x'), {"takes 2097"});
  return files.take();
}

}  // namespace shardrun::test
