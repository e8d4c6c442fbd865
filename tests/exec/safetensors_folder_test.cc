// Tensors in several files, in both directions, and folders that are not what they should be.
#include "exec/safetensors_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

class SafetensorsFolders : public testing::Test {
 protected:
  SafetensorsFolders() { fs::create_directories(folder_); }
  ~SafetensorsFolders() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
  }
  /// A file of f32 tensors of one element.
  void put_tensors(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<SafetensorsTensor> all;
    for (const std::string& tensor : tensors) all.push_back({tensor, {DType::f32, {1}}});
    SafetensorsWriter file(at(name), all);
    for (float i = 0; i < static_cast<float>(tensors.size()); ++i) file.write(&i, 4);
    file.finish();
  }
  static std::string refusal(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing";
  }
  std::string names(const std::string& path) const {
    std::string out;
    for (const auto& [name, tensor] : find_tensors(path))
      out += name + "@" + fs::path(tensor.path).filename().string() + " ";
    return out;
  }
  std::string why_not(const std::string& path) const {
    return refusal([&] { find_tensors(path); });
  }

  fs::path folder_ = fs::temp_directory_path() / ("shardrun_folder_" + std::to_string(::getpid()));
};

TEST_F(SafetensorsFolders, AreWrittenInFilesOfAtMostSoManyBytes) {
  const std::vector<SafetensorsTensor> tensors = {{"a", {DType::f32, {2}}},
                                                  {"b", {DType::f32, {3}}},
                                                  {"large", {DType::f32, {10}}},
                                                  {"c", {DType::f16, {1}}}};
  const std::string out = at("new/model");
  const SafetensorsFolder folder(out, tensors, {{"format", "pt"}}, 20);
  EXPECT_EQ(folder.files().size(), 4U);
  folder.write([&](size_t tensor, SafetensorsWriter& file) {
    const std::vector<char> bytes(static_cast<size_t>(byte_size(tensors[tensor].type)),
                                  static_cast<char>('0' + tensor));
    file.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  });
  EXPECT_EQ(names(out),
            "a@model-00001-of-00003.safetensors b@model-00001-of-00003.safetensors "
            "c@model-00003-of-00003.safetensors large@model-00002-of-00003.safetensors ");
  const auto found = find_tensors(out);
  std::ifstream file(found.at("b").path, std::ios::binary);
  file.seekg(found.at("b").entry.begin);
  EXPECT_EQ(file.get(), '1');
  EXPECT_EQ(read_safetensors_header(found.at("c").path).metadata.at("format"), "pt");
  std::ifstream text(out + "/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(text);
  EXPECT_EQ(index["metadata"]["total_size"], 62);
  EXPECT_EQ(index["weight_map"].size(), 4U);
}

TEST_F(SafetensorsFolders, OneFileHasNoIndex) {
  const SafetensorsFolder folder(at("model"), {{"a", {DType::f32, {2}}}}, {}, 8);
  EXPECT_EQ(folder.files(), (std::vector<std::string>{at("model/model.safetensors")}));
  folder.write([](size_t, SafetensorsWriter& file) { file.write("01234567", 8); });
  EXPECT_EQ(names(at("model")), "a@model.safetensors ");
}

TEST_F(SafetensorsFolders, OfOtherFilesAreNotWrittenInto) {
  put_tensors("model-00001-of-00002.safetensors", {"a"});
  EXPECT_EQ(refusal([&] { SafetensorsFolder(folder_.string(), {}, {}, 8); }),
            folder_.string() +
                ": holds model-00001-of-00002.safetensors, which would be read with or instead of "
                "what is written; remove it, or name another folder");
  EXPECT_EQ(refusal([&] { SafetensorsFolder(at("model-00001-of-00002.safetensors"), {}, {}, 8); }),
            at("model-00001-of-00002.safetensors") + ": is a file, wanted a folder");
}

TEST_F(SafetensorsFolders, TheFileOfAllComesBeforeAnIndexAndAnIndexBeforeFiles) {
  put_tensors("x.safetensors", {"a"});
  put_tensors("y.safetensors", {"b"});
  EXPECT_EQ(names(folder_.string()), "a@x.safetensors b@y.safetensors ");
  put("model.safetensors.index.json", R"({"weight_map": {"b": "y.safetensors"}})");
  EXPECT_EQ(names(folder_.string()), "b@y.safetensors ");
  EXPECT_EQ(names(at("model.safetensors.index.json")), "b@y.safetensors ");
  put_tensors("model.safetensors", {"c"});
  EXPECT_EQ(names(folder_.string()), "c@model.safetensors ");
  EXPECT_EQ(names(at("x.safetensors")), "a@x.safetensors ");
}

TEST_F(SafetensorsFolders, SaysWhatIsWrong) {
  EXPECT_EQ(why_not(folder_.string()), folder_.string() + ": holds no safetensors files");
  put("pytorch_model.bin", "");
  EXPECT_NE(why_not(folder_.string()).find("only PyTorch's pickled ones"), std::string::npos);
  put_tensors("x.safetensors", {"a"});
  put_tensors("y.safetensors", {"a"});
  EXPECT_EQ(why_not(folder_.string()), at("y.safetensors") + ": tensor 'a' is in " +
                                           at("x.safetensors") +
                                           ", too, and no index says which one counts");
  const std::string index = at("i.safetensors.index.json");
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"[]", ": has no weight_map, which names the file of each tensor"},
           {R"({"weight_map": 1})", ": has no weight_map, which names the file of each tensor"},
           {R"({"weight_map": {"a": 1}})", ": weight_map 'a' is number, wanted the name of a file"},
           {R"({"weight_map": {"a": "../x.safetensors"}})",
            ": weight_map 'a' is '../x.safetensors', wanted a file next to the index"},
           {R"({"weight_map": {"a": ".."}})",
            ": weight_map 'a' is '..', wanted a file next to the index"},
           {R"({"weight_map": {"b": "x.safetensors"}})",
            ": weight_map has tensor 'b' in x.safetensors, which does not have it"},
           {"{",
            ": is not JSON, wanted an index of safetensors files; it ends too early, at line 1, "
            "column 2"},
           {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})",
            ": field 'weight_map.a' is there twice"}}) {
    put("i.safetensors.index.json", text);
    EXPECT_EQ(why_not(index), index + why) << text;
  }
  put("i.safetensors.index.json", R"({"weight_map": {"a": "none.safetensors"}})");
  EXPECT_NE(why_not(index).find("none.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace shardrun
