// Damaged checkpoints, each with the sentence that refuses it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

#include "base/crc32c.h"
#include "exec/checkpoint/reader.h"
#include "exec/checkpoint/writer.h"
#include "tests/exec/state_program.h"

namespace shardrun {
namespace {

using test::StateValue;
using test::TemporaryFolder;
using Json = nlohmann::json;

const std::vector<StateValue> kValues = {{"w", {DType::f32, {6, 4}}},
                                         {"b", {DType::f32, {4}}},
                                         {"adam_m/w", {DType::f32, {6, 4}}, {}, Role::state}};
const test::Shardings kShardings = {{{0}, {}}, {{}}, {{}, {0}}};
const Mesh& mesh() {
  static const Mesh mesh = Mesh::parse("a=2");
  return mesh;
}

/// `filled`: with numbers; else as a resumed run finds it.
void on_ranks(bool filled, const std::function<void(Executor&, Communicator&)>& body,
              const std::vector<StateValue>& values = kValues) {
  test::run_ranks(2, [&](Communicator& comm) {
    Executor executor(test::state_program(values, mesh(), kShardings, comm.rank()),
                      std::array{&reference_kernels()}, comm, 0, nullptr, filled);
    body(executor, comm);
  });
}

void save(const std::string& folder, int64_t step) {
  on_ranks(true, [&](Executor& executor, Communicator& comm) {
    CheckpointWriter writer(executor, comm, {folder});
    writer.save(step, {{"lr", 0.5}});
    EXPECT_EQ(writer.finish()->failure, "");
  });
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}
void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// What opening and restoring it says, with DIR for its folder and CRC for checksums.
std::string refusal(const std::string& path) {
  std::string said = "(read)";
  try {
    const Checkpoint checkpoint = Checkpoint::open(path);
    const Program program = test::state_program(kValues, mesh(), kShardings, 0);
    check_holds(checkpoint.manifest(), kept_values(program.bindings), Holds::all, path);
    std::vector<std::string> by_rank(2, "(read)");
    on_ranks(false, [&](Executor& executor, Communicator& comm) {
      try {
        checkpoint.restore(executor, comm);
      } catch (const Error& e) {
        by_rank[static_cast<size_t>(comm.rank())] = e.what();
      }
    });
    EXPECT_EQ(by_rank[0], by_rank[1]) << "ranks disagree";
    said = by_rank[0];
  } catch (const Error& e) {
    said = e.what();
  }
  for (size_t at = 0; (at = said.find(path, at)) != std::string::npos;)
    said.replace(at, path.size(), "DIR");
  return std::regex_replace(said, std::regex("(is|as|says) [0-9a-f]{6,8}\\b"), "$1 CRC");
}

constexpr const char* kShard1 = "/shard-00001-model-00001-of-00001.safetensors";
constexpr const char* kShard2 = "/shard-00002-model-00001-of-00001.safetensors";

void flip(const std::string& path, int64_t at) {
  std::string text = text_of(path);
  auto& byte = text[static_cast<size_t>(at < 0 ? at + static_cast<int64_t>(text.size()) : at)];
  byte = static_cast<char>(byte ^ 4);
  put(path, text);
}

/// Changes the manifest's fields and signs it anew: what is wrong then is what it says.
void edit(const std::string& dir, const std::function<void(Json&)>& change) {
  const std::string path = dir + "/manifest.json";
  Json fields = Json::parse(text_of(path));
  change(fields);
  fields.erase("crc32c");
  const std::string text = fields.dump().substr(1);
  char sum[9];
  std::snprintf(sum, sizeof sum, "%08x", crc32c(text.data(), static_cast<int64_t>(text.size())));
  put(path, str("{\"crc32c\": \"", sum, "\",\n", text));
}

Json& tensor(Json& manifest, const std::string& name) {
  for (Json& one : manifest["tensors"]) {
    if (one["name"] == name) return one;
  }
  throw std::runtime_error("no tensor " + name);
}

struct Case {
  const char* name;
  std::function<void(const std::string& dir)> damage;
  const char* sentence;
};

std::vector<Case> cases() {
  const auto edits = [](std::function<void(Json&)> change) {
    return [change = std::move(change)](const std::string& dir) { edit(dir, change); };
  };
  const auto manifest = [](const std::string& dir) { return dir + "/manifest.json"; };
  return {
      {"nothing", [](const std::string&) {}, "(read)"},
      {"signed anew", edits([](Json&) {}), "(read)"},
      // The manifest's bytes.
      {"no manifest", [=](auto& dir) { std::filesystem::remove(manifest(dir)); },
       "DIR/manifest.json: cannot open: No such file or directory"},
      {"an empty manifest", [=](auto& dir) { put(manifest(dir), ""); },
       "DIR/manifest.json: does not begin as a checkpoint's manifest does"},
      {"a cut manifest",
       [=](auto& dir) {
         std::filesystem::resize_file(manifest(dir), std::filesystem::file_size(manifest(dir)) - 1);
       },
       "DIR/manifest.json: its checksum is CRC, it says CRC: the file is damaged"},
      {"a longer manifest", [=](auto& dir) { put(manifest(dir), text_of(manifest(dir)) + " "); },
       "DIR/manifest.json: its checksum is CRC, it says CRC: the file is damaged"},
      {"a flipped bit in the manifest", [=](auto& dir) { flip(manifest(dir), 200); },
       "DIR/manifest.json: its checksum is CRC, it says CRC: the file is damaged"},
      {"a flipped bit at its start", [=](auto& dir) { flip(manifest(dir), 3); },
       "DIR/manifest.json: does not begin as a checkpoint's manifest does"},
      {"a folder in its place",
       [=](auto& dir) {
         std::filesystem::remove(manifest(dir));
         std::filesystem::create_directory(manifest(dir));
       },
       "DIR/manifest.json: is not a regular file, wanted a checkpoint's manifest"},
      {"what is no JSON",
       [=](auto& dir) {
         const std::string text = "\"a\": }";
         char sum[9];
         std::snprintf(sum, sizeof sum, "%08x",
                       crc32c(text.data(), static_cast<int64_t>(text.size())));
         put(manifest(dir), str("{\"crc32c\": \"", sum, "\",\n", text));
       },
       "DIR/manifest.json: is not JSON, wanted a checkpoint's manifest; at line 2, column 6 stands "
       "'}'"},
      // What it says.
      {"another version", edits([](Json& m) { m["version"] = 2; }),
       "DIR/manifest.json: is of version 2, this shardrun reads version 1; use the shardrun that "
       "wrote it"},
      {"another format", edits([](Json& m) { m["format"] = "other"; }),
       "DIR/manifest.json: format is 'other', wanted 'shardrun checkpoint'"},
      {"a field missing", edits([](Json& m) { m.erase("step"); }),
       "DIR/manifest.json lacks 'step'"},
      {"a field of another type", edits([](Json& m) { m["step"] = "5"; }),
       "DIR/manifest.json: step is \"5\", wanted a whole number of at least 0"},
      {"a tensor missing", edits([](Json& m) { m["tensors"].erase(1); }),
       "DIR: has no 'b' (f32[4]), which the model has; it is of another model, or of other "
       "options"},
      {"a tensor more", edits([](Json& m) {
         m["tensors"].push_back(tensor(m, "b"));
         m["tensors"].back()["name"] = "c";
       }),
       "DIR: has 'c' (f32[4]), which the model does not have; it is of another model, or of other "
       "options"},
      {"a tensor twice", edits([](Json& m) { m["tensors"].push_back(tensor(m, "b")); }),
       "DIR/manifest.json: tensor 'b' is there twice"},
      {"a transposed tensor", edits([](Json& m) {
         Json& w = tensor(m, "w");
         w["shape"] = {4, 6};
         w["pieces"] = {w["pieces"][0]};
         w["pieces"][0]["box"] = {{0, 4}, {0, 3}};
         Json other = w["pieces"][0];
         other["box"] = {{0, 4}, {3, 3}};
         w["pieces"].push_back(other);
       }),
       "DIR: 'w' is f32[4, 6], the model's is f32[6, 4]; it is of another model"},
      {"another type", edits([](Json& m) { tensor(m, "b")["dtype"] = "i32"; }),
       "DIR: 'b' is i32[4], the model's is f32[4]; it is of another model"},
      {"no type", edits([](Json& m) { tensor(m, "b")["dtype"] = "f31"; }),
       "DIR/manifest.json: tensors[1].dtype is \"f31\", wanted an element type"},
      {"a piece missing", edits([](Json& m) { tensor(m, "w")["pieces"].erase(0); }),
       "DIR/manifest.json: tensors[0] ('w'): its pieces hold 12 elements, it has 24"},
      {"pieces that overlap", edits([](Json& m) {
         tensor(m, "w")["pieces"][1]["box"] = {{2, 3}, {0, 4}};
       }),
       "DIR/manifest.json: tensors[0] ('w'): two of its pieces overlap"},
      {"a piece outside", edits([](Json& m) {
         tensor(m, "w")["pieces"][1]["box"] = {{4, 3}, {0, 4}};
       }),
       "DIR/manifest.json: tensors[0] ('w').pieces[1].box: dim 0 is [4, +3) of 6"},
      {"a piece of other dims", edits([](Json& m) {
         tensor(m, "w")["pieces"][1]["box"] = {{3, 3}};
       }),
       "DIR/manifest.json: tensors[0] ('w').pieces[1].box has 1 dims, its tensor has 2"},
      {"a size that wraps around", edits([](Json& m) {
         tensor(m, "w")["pieces"][1]["box"] = {{3, 9223372036854775807}, {0, 4}};
       }),
       "DIR/manifest.json: tensors[0] ('w').pieces[1].box: dim 0 is [3, +9223372036854775807) of "
       "6"},
      {"a file that is not listed", edits([](Json& m) { tensor(m, "w")["pieces"][0]["file"] = 7; }),
       "DIR/manifest.json: tensors[0] ('w').pieces[0].file is 7, there are 2"},
      {"an offset in the header", edits([](Json& m) { tensor(m, "w")["pieces"][0]["offset"] = 8; }),
       "DIR/manifest.json: tensors[0] ('w').pieces[0]: bytes [8, +48) are not all behind the "
       "header of shard-00001-model-00001-of-00001.safetensors, which has 472"},
      {"an offset behind the end",
       edits([](Json& m) { tensor(m, "w")["pieces"][0]["offset"] = 1 << 20; }),
       "DIR/manifest.json: tensors[0] ('w').pieces[0]: bytes [1048576, +48) are not all behind the "
       "header of shard-00001-model-00001-of-00001.safetensors, which has 472"},
      {"a negative offset", edits([](Json& m) { tensor(m, "w")["pieces"][0]["offset"] = -8; }),
       "DIR/manifest.json: tensors[0] ('w').pieces[0].offset is -8, wanted a whole number of at "
       "least "
       "0"},
      {"another offset", edits([](Json& m) {
         Json& offset = tensor(m, "w")["pieces"][0]["offset"];
         offset = offset.get<int64_t>() + 4;
       }),
       "DIR/shard-00001-model-00001-of-00001.safetensors: the checksum of 'w' [0:3, 0:4] is CRC, "
       "it "
       "was written as CRC: the file is damaged"},
      {"no checksum", edits([](Json& m) { tensor(m, "w")["pieces"][0]["crc32c"] = "xyz"; }),
       "DIR/manifest.json: tensors[0] ('w').pieces[0].crc32c is \"xyz\", wanted 8 hexadecimal "
       "digits"},
      {"a file of another folder", edits([](Json& m) { m["files"][0]["name"] = "../x"; }),
       "DIR/manifest.json: files[0].name is '../x', wanted the name of a file in the checkpoint's "
       "folder"},
      {"a file twice", edits([](Json& m) { m["files"][1]["name"] = m["files"][0]["name"]; }),
       "DIR/manifest.json: file shard-00001-model-00001-of-00001.safetensors is there twice"},
      // The pieces.
      {"a shard missing", [](auto& dir) { std::filesystem::remove(dir + kShard2); },
       "DIR/shard-00002-model-00001-of-00001.safetensors: cannot open: No such file or directory"},
      {"a pipe in a shard's place",
       [](auto& dir) {
         std::filesystem::remove(dir + kShard2);
         ::mkfifo((dir + kShard2).c_str(), 0600);
       },
       "DIR/shard-00002-model-00001-of-00001.safetensors: is not a regular file, wanted a part of "
       "a "
       "checkpoint"},
      {"a shard cut", [](auto& dir) { std::filesystem::resize_file(dir + kShard2, 100); },
       "DIR/shard-00002-model-00001-of-00001.safetensors: has 100 bytes, 472 were written: the "
       "file is damaged"},
      {"an empty shard", [](auto& dir) { put(dir + kShard1, ""); },
       "DIR/shard-00001-model-00001-of-00001.safetensors: has 0 bytes, 472 were written: the file "
       "is damaged"},
      {"a longer shard", [](auto& dir) { put(dir + kShard1, text_of(dir + kShard1) + "x"); },
       "DIR/shard-00001-model-00001-of-00001.safetensors: has 473 bytes, 472 were written: the "
       "file is damaged"},
      {"a flipped bit in a tensor", [](auto& dir) { flip(dir + kShard1, -1); },
       "DIR/shard-00001-model-00001-of-00001.safetensors: the checksum of 'adam_m/w' [0:6, 0:2] is "
       "CRC, it was written as CRC: the file is damaged"},
      {"a flipped bit in the other rank's", [](auto& dir) { flip(dir + kShard2, -60); },
       "DIR/shard-00002-model-00001-of-00001.safetensors: the checksum of 'w' [3:6, 0:4] is CRC, "
       "it was written as CRC: the file is damaged"},
      {"a flipped bit in a header", [](auto& dir) { flip(dir + kShard2, 20); },
       "DIR/shard-00002-model-00001-of-00001.safetensors: its header is not the one that was "
       "written: the file is damaged"},
      {"shards in each other's place",
       [](auto& dir) {
         const std::string first = text_of(dir + kShard1), second = text_of(dir + kShard2);
         put(dir + kShard1, second);
         put(dir + kShard2, first);
       },
       "DIR/shard-00001-model-00001-of-00001.safetensors: its header is not the one that was "
       "written: the file is damaged"},
      {"zeros where numbers were",
       [](auto& dir) {
         std::string text = text_of(dir + kShard1);
         std::fill(text.end() - 48, text.end(), '\0');
         put(dir + kShard1, text);
       },
       "DIR/shard-00001-model-00001-of-00001.safetensors: the checksum of 'adam_m/w' [0:6, 0:2] is "
       "CRC, it was written as CRC: the file is damaged"},
  };
}

TEST(DamagedCheckpoint, IsRefusedWithASentence) {
  EXPECT_GE(cases().size(), 40u);
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const TemporaryFolder folder("damaged");
    save(folder.path(), 5);
    const std::string dir = folder / "step-00000005";
    one.damage(dir);
    EXPECT_EQ(refusal(dir), one.sentence);
  }
}

/// Whichever byte it is.
TEST(DamagedCheckpoint, NoByteCanChange) {
  const TemporaryFolder folder("damaged");
  save(folder.path(), 5);
  const std::string dir = folder / "step-00000005";
  std::minstd_rand random(2);
  int64_t flipped = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string path = entry.path().string(), text = text_of(path);
    for (size_t at = 0; at < text.size(); ++at) {
      std::string other = text;
      other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
      put(path, other);
      EXPECT_THROW(Checkpoint::open(dir).verify(), Error) << path << " byte " << at;
      if (at % 37 == 0) {
        EXPECT_NE(refusal(dir), "(read)") << path << " byte " << at;
      }
      ++flipped;
    }
    put(path, text);
  }
  EXPECT_EQ(refusal(dir), "(read)");
  EXPECT_GT(flipped, 1000);
}

TEST(DamagedCheckpoint, LeavesWhatIsInUseAsItWas) {
  const TemporaryFolder folder("damaged");
  save(folder.path(), 5);
  const std::string dir = folder / "step-00000005";
  on_ranks(false, [&](Executor& executor, Communicator& comm) {
    const auto all_zero = [&] {
      for (const Binding& b : executor.program().bindings) {
        const Tensor shard = executor.read(b);
        const auto* bytes = shard.as<char>();
        if (std::any_of(bytes, bytes + byte_size(shard.type()), [](char c) { return c != 0; }))
          return false;
      }
      return true;
    };
    comm.barrier();
    if (comm.rank() == 0) flip(dir + kShard2, -1);
    comm.barrier();
    EXPECT_THROW(Checkpoint::open(dir).restore(executor, comm, true), Error);
    EXPECT_TRUE(all_zero());
    comm.barrier();
    if (comm.rank() == 0) flip(dir + kShard2, -1);
    comm.barrier();
    Checkpoint::open(dir).restore(executor, comm, true);
    EXPECT_FALSE(all_zero());
  });
}

TEST(DamagedCheckpoint, TheNewestWholeOneBeforeItIsFound) {
  const TemporaryFolder folder("damaged");
  for (int64_t step : {10, 20, 30, 40}) save(folder.path(), step);
  EXPECT_EQ(newest_whole_before(folder.path(), 40), folder / "step-00000030");
  flip(folder / "step-00000030" + kShard2, -1);
  std::filesystem::remove(folder / "step-00000020/manifest.json");
  EXPECT_EQ(newest_whole_before(folder.path(), 40), folder / "step-00000010");
  EXPECT_EQ(newest_whole_before(folder.path(), 10), "");
}

}  // namespace
}  // namespace shardrun
