// Weights in: runs that begin from a safetensors file, a folder, another model, described weights,
// and all that does not fit, in one sentence. PyTorch's own losses are in tests/golden
// (make_weights.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "exec/safetensors_folder.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = SHARDRUN_GOLDEN;
const std::string kStep =
    " --loss cross-entropy --batch 4 --validation 0 --optimizer sgd --momentum 0.9 --lr 0.1 ";

std::string golden(const std::string& name) { return kGolden + "/weights_" + name; }

/// The losses of so many steps of PyTorch, and of the next.
std::vector<float> golden_losses(const std::string& module) {
  std::ifstream file(golden(module + ".losses.npy"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  constexpr size_t kCount = 6;
  std::vector<float> out(kCount);
  std::memcpy(out.data(), bytes.data() + bytes.size() - kCount * sizeof(float),
              kCount * sizeof(float));
  return out;
}

/// A step of `exporter`'s file that begins from these weights; by default from the module's state
/// after PyTorch's steps.
std::string begin(const std::string& module, const std::string& exporter,
                  const std::string& weights = "") {
  return "train " + golden(module + "." + exporter + ".onnx") + kStep +
         " --data npz:" + golden(module + ".npz") + " --steps 1 --weights " +
         (weights.empty() ? golden(module + ".after.safetensors") : weights) + " ";
}

class Weights : public testing::Test {
 protected:
  Workspace at_;

  /// A safetensors file of f32 tensors with the shapes of a golden one, changed by `change`.
  using Tensors = std::map<std::string, std::pair<SafetensorsTensor, std::string>>;
  static Tensors tensors(const std::string& module) {
    Tensors out;
    for (const auto& [name, found] : find_tensors(golden(module + ".after.safetensors"))) {
      std::string bytes(static_cast<size_t>(found.entry.bytes), '\0');
      std::ifstream file(found.path, std::ios::binary);
      file.seekg(found.entry.begin);
      file.read(bytes.data(), found.entry.bytes);
      out[name] = {{name, found.entry.type()}, bytes};
    }
    return out;
  }
  std::string put(const std::string& name, const Tensors& all) const {
    std::vector<SafetensorsTensor> header;
    for (const auto& [key, tensor] : all) {
      header.push_back(tensor.first);
      header.back().name = key;
    }
    SafetensorsWriter file(at_.path() + "/" + name, header);
    for (const auto& [key, tensor] : all)
      file.write(tensor.second.data(), static_cast<int64_t>(tensor.second.size()));
    file.finish();
    return name;
  }
  double first_loss(Ranks ranks, const std::string& arguments) {
    const TrainingRun run = train(at_, ranks, arguments);
    return run.losses.empty() ? NAN : run.losses[0];
  }
  std::string why_not(const std::string& arguments) {
    const Outcome outcome = at_.shardrun(arguments);
    EXPECT_EQ(outcome.status, 2) << describe(outcome);
    return message(outcome);
  }
};

// ---- of the module that was exported

TEST_F(Weights, OfTheModuleGiveItsLossWhateverTheExporter) {
  for (const auto& [module, exporters] : std::map<std::string, std::vector<std::string>>{
           {"tied", {"dynamo", "default", "legacy", "legacy_eval"}},
           {"fresh", {"dynamo", "default", "legacy", "legacy_eval"}},
           {"images", {"dynamo", "legacy"}},
           {"recurrent", {"default", "legacy", "legacy_eval"}}}) {
    const float wanted = golden_losses(module).back();
    for (const std::string& exporter : exporters) {
      EXPECT_NEAR(first_loss(threads(2), begin(module, exporter)) / wanted, 1, 1e-5)
          << module << " " << exporter;
    }
  }
}

TEST_F(Weights, AreReadShardByShardUnderMpirun) {
  const std::string run = begin("tied", "default");
  const TrainingRun one = train(at_, threads(1), run);
  for (const char* mesh : {"--planner fsdp", "--planner megatron", "--planner dp"})
    EXPECT_LT(largest_difference(train(at_, mpi(2), run + mesh), one), 1e-6) << mesh;
}

/// A plan says nothing of the numbers that it is for.
TEST_F(Weights, LeaveThePlanAsItIs) {
  const std::string model = golden("tied.default.onnx");
  const std::string plan = "plan " + model +
                           " --loss cross-entropy --batch 4 --optimizer sgd "
                           "--ranks 2 --data npz:" +
                           golden("tied.npz");
  ASSERT_EQ(at_.shardrun(plan + " -o a.json").status, 0);
  const Outcome with =
      at_.shardrun(plan + " --weights " + golden("tied.after.safetensors") + " -o b.json");
  ASSERT_EQ(with.status, 0) << describe(with);
  EXPECT_EQ(at_.read("a.json"), at_.read("b.json"));
  EXPECT_FALSE(std::isnan(first_loss(threads(2), begin("tied", "default") + " --plan a.json")));
}

TEST_F(Weights, ComeInFoldersToo) {
  const Tensors all = tensors("tied");
  Tensors first = all, second;
  second["up.weight"] = first["up.weight"];
  first.erase("up.weight");
  fs::create_directory(at_.path() + "/hf");
  put("hf/model-00001-of-00002.safetensors", first);
  put("hf/model-00002-of-00002.safetensors", second);
  std::string index;
  for (const auto& [name, tensor] : all) {
    index += (index.empty() ? "\"" : ", \"") + name + "\": \"model-0000" +
             (name == "up.weight" ? "2" : "1") + "-of-00002.safetensors\"";
  }
  at_.write("hf/model.safetensors.index.json", "{\"weight_map\": {" + index + "}}");
  const double wanted = first_loss(threads(1), begin("tied", "legacy"));
  for (const char* path : {"hf", "hf/model.safetensors.index.json"}) {
    EXPECT_EQ(first_loss(threads(1), begin("tied", "legacy", path)), wanted) << path;
  }
}

TEST_F(Weights, OneNameOfATiedWeightIsEnough) {
  const double wanted = first_loss(threads(1), begin("tied", "dynamo"));
  for (const char* dropped : {"head.weight", "tokens.weight"}) {
    Tensors all = tensors("tied");
    all.erase(dropped);
    put("one.safetensors", all);
    for (const char* exporter : {"dynamo", "default", "legacy"})
      EXPECT_EQ(first_loss(threads(1), begin("tied", exporter, "one.safetensors")), wanted)
          << exporter;
  }
}

TEST_F(Weights, NamesMayHaveAPrefix) {
  const double wanted = first_loss(threads(1), begin("tied", "legacy"));
  for (const std::string prefix : {"module.", "model.", "_orig_mod.", "module._orig_mod.model."}) {
    Tensors changed;
    for (const auto& [name, tensor] : tensors("tied")) changed[prefix + name] = tensor;
    EXPECT_EQ(first_loss(threads(1), begin("tied", "legacy", put("prefixed.safetensors", changed))),
              wanted)
        << prefix;
  }
}

// ---- of models

TEST_F(Weights, OfAnotherExportOfTheModule) {
  ASSERT_EQ(at_.shardrun("model gpt --preset tiny --seed 1 -o a.onnx").status, 0);
  ASSERT_EQ(at_.shardrun("model gpt --preset tiny --seed 2 -o b.onnx").status, 0);
  ASSERT_EQ(at_.shardrun("model gpt --preset tiny --no-weights -o none.onnx").status, 0);
  at_.write("t.txt", prose(4000));
  const std::string run = " --data text:t.txt --batch 4 --steps 2 --lr 1e-3";
  const TrainingRun a = train(at_, threads(2), "train a.onnx" + run);
  for (const char* model : {"b.onnx", "none.onnx"}) {
    const TrainingRun given =
        train(at_, threads(2), std::string("train ") + model + run + " --weights a.onnx");
    EXPECT_EQ(given.loss_texts, a.loss_texts) << model;
    EXPECT_NE(train(at_, threads(2), std::string("train ") + model + run).loss_texts, a.loss_texts);
  }
  EXPECT_EQ(why_not("train a.onnx" + run + " --weights none.onnx"),
            "--weights none.onnx: only describes its weights (--no-weights), such as "
            "'h.0.attn.c_attn.bias'; give a file that has them");
  // Names of one exporter's, orientation of the other's.
  const std::string legacy = "train " + golden("tied.legacy.onnx") + kStep +
                             " --data npz:" + golden("tied.npz") + " --steps 2 ";
  const TrainingRun own = train(at_, threads(1), legacy);
  EXPECT_LT(largest_difference(
                train(at_, threads(1), legacy + " --weights " + golden("tied.default.onnx")), own),
            1e-7);
}

// ---- what does not fit

TEST_F(Weights, AllThatDoesNotFitIsOneSentence) {
  Tensors all = tensors("tied");
  all["unknown.weight"] = all["up.weight"];
  all["unknown.weight"].second[0] = 1;
  all.erase("norm.bias");
  all["down.bias"].first.type.shape = {2, 3};
  all["up.bias"].first.type = {DType::i32, {10}};
  const std::string run = begin("tied", "legacy", put("wrong.safetensors", all));
  EXPECT_EQ(
      why_not(run),
      golden("tied.legacy.onnx") +
          ": --weights wrong.safetensors: it lacks 'norm.bias'; the model has nothing for its "
          "'unknown.weight'; 'down.bias' is [2, 3], wanted [6]; 'up.bias' is I32, wanted a "
          "floating type; give the weights of this model, or name with --weights-except what "
          "is to begin as the model's file has it");
  const double given =
      first_loss(threads(1), run +
                                 "--weights-except '^norm' --weights-except unknown "
                                 "--weights-except 'down.bias|up.bias'");
  EXPECT_FALSE(std::isnan(given));
  EXPECT_EQ(why_not(begin("tied", "legacy") + "--weights-except 'no such'"),
            golden("tied.legacy.onnx") +
                ": --weights-except 'no such': no tensor of the model or of --weights " +
                golden("tied.after.safetensors") + " has such a name");
}

TEST_F(Weights, TiedWeightsAreOneAndSoAreTheirNumbers) {
  Tensors all = tensors("tied");
  all["head.weight"].second[3] = static_cast<char>(all["head.weight"].second[3] ^ 1);
  EXPECT_NE(why_not(begin("tied", "dynamo", put("apart.safetensors", all)))
                .find("'head.weight' and 'tokens.weight' are one weight in the model, but have "
                      "other numbers there"),
            std::string::npos);
}

TEST_F(Weights, BuffersCount) {
  Tensors all = tensors("tied");
  const double with = first_loss(threads(1), begin("tied", "legacy"));
  for (char& c : all["scale"].second) c = 0;
  EXPECT_NE(first_loss(threads(1), begin("tied", "legacy", put("zero.safetensors", all))), with);
  all.erase("scale");
  EXPECT_NE(why_not(begin("tied", "legacy", put("less.safetensors", all))).find("it lacks 'scale'"),
            std::string::npos);
}

TEST_F(Weights, OtherFilesAreNamed) {
  at_.write("text.safetensors", "0123456789012345");
  at_.sh("mkdir empty pickled; touch pickled/pytorch_model.bin");
  for (const auto& [file, why] : std::vector<std::pair<std::string, std::string>>{
           {"none", "no such file or folder"},
           {"text.safetensors", "is it a safetensors file?"},
           {"empty", "holds no safetensors files"},
           {"pickled", "only PyTorch's pickled ones"}}) {
    EXPECT_NE(why_not(begin("tied", "legacy", file)).find(why), std::string::npos)
        << file << ": " << why_not(begin("tied", "legacy", file));
  }
}

}  // namespace
}  // namespace shardrun::test
