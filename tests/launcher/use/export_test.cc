// Weights out: checkpoints of modules that PyTorch trained as long (tests/golden/make_weights.py)
// are the state_dict() that it then had; the model's file is what it was but for its numbers; what
// cannot be written is a sentence, and no file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "exec/safetensors_folder.h"
#include "onnx-ml.pb.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = SHARDRUN_GOLDEN;
constexpr size_t kSteps = 5;  // of PyTorch

std::string golden(const std::string& name) { return kGolden + "/weights_" + name; }

/// The losses of PyTorch's steps, and of the next.
std::vector<float> golden_losses(const std::string& module) {
  std::ifstream file(golden(module + ".losses.npy"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> out(kSteps + 1);
  const size_t size = out.size() * sizeof(float);
  std::memcpy(out.data(), bytes.data() + bytes.size() - size, size);
  return out;
}

/// PyTorch's training of the module, from what this file or another holds.
std::string training(const std::string& module, const std::string& model, size_t steps,
                     const std::string& lr = "0.1") {
  return "train " + model + " --loss cross-entropy --batch 4 --validation 0 --optimizer sgd " +
         "--momentum 0.9 --lr " + lr + " --data npz:" + golden(module + ".npz") + " --steps " +
         std::to_string(steps) + " ";
}
/// The older exporter does not tell buffers from parameters.
std::string frozen(const std::string& module, const std::string& exporter) {
  return module == "tied" && exporter.starts_with("legacy") ? " --freeze '^scale$' " : "";
}
std::string model_of(const std::string& module, const std::string& exporter) {
  return golden(module + "." + exporter + ".onnx");
}

std::string bytes_of(const FoundTensor& tensor) {
  std::string out(static_cast<size_t>(tensor.entry.bytes), '\0');
  std::ifstream file(tensor.path, std::ios::binary);
  file.seekg(tensor.entry.begin);
  file.read(out.data(), tensor.entry.bytes);
  return out;
}

std::vector<double> numbers_of(const FoundTensor& tensor) {
  const std::string bytes = bytes_of(tensor);
  std::vector<double> out;
  if (tensor.entry.dtype == "I64") {
    std::vector<int64_t> read(bytes.size() / 8);
    std::memcpy(read.data(), bytes.data(), bytes.size());
    out.assign(read.begin(), read.end());
  } else {
    EXPECT_EQ(tensor.entry.dtype, "F32") << tensor.entry.name;
    std::vector<float> read(bytes.size() / 4);
    std::memcpy(read.data(), bytes.data(), bytes.size());
    out.assign(read.begin(), read.end());
  }
  return out;
}

std::set<std::string> names_of(const std::map<std::string, FoundTensor>& tensors) {
  std::set<std::string> out;
  for (const auto& [name, tensor] : tensors) out.insert(name);
  return out;
}

class Export : public testing::Test {
 protected:
  Workspace at_;

  std::string at(const std::string& name) const { return at_.path() + "/" + name; }

  /// Trains as PyTorch did, with a checkpoint in the folder "run".
  void train_module(const std::string& module, const std::string& exporter,
                    const std::string& more = "", Ranks ranks = threads(2)) {
    fs::remove_all(at("run"));
    train(at_, ranks,
          training(module, model_of(module, exporter), kSteps) + frozen(module, exporter) + more +
              " --checkpoint run");
  }
  Outcome exported(const std::string& arguments) {
    Outcome outcome = at_.shardrun("export " + arguments);
    EXPECT_EQ(outcome.status, 0) << describe(outcome);
    return outcome;
  }
  std::string refusal(const std::string& arguments, int status = 2) {
    const Outcome outcome = at_.shardrun("export " + arguments);
    EXPECT_EQ(outcome.status, status) << describe(outcome);
    EXPECT_EQ(messages(outcome), 1) << describe(outcome);
    return message(outcome);
  }
  std::map<std::string, FoundTensor> tensors(const std::string& name) const {
    return find_tensors(at(name));
  }
  double first_loss(const std::string& arguments) {
    const TrainingRun run = train(at_, threads(2), arguments);
    return run.losses.empty() ? NAN : run.losses[0];
  }
  /// Of the export's tensors: names, types, shapes and numbers of PyTorch's, but for `not_there`.
  void expect_state(const std::string& exported, const std::string& module,
                    const std::set<std::string>& not_there = {},
                    const std::set<std::string>& others = {}) {
    const auto got = tensors(exported),
               wanted = find_tensors(golden(module + ".after.safetensors"));
    std::set<std::string> names = names_of(wanted);
    for (const std::string& name : not_there) EXPECT_EQ(names.erase(name), 1U) << name;
    EXPECT_EQ(names_of(got), names);
    for (const auto& [name, tensor] : got) {
      ASSERT_EQ(wanted.count(name), 1U) << name;
      const FoundTensor& want = wanted.at(name);
      EXPECT_EQ(tensor.entry.dtype, want.entry.dtype) << name;
      EXPECT_EQ(tensor.entry.shape, want.entry.shape) << name;
      if (others.count(name) > 0) continue;
      const std::vector<double> a = numbers_of(tensor), b = numbers_of(want);
      ASSERT_EQ(a.size(), b.size()) << name;
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], 1e-5) << name << "[" << i << "]";
    }
  }
};

// ---- what PyTorch has after the same steps

TEST_F(Export, IsTheStateOfTheModuleWhateverTheExporter) {
  for (const auto& [module, exporters] : std::map<std::string, std::vector<std::string>>{
           {"tied", {"dynamo", "default", "legacy", "legacy_eval"}},
           {"fresh", {"dynamo", "default", "legacy", "legacy_eval"}},
           {"images", {"dynamo", "legacy"}},
           {"recurrent", {"default", "legacy", "legacy_eval"}}}) {
    const float next = golden_losses(module).back();
    for (const std::string& exporter : exporters) {
      SCOPED_TRACE(module + "." + exporter);
      train_module(module, exporter);
      exported("run -o m.safetensors");
      // The older exporter moves running statistics when it traces a module in training mode.
      expect_state("m.safetensors", module, {},
                   exporter == "legacy" && module == "images"
                       ? std::set<std::string>{"batch.running_mean", "batch.running_var"}
                       : std::set<std::string>{});
      exported("run -o t.onnx");
      EXPECT_NEAR(first_loss(training(module, "t.onnx", 1)) / next, 1, 1e-5);
      EXPECT_NEAR(
          first_loss(training(module, model_of(module, exporter), 1) + " --weights m.safetensors") /
              next,
          1, 1e-5);
    }
  }
}

TEST_F(Export, WhatAnExporterComputedIsListedAndNotGuessed) {
  train_module("images", "legacy_eval");
  const Outcome outcome = exported("run -o m.safetensors");
  EXPECT_NE(outcome.err.find("first.weight: the exporter computed 'onnx::Conv_42' from it"),
            std::string::npos)
      << describe(outcome);
  EXPECT_EQ(
      names_of(tensors("m.safetensors")),
      (std::set<std::string>{"fc.bias", "fc.weight", "group.bias", "group.weight", "last.bias",
                             "last.weight", "slope.weight", "up.bias", "up.weight"}));
  const Outcome model = exported("run -o t.onnx");  // which has all of it
  EXPECT_EQ(model.err, "");
}

TEST_F(Export, WeightsOf16BitsComeBackAsSuch) {
  for (const char* exporter : {"dynamo", "default", "legacy", "legacy_eval"}) {
    SCOPED_TRACE(exporter);
    fs::remove_all(at("run"));
    train(
        at_, threads(2),
        "train " + model_of("half", exporter) + " --loss mse --steps 2 --lr 1e-2 --checkpoint run");
    exported("run -o m.safetensors");
    const auto got = tensors("m.safetensors"),
               before = find_tensors(golden("half.before.safetensors"));
    EXPECT_EQ(names_of(got), names_of(before));
    for (const auto& [name, tensor] : got) {
      EXPECT_EQ(tensor.entry.dtype, "F16");
      EXPECT_EQ(tensor.entry.shape, before.at(name).entry.shape) << name;
      EXPECT_NE(bytes_of(tensor), bytes_of(before.at(name))) << name;
    }
    exported("run -o t.onnx");
    EXPECT_EQ(first_loss("train t.onnx --loss mse --steps 1 --lr 1e-2"),
              first_loss("train " + model_of("half", exporter) +
                         " --loss mse --steps 1 --lr 1e-2 --weights m.safetensors"));
  }
}

TEST_F(Export, NamesThatTheFileDoesNotTellAreGiven) {
  train_module("tied", "dynamo");
  exported("run -o m.safetensors --tied again.weight=up.weight");
  const auto all = tensors("m.safetensors");
  ASSERT_EQ(all.count("again.weight"), 1U);
  EXPECT_EQ(bytes_of(all.at("again.weight")), bytes_of(all.at("up.weight")));
  EXPECT_EQ(refusal("run -o m.safetensors --tied a=nothing"),
            "--tied a=nothing: the module has no tensor 'nothing'");
  EXPECT_EQ(refusal("run -o m.safetensors --tied up.bias=up.weight"),
            "--tied up.bias=up.weight: the module has a tensor 'up.bias' already");
  EXPECT_EQ(refusal("run -o m.safetensors --tied up.weight"),
            "--tied up.weight: wanted NAME=TENSOR");
  EXPECT_EQ(refusal("run -o t.onnx --tied a=up.weight"),
            "--tied: t.onnx is the model's file, in which a weight has one name");
}

TEST_F(Export, WhatWeightsGaveAndTrainingLeftAloneIsThere) {
  // `scale` is a buffer: no checkpoint has it. What is given has another than the file.
  const auto all = find_tensors(golden("tied.after.safetensors"));
  std::vector<SafetensorsTensor> header;
  for (const auto& [name, tensor] : all) header.push_back({name, tensor.entry.type()});
  SafetensorsWriter file(at("w.safetensors"), header);
  for (const auto& [name, tensor] : all) {
    std::string bytes = bytes_of(tensor);
    if (name == "scale") bytes[3] = static_cast<char>(bytes[3] ^ 1);
    file.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  file.finish();
  train_module("tied", "dynamo", "--weights w.safetensors");
  exported("run -o m.safetensors");
  const auto got = tensors("m.safetensors"), given = tensors("w.safetensors");
  EXPECT_EQ(bytes_of(got.at("scale")), bytes_of(given.at("scale")));
  EXPECT_NE(bytes_of(got.at("up.weight")), bytes_of(given.at("up.weight")));

  fs::rename(at("w.safetensors"), at("moved.safetensors"));
  const std::string lacks = refusal("run -o n.safetensors");
  EXPECT_NE(lacks.find("has 'scale' from --weights "), std::string::npos) << lacks;
  EXPECT_NE(lacks.find("which are not there; say with --weights where they are"), std::string::npos)
      << lacks;
  exported("run -o n.safetensors --weights moved.safetensors");
  EXPECT_EQ(at_.read("n.safetensors"), at_.read("m.safetensors"));
}

// ---- the model's file

::onnx::ModelProto parsed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ::onnx::ModelProto out;
  EXPECT_TRUE(out.ParseFromIstream(&file)) << path;
  return out;
}

TEST_F(Export, ModelThatLearntNothingIsTheFileByteForByte) {
  for (const char* module : {"tied", "recurrent"}) {
    const std::string model = model_of(module, "legacy"), run = std::string("run-") + module;
    train(at_, threads(2), training(module, model, 2, "0") + "--checkpoint " + run);
    const Outcome outcome = exported(run + " -o t.onnx");
    EXPECT_EQ(outcome.out.find(" 0 tensors"), std::string::npos) << describe(outcome);
    std::ifstream file(model, std::ios::binary);
    const std::string before((std::istreambuf_iterator<char>(file)), {});
    EXPECT_TRUE(at_.read("t.onnx") == before) << module;
  }
}

TEST_F(Export, ModelDiffersInItsNumbersAlone) {
  for (const char* exporter : {"dynamo", "legacy"}) {
    train_module("images", exporter);
    exported("run -o t.onnx");
    ::onnx::ModelProto before = parsed(model_of("images", exporter)), after = parsed(at("t.onnx"));
    int changed = 0;
    for (int i = 0; i < before.graph().initializer_size(); ++i) {
      auto *a = before.mutable_graph()->mutable_initializer(i),
           *b = after.mutable_graph()->mutable_initializer(i);
      changed += a->raw_data() != b->raw_data();
      EXPECT_EQ(a->raw_data().size(), b->raw_data().size());
      a->clear_raw_data();
      b->clear_raw_data();
    }
    // Two running statistics and the parameters; of a bias that a normalisation takes away only
    // rounding is left.
    EXPECT_GE(changed, before.graph().initializer_size() - 1) << exporter;
    EXPECT_EQ(before.SerializeAsString(), after.SerializeAsString()) << exporter;
  }
}

TEST_F(Export, ModelWithoutWeightsGetsThem) {
  ASSERT_EQ(at_.shardrun("model gpt --preset tiny --no-weights -o none.onnx").status, 0);
  at_.write("t.txt", prose(4000));
  const std::string run = " --data text:t.txt --batch 4 --lr 1e-3 --validation 0 ";
  const TrainingRun through =
      train(at_, threads(2),
            "train none.onnx" + run + "--steps 4 --checkpoint run --checkpoint-every 3 --seed 3");
  const Outcome outcome = exported("run/step-00000003 -o t.onnx");
  EXPECT_NE(outcome.out.find("weights that the file only described are stored"), std::string::npos)
      << describe(outcome);
  exported("run/step-00000003 -o m.safetensors");
  const TrainingRun model = train(at_, threads(2), "train t.onnx" + run + "--steps 1"),
                    given = train(at_, threads(2),
                                  "train none.onnx" + run + "--steps 1 --weights m.safetensors");
  EXPECT_EQ(model.loss_texts, given.loss_texts);
  // Another batch, the same weights: as far from the first loss as the run had come.
  EXPECT_LT(std::abs(model.losses.at(0) - through.losses.at(3)), 0.2);
  EXPECT_LT(model.losses.at(0), through.losses.at(0) - 0.2);
}

TEST_F(Export, ExternalDataStayExternal) {
  ASSERT_EQ(at_.shardrun("model gpt --preset tiny -o in.onnx").status, 0);
  at_.write("t.txt", prose(4000));
  // The same with all weights in a file next to it.
  ::onnx::ModelProto model = parsed(at("in.onnx"));
  std::string data;
  for (auto& tensor : *model.mutable_graph()->mutable_initializer()) {
    if (tensor.raw_data().size() < 64) continue;
    for (const auto& [key, value] :
         std::map<std::string, std::string>{{"location", "weights.bin"},
                                            {"offset", std::to_string(data.size())},
                                            {"length", std::to_string(tensor.raw_data().size())}}) {
      auto* entry = tensor.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    data += tensor.raw_data();
    tensor.clear_raw_data();
    tensor.set_data_location(::onnx::TensorProto::EXTERNAL);
  }
  at_.write("out.onnx", model.SerializeAsString());
  at_.write("weights.bin", data);
  const std::string run = " --data text:t.txt --batch 4 --lr 1e-3 --steps 2 --checkpoint ";
  train(at_, threads(2), "train in.onnx" + run + "a");
  train(at_, threads(2), "train out.onnx" + run + "b");
  exported("a -o a.safetensors");
  exported("b -o b.safetensors");
  EXPECT_EQ(at_.read("a.safetensors"), at_.read("b.safetensors"));
  exported("b -o sub/t.onnx");
  EXPECT_EQ(at_.read("weights.bin") == data, true);
  EXPECT_EQ(at_.read("sub/t.onnx.data").size(), data.size());
  EXPECT_NE(at_.read("sub/t.onnx.data"), data);
  const std::string one = " --data text:t.txt --batch 4 --steps 1";
  EXPECT_EQ(first_loss("train sub/t.onnx" + one),
            first_loss("train in.onnx" + one + " --weights a.safetensors"));
}

// ---- several files

TEST_F(Export, FoldersHaveAnIndexWhereTheyHaveSeveralFiles) {
  train_module("tied", "legacy");
  exported("run -o m.safetensors");
  exported("run -o hf");
  EXPECT_EQ(at_.read("hf/model.safetensors"), at_.read("m.safetensors"));
  exported("run -o hf");  // again, in its place
  const Outcome outcome = exported("run -o new/sharded --max-file-size 300");
  EXPECT_TRUE(at_.exists("new/sharded/model.safetensors.index.json")) << describe(outcome);
  EXPECT_TRUE(at_.exists("new/sharded/model-00002-of-00005.safetensors")) << describe(outcome);
  const auto whole = tensors("m.safetensors"), parts = tensors("new/sharded");
  EXPECT_EQ(names_of(parts), names_of(whole));
  for (const auto& [name, tensor] : parts) EXPECT_EQ(bytes_of(tensor), bytes_of(whole.at(name)));
  EXPECT_EQ(refusal("run -o hf --max-file-size 300"),
            "hf: holds model.safetensors, which would be read with or instead of what is written; "
            "remove it, or name another folder");
}

// ---- which checkpoint

TEST_F(Export, NewestCheckpointOfAFolderUnlessOneIsNamed) {
  train_module("tied", "legacy", "--checkpoint-every 2");
  EXPECT_NE(exported("run -o a.safetensors").out.find("of run/step-00000005 (step 5)"),
            std::string::npos);
  EXPECT_NE(exported("run/step-00000002/ -o b.safetensors").out.find("(step 2)"),
            std::string::npos);
  EXPECT_NE(at_.read("a.safetensors"), at_.read("b.safetensors"));
  EXPECT_EQ(refusal("none -o x.onnx"), "none: no such folder");
  at_.sh("mkdir empty");
  EXPECT_EQ(refusal("empty -o x.onnx"), "empty: holds no checkpoint");
  EXPECT_EQ(refusal("a.safetensors -o x.onnx"),
            "a.safetensors: is a file, wanted a checkpoint or a folder of them");
}

TEST_F(Export, DamagedCheckpointsAreRefusedAndAnOlderOneIsNamed) {
  train_module("tied", "legacy", "--checkpoint-every 2");
  const std::string shard = "run/step-00000005/shard-00001-model-00001-of-00001.safetensors";
  const std::string advice = "; the newest whole one before it is " + at("run/step-00000004") +
                             ": export that: " + at("run/step-00000004");
  const std::string whole = at_.read(shard), manifest = at_.read("run/step-00000005/manifest.json");
  // A byte of a weight: the first element of the file's data.
  std::string flipped = whole;
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (size_t at = 8 + header; at < flipped.size(); at += 8) flipped[at] ^= 1;
  at_.write(shard, flipped);
  for (const char* output : {"x.onnx", "x.safetensors", "x"}) {
    const std::string sentence = refusal(std::string("run -o ") + output);
    EXPECT_NE(sentence.find("the checksum of '"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("the file is damaged" + advice), std::string::npos) << sentence;
  }
  EXPECT_FALSE(at_.exists("x.onnx"));
  EXPECT_FALSE(at_.exists("x.safetensors"));
  EXPECT_FALSE(at_.exists("x/model.safetensors"));
  at_.write(shard, whole.substr(0, whole.size() - 1));
  EXPECT_NE(refusal("run -o x.onnx").find("the file is damaged" + advice), std::string::npos);
  at_.write(shard, whole);
  at_.write("run/step-00000005/manifest.json", manifest.substr(0, manifest.size() / 2));
  EXPECT_NE(refusal("run -o x.onnx").find(advice), std::string::npos);
  fs::remove(at("run/step-00000005/manifest.json"));
  EXPECT_NE(refusal("run/step-00000005 -o x.onnx").find(advice), std::string::npos);
}

TEST_F(Export, TheModelIsTheOneThatWasTrained) {
  fs::copy(model_of("tied", "legacy"), at("m.onnx"));
  train(at_, threads(1), training("tied", "m.onnx", 2) + "--checkpoint run");
  fs::rename(at("m.onnx"), at("moved.onnx"));
  const std::string gone = refusal("run -o t.onnx");
  EXPECT_NE(gone.find("m.onnx, which is not there; say with --model where it is now"),
            std::string::npos)
      << gone;
  exported("run -o t.onnx --model moved.onnx");
  const std::string other = refusal("run -o u.onnx --model " + model_of("tied", "dynamo"));
  EXPECT_NE(other.find("is not the model that run/step-00000002 was trained from"),
            std::string::npos)
      << other;
  EXPECT_EQ(refusal("run -o t.onnx --model t.onnx").find("t.onnx: is not the model"), 0U);
}

// ---- where it cannot go

TEST_F(Export, OutputsThatCannotBeAreSentences) {
  fs::copy(model_of("tied", "legacy"), at("m.onnx"));
  train(at_, threads(1), training("tied", "m.onnx", 2) + "--checkpoint run");
  ASSERT_EQ(::mkfifo(at("pipe.onnx").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(at("pipe.safetensors").c_str(), 0600), 0);
  at_.sh("mkdir folder.onnx; echo > file; ln -s m.onnx link.onnx");
  for (const auto& [output, why] : std::vector<std::pair<std::string, std::string>>{
           {"m.onnx", "--output: m.onnx is what the model is read from; name another file"},
           {"link.onnx", "--output: link.onnx is what the model is read from; name another file"},
           {"pipe.onnx", "--output: pipe.onnx is a pipe or a device, wanted a file"},
           {"pipe.safetensors", "--output: pipe.safetensors is a pipe or a device, wanted a file"},
           {"folder.onnx", "--output: folder.onnx: cannot be written: is a folder"},
           {"file", "file: is a file, wanted a folder"},
           {"file/x.onnx", "--output: file: cannot be made: Not a directory"},
           {"m.pt",
            "export: cannot tell what 'm.pt' is to be; name FILE.onnx, FILE.safetensors or a "
            "folder"},
           {"run/step-00000002",
            "run/step-00000002: holds shard-00001-model-00001-of-00001.safetensors, which would be "
            "read with or instead of what is written; remove it, or name another folder"}}) {
    EXPECT_EQ(refusal("run -o " + output), why);
  }
  EXPECT_EQ(refusal("run -o n.onnx --max-file-size 1KB"),
            "--max-file-size: is of a folder's files, and --output n.onnx is one file; leave out "
            "one of the two");
  EXPECT_EQ(refusal("run -o n.onnx --weights missing"),
            "--weights missing: no such file or folder");
  EXPECT_EQ(refusal("run -o run/step-00000002/shard-00001-model-00001-of-00001.safetensors"),
            "--output: run/step-00000002/shard-00001-model-00001-of-00001.safetensors is what the "
            "checkpoint is read from; name another file");
}

/// Files of at most 512 bytes stand for a disk that is full.
TEST_F(Export, AFullDiskLeavesWhatWasThere) {
  train_module("tied", "legacy");
  at_.sh(
      "mkdir out out/hf; echo old > out/t.onnx; echo old > out/m.safetensors; "
      "echo old > out/hf/model.safetensors");
  for (const std::string output : {"out/t.onnx", "out/m.safetensors", "out/hf"}) {
    const Outcome outcome =
        at_.sh("trap '' XFSZ; ulimit -f 1; exec " SHARDRUN_COMMAND " export run -o " + output);
    EXPECT_EQ(outcome.status, 1) << describe(outcome);
    EXPECT_NE(message(outcome).find("cannot be written: File too large"), std::string::npos)
        << describe(outcome);
    const std::string file = output == "out/hf" ? "out/hf/model.safetensors" : output;
    EXPECT_EQ(at_.read(file), "old\n");
  }
  EXPECT_EQ(at_.sh("find out -type f | wc -l").out, "3\n");  // and nothing else
}

// ---- what a run says at its end

TEST_F(Export, RunsSayTheCommandsThatResumeAndExport) {
  fs::copy(model_of("tied", "legacy"), at("my model.onnx"));
  const Outcome run = at_.sh(SHARDRUN_MPIEXEC " -np 2 " SHARDRUN_COMMAND " " +
                             training("tied", "'my model.onnx'", 3) + "--checkpoint run");
  ASSERT_EQ(run.status, 0) << describe(run);
  const auto command = [&](const std::string& before, const std::string& end) {
    const size_t at = run.out.find(before);
    EXPECT_NE(at, std::string::npos) << describe(run);
    const size_t begin = at + before.size();
    return run.out.substr(begin, run.out.find(end, begin) - begin);
  };
  at_.sh("mkdir bin && ln -s " SHARDRUN_COMMAND " bin/shardrun");
  const std::string path = "export PATH=$PWD/bin:$PATH; ";
  const Outcome exported = at_.sh(path + command("write its weights with: ", " (for PyTorch: "));
  EXPECT_EQ(exported.status, 0) << describe(exported);
  EXPECT_TRUE(at_.exists("my model-trained.onnx")) << describe(exported);
  EXPECT_EQ(command("(for PyTorch: ", ")"), "-o 'my model-trained.safetensors'");
  const Outcome resumed = at_.sh(path + command("go on from it with: ", "\n"));
  EXPECT_EQ(resumed.status, 0) << describe(resumed);
  EXPECT_NE(resumed.out.find("has taken 3 steps, no fewer than --steps 3"), std::string::npos)
      << describe(resumed);
  EXPECT_NE(resumed.out.find("write its weights with: "), std::string::npos) << describe(resumed);
}

}  // namespace
}  // namespace shardrun::test
