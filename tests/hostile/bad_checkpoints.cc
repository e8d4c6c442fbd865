// Checkpoints, manifests and data, and the weights of safetensors files and folders.
#include "base/crc32c.h"
#include "exec/checkpoint/reader.h"
#include "exec/safetensors.h"
#include "exec/safetensors_folder.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kShard = "shard-00001-model-00001-of-00001.safetensors";

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The text behind a checksum that is right: what is wrong then is what it says.
void put_signed(const std::string& path, const std::string& text) {
  char sum[9];
  std::snprintf(sum, sizeof sum, "%08x", crc32c(text.data(), static_cast<int64_t>(text.size())));
  put(path + "/" + Manifest::kFile, str("{\"crc32c\": \"", sum, "\",\n", text));
}

using Damage = std::function<void(const std::string& path)>;
std::function<std::string(const std::string&)> damaged(const Damage& damage) {
  return [=](const std::string& folder) {
    std::string path = write_checkpoint(folder);
    damage(path);
    return path;
  };
}

/// With what stands at a JSON pointer replaced, or taken away if `value` is null.
std::function<std::string(const std::string&)> says(const std::string& pointer, const Json& value) {
  return damaged([=](const std::string& path) {
    Json fields = Json::parse(text_of(path + "/" + Manifest::kFile));
    fields.erase("crc32c");
    const Json::json_pointer at(pointer);
    if (value.is_null()) {
      fields.at(at.parent_pointer()).erase(at.back());
    } else {
      fields[at] = value;
    }
    put_signed(path, fields.dump().substr(1));
  });
}

void add_manifests(BadFiles& files) {
  const auto manifest = [](const std::string& bytes) {
    return damaged([=](const std::string& path) { put(path + "/" + Manifest::kFile, bytes); });
  };
  const auto signs = [](const std::string& text) {
    return damaged([=](const std::string& path) { put_signed(path, text); });
  };
  files.add("an empty manifest", manifest(""), {"does not begin as a checkpoint's manifest"});
  files.add("a manifest of other JSON", manifest("{\"format\": 1}"), {"does not begin as"});
  files.add("a checksum that is no number", manifest("{\"crc32c\": \"zzzzzzzz\",\n\"a\": 1}"),
            {"its checksum is", "it says zzzzzzzz"});
  files.add("no manifest", damaged([](const std::string& path) {
              std::filesystem::remove(path + "/" + Manifest::kFile);
            }),
            {"manifest.json", "cannot open"});
  files.add("a manifest without an end", damaged([](const std::string& path) {
              std::filesystem::remove(path + "/" + Manifest::kFile);
              std::filesystem::create_symlink("/dev/zero", path + "/" + Manifest::kFile);
            }),
            {"manifest.json", "is not a regular file"});
  files.add("signed, but no JSON", signs("\"a\": }"), {"is not JSON"});
  files.add("signed, but deep",
            signs("\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
            {"nested deeper than 64"});
  files.add("signed, but empty", signs("\"a\": 1}"), {"lacks 'format'"});
}

void add_fields(BadFiles& files) {
  files.add("another version", says("/version", 9), {"is of version 9"});
  files.add("a step below none", says("/step", -1), {"step is -1"});
  files.add("a step beyond 64 bits", says("/step", 1e30), {"step is 1e+30"});
  files.add("a run that is no object", says("/run", {1}), {"run is [1]", "wanted an object"});
  files.add("files that are a text", says("/files", "x"), {"files is \"x\""});
  files.add("a file of another folder", says("/files/0/name", "../x"), {"files[0].name is '../x'"});
  files.add("a file named by a NUL", says("/files/0/name", std::string("a\0b", 3)),
            {"files[0].name"});
  files.add("a header longer than its file", says("/files/0/header_bytes", 1 << 30),
            {"files[0]", "1073741824"});
  files.add("a file of 2^62 bytes", says("/files/0/bytes", int64_t{1} << 62),
            {"4611686018427387904", "the file is damaged"});
  files.add("a checksum too long", says("/files/0/header_crc32c", "0123456789"),
            {"files[0].header_crc32c", "8 hexadecimal digits"});
  files.add("a type that is not known", says("/tensors/0/dtype", "f8"),
            {"tensors[0]", "dtype is \"f8\""});
  files.add("a dim below none", says("/tensors/0/shape/0", -3), {"tensors[0] ('w').shape", "-3"});
  files.add("dims that wrap around", says("/tensors/0/shape", {int64_t{1} << 62, int64_t{1} << 62}),
            {"elements"});
  files.add("a box beyond its tensor", says("/tensors/0/pieces/0/box/0/1", INT64_MAX),
            {"tensors[0] ('w').pieces[0].box", "9223372036854775807"});
  files.add("a box of half an element", says("/tensors/0/pieces/0/box/0/1", 0.5),
            {"tensors[0] ('w').pieces[0].box", "0.5"});
  files.add("a box of three numbers", says("/tensors/0/pieces/0/box/0", {0, 1, 2}),
            {"tensors[0] ('w').pieces[0].box"});
  files.add("no pieces", says("/tensors/0/pieces", Json::array()),
            {"tensors[0] ('w')", "hold 0 elements, it has 6"});
  files.add("a file that is not listed", says("/tensors/1/pieces/0/file", 4),
            {"tensors[1] ('b').pieces[0].file is 4"});
  files.add("an offset that wraps around", says("/tensors/1/pieces/0/offset", INT64_MAX),
            {"tensors[1] ('b').pieces[0]", "9223372036854775807"});
  files.add("another checksum of a tensor", says("/tensors/1/pieces/0/crc32c", "00000001"),
            {kShard, "the checksum of 'b'", "was written as 00000001"});
  files.add("names twice", says("/tensors/1/name", "w"), {"tensor 'w' is there twice"});
}

void add_shards(BadFiles& files) {
  const auto shard = [](const std::function<void(const std::string&)>& change) {
    return damaged([=](const std::string& path) { change(path + "/" + kShard); });
  };
  files.add("data missing", shard([](auto& file) { std::filesystem::remove(file); }),
            {kShard, "cannot open"});
  files.add("data cut", shard([](auto& file) { std::filesystem::resize_file(file, 9); }),
            {kShard, "has 9 bytes"});
  files.add("a terabyte of data",
            shard([](auto& file) { std::filesystem::resize_file(file, uintmax_t{1} << 40); }),
            {kShard, "has 1099511627776 bytes"});
  files.add("a folder for data", shard([](auto& file) {
              std::filesystem::remove(file);
              std::filesystem::create_directory(file);
            }),
            {kShard, "is not a regular file"});
  files.add("a header of zeros", shard([](auto& file) {
              std::fstream(file, std::ios::binary | std::ios::in | std::ios::out)
                  << std::string(32, '\0');
            }),
            {kShard, "its header is not the one that was written"});
  files.add("other numbers", shard([](auto& file) {
              std::string bytes = text_of(file);
              bytes.back() = 'x';
              put(file, bytes);
            }),
            {kShard, "the checksum of 'b'"});
}

/// A file of a header, its length in front, and so many bytes behind.
std::string safetensors(const std::string& header, size_t data, int64_t length = -1) {
  std::string out;
  const auto bytes =
      length < 0 ? static_cast<uint64_t>(header.size()) : static_cast<uint64_t>(length);
  for (int i = 0; i < 8; ++i) out += static_cast<char>(bytes >> (8 * i));
  return out + header + std::string(data, '\0');
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
         offsets + "}}";
}

}  // namespace

/// w [3, 2] and b [2], as step 5.
std::string write_checkpoint(const std::string& folder) {
  const std::string path = folder + "/step-00000005";
  std::filesystem::create_directory(path);
  const std::vector<SafetensorsTensor> tensors = {{"w", {DType::f32, {3, 2}}},
                                                  {"b", {DType::f32, {2}}}};
  const std::string header = safetensors_header(tensors, {}), data(32, '\7');
  put(path + "/" + kShard, header + data);
  Manifest manifest;
  manifest.step = 5;
  manifest.mesh = "1";
  const auto bytes = static_cast<int64_t>(header.size());
  manifest.files = {{kShard, bytes + 32, bytes, crc32c(header.data(), bytes)}};
  const auto piece = [&](Box box, int64_t at, int64_t size) {
    return Manifest::Piece{std::move(box), 0, bytes + at, size, crc32c(data.data(), size)};
  };
  manifest.tensors = {{{"w", {DType::f32, {3, 2}}}, {piece({{0, 3}, {0, 2}}, 0, 24)}},
                      {{"b", {DType::f32, {2}}}, {piece({{0, 2}}, 24, 8)}}};
  put(path + "/" + Manifest::kFile, to_text(manifest));
  return path;
}

std::vector<BadFile> bad_checkpoints() {
  BadFiles files("", [](const std::string& path) { Checkpoint::open(path).verify(); });
  files.add("as it should be", write_checkpoint, {});
  add_manifests(files);
  add_fields(files);
  add_shards(files);
  return files.take();
}

std::vector<BadFile> bad_safetensors() {
  BadFiles files("model.safetensors", [](const std::string& path) { find_tensors(path); });
  files.add("as it should be", safetensors(tensor("F32", "[2]", "[0, 8]"), 8), {});
  files.add("nothing", "", {"has 0 bytes"});
  files.add("seven bytes", "1234567", {"has 7 bytes"});
  files.add("a header of 2^63 bytes", safetensors("{}", 0, INT64_MAX), {"9223372036854775807"});
  files.add("a header beyond the file", safetensors("{}", 0, 1000), {"header has 1000 bytes"});
  files.add("a text", "a text that is long enough", {"is it a safetensors file?"});
  files.add("a list", safetensors("[1]", 0), {"does not begin with '{'"});
  files.add("half an object", safetensors("{\"w\": ", 0), {"is not JSON"});
  files.add("deep lists", safetensors("{\"w\": " + std::string(100'000, '['), 0),
            {"nested deeper"});
  files.add("a tensor that is a number", safetensors("{\"w\": 1}", 0), {"tensor 'w' is number"});
  files.add("another type", safetensors(tensor("F99", "[2]", "[0, 8]"), 8),
            {"tensor 'w': dtype is \"F99\""});
  files.add("a dim below none", safetensors(tensor("F32", "[-2]", "[0, 8]"), 8),
            {"tensor 'w': shape has -2"});
  files.add("dims that wrap around",
            safetensors(tensor("F32", "[4294967296, 4294967296, 2]", "[0, 0]"), 0),
            {"tensor 'w'", "has no size"});
  files.add("offsets the wrong way", safetensors(tensor("F32", "[2]", "[8, 0]"), 8),
            {"tensor 'w': data_offsets are [8, 0]"});
  files.add("three offsets", safetensors(tensor("F32", "[2]", "[0, 8, 8]"), 8),
            {"tensor 'w': data_offsets are [0, 8, 8]"});
  files.add("offsets beyond the file", safetensors(tensor("F32", "[2]", "[0, 8]"), 4),
            {"tensor 'w' ends at byte 8"});
  files.add("a hole", safetensors(tensor("F32", "[1]", "[4, 8]"), 8), {"'w' begins at byte 4"});
  files.add("bytes too many", safetensors(tensor("F32", "[1]", "[0, 4]"), 8), {"byte 4", "at 8"});
  files.add("a name twice", safetensors(R"({"w": 1, "w": 2})", 0), {"field 'w' is there twice"});
  files.add("metadata that are no texts", safetensors(R"({"__metadata__": {"a": []}})", 0),
            {"__metadata__ 'a' is array"});
  const auto index = [](const std::string& text) {
    return file_of("model.safetensors.index.json", text);
  };
  files.add("an index of another folder", index(R"({"weight_map": {"w": "../x.safetensors"}})"),
            {"weight_map 'w' is '../x.safetensors'"});
  files.add("an index of what is not there", index(R"({"weight_map": {"w": "x.safetensors"}})"),
            {"x.safetensors"});
  files.add("an index without a map", index("{}"), {"has no weight_map"});
  files.add("an index of numbers", index(R"({"weight_map": {"w": 1}})"), {"'w' is number"});
  return files.take();
}

}  // namespace shardrun::test
