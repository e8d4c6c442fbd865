// Headers that are of the format, and those that are not, each with its sentence.
#include "exec/safetensors.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/exec/state_program.h"

namespace shardrun {
namespace {

class Safetensors : public testing::Test {
 protected:
  /// A file of this header and so many bytes of data.
  std::string file(const std::string& header, int64_t data_bytes,
                   std::optional<uint64_t> length = std::nullopt) {
    std::string text;
    const uint64_t bytes = length.value_or(header.size());
    for (int i = 0; i < 8; ++i) text += static_cast<char>(bytes >> (8 * i) & 0xff);
    text += header + std::string(static_cast<size_t>(data_bytes), '\1');
    return raw(text);
  }
  std::string raw(const std::string& bytes) {
    const std::string path = folder_ / "f.safetensors";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string refusal(const std::string& path) {
    try {
      read_safetensors_header(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
      const std::string text = e.what();
      EXPECT_EQ(text.rfind(path + ": ", 0), 0u) << text;
      return text.substr(std::min(text.size(), path.size() + 2));
    }
    return "(read)";
  }
  test::TemporaryFolder folder_{"safetensors"};
};

TEST_F(Safetensors, WhatIsWrittenIsReadAgain) {
  const std::string path = folder_ / "w.safetensors";
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  const int64_t n = -7;
  SafetensorsWriter out(path,
                        {{"w", {DType::f32, {2, 3}}},
                         {"é \"quoted\"", {DType::bf16, {0, 4}}},
                         {"n", {DType::i64, {}}}},
                        {{"format", "pt"}});
  out.write(w.data(), 10);
  EXPECT_FALSE(std::filesystem::exists(path));
  out.write(reinterpret_cast<const char*>(w.data()) + 10, 14);
  out.write(&n, sizeof n);
  out.finish();
  const SafetensorsHeader header = read_safetensors_header(path);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.header_bytes % 8, 0);
  EXPECT_EQ(header.file_bytes, header.header_bytes + 32);
  EXPECT_EQ(header.find("w")->type(), (TensorType{DType::f32, {2, 3}}));
  EXPECT_EQ(header.find("é \"quoted\"")->type(), (TensorType{DType::bf16, {0, 4}}));
  EXPECT_EQ(header.find("n")->begin, header.header_bytes + 24);
  EXPECT_EQ(header.find("x"), nullptr);
  std::ifstream in(path, std::ios::binary);
  in.seekg(header.find("w")->begin);
  std::vector<float> again(6);
  in.read(reinterpret_cast<char*>(again.data()), 24);
  EXPECT_EQ(again, w);
}

TEST_F(Safetensors, BytesAreThoseOfTheFormat) {
  EXPECT_EQ(safetensors_header({{"a", {DType::f32, {2}}}}, {}),
            std::string("\x38\0\0\0\0\0\0\0", 8) +
                R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )");
}

TEST_F(Safetensors, TypesThatWeLackAreThereAllTheSame) {
  const std::string path = file(R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}})", 3);
  const SafetensorsHeader header = read_safetensors_header(path);
  EXPECT_EQ(header.tensors[0].dtype, "F8_E4M3");
  try {
    header.tensors[0].type();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "tensor 'a' is F8_E4M3, which is not supported");
  }
}

TEST_F(Safetensors, WhatIsNotOfTheFormatIsNamed) {
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string fine = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  EXPECT_EQ(refusal(file(one(fine), 8)), "(read)");
  EXPECT_EQ(refusal(file("{}", 0)), "(read)");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[],"data_offsets":[0,4])"), 4)), "(read)");

  EXPECT_EQ(refusal(raw("")), "has 0 bytes, no safetensors file has fewer than 8");
  EXPECT_EQ(refusal(file("{}", 0, 100'000'001)),
            "its header has 100000001 bytes, wanted 2 to 100000000; is it a safetensors file?");
  EXPECT_EQ(refusal(file("{}", 0, ~0ull)),
            "its header has 18446744073709551615 bytes, wanted 2 to 100000000; is it a safetensors "
            "file?");
  const std::string pickled =
      "is no safetensors file but one of PyTorch's pickled ones, which run "
      "code when they are read; save the weights with "
      "safetensors.torch.save_file";
  EXPECT_EQ(refusal(raw(std::string("PK\3\4\0\0\b\b", 8) + std::string(30, '\0'))), pickled);
  EXPECT_EQ(refusal(raw("\x80\x02\x8a\nl\xfc\x9c"
                        "F\xf9 j\xa8P\x19.")),
            pickled);
  EXPECT_EQ(refusal(file("{}", 0, 3)), "its header has 3 bytes, the file only 10");
  EXPECT_EQ(refusal(file(" {}", 0)), "its header does not begin with '{'");
  EXPECT_EQ(refusal(file("{\"a\":", 0)),
            "is not JSON, wanted a header of safetensors; it ends too early, at line 1, column 6");
  EXPECT_EQ(refusal(file("{\"a\":1}", 0)), "tensor 'a' is number, wanted an object");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[2])"), 8)),
            "tensor 'a' has no 'data_offsets'");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F99","shape":[2],"data_offsets":[0,8])"), 8)),
            "tensor 'a': dtype is \"F99\", which the format does not have");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8)),
            "tensor 'a': shape has -2, wanted a whole number of at least 0");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8)),
            "tensor 'a': shape has 2.0, wanted a whole number of at least 0");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8)),
            "tensor 'a': shape is number, wanted a list");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8)),
            "tensor 'a': data_offsets are [8, 0], wanted a begin and an end");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,16])"), 8)),
            "tensor 'a' ends at byte 16 of the data, which end at 8");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8)),
            "tensor 'a': F32 of shape [3] takes 12 bytes, its data_offsets leave 8");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
                             R"("data_offsets":[0,8])"),
                         8)),
            "tensor 'a': F32 of shape [4294967296, 4294967296, 4294967296] has no size, its "
            "data_offsets leave 8");
  EXPECT_EQ(refusal(file(one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1)),
            "tensor 'a': F4 of shape [3] has no size, its data_offsets leave 1");
  EXPECT_EQ(refusal(file(one(fine), 12)), "the tensors end at byte 8 of the data, the file at 12");
  EXPECT_EQ(
      refusal(file(one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12)),
      "tensor 'a' begins at byte 4 of the data, the one before it ends at 0: there is a hole");
  EXPECT_EQ(refusal(file("{\"a\":{" + fine +
                             R"(},"b":{"dtype":"F32","shape":[2],)"
                             R"("data_offsets":[4,12]}})",
                         12)),
            "tensor 'b' begins at byte 4 of the data, the one before it ends at 8: they overlap");
  EXPECT_EQ(refusal(file("{\"a\":{" + fine + "},\"a\":{" + fine + "}}", 8)),
            "field 'a' is there twice");
  EXPECT_EQ(
      refusal(file(one(R"("dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8])"), 8)),
      "field 'a.dtype' is there twice");
  EXPECT_EQ(refusal(file(R"({"__metadata__":{"a":1}})", 0)),
            "__metadata__ 'a' is number, wanted a text");
  EXPECT_EQ(refusal(file(R"({"__metadata__":[]})", 0)),
            "__metadata__ is array, wanted an object of texts");
  EXPECT_EQ(refusal(folder_ / "missing"), "cannot open: No such file or directory");
  EXPECT_EQ(refusal(file("{\"a\":" + std::string(100, '['), 0)),
            "lists and objects are nested deeper than 64");
}

TEST_F(Safetensors, WritersSayWhatIsMissing) {
  SafetensorsWriter out(folder_ / "w.safetensors", {{"w", {DType::f32, {2}}}});
  EXPECT_THROW(out.write("123456789", 9), Error);
  out.write("1234", 4);
  EXPECT_THROW(out.finish(), Error);
  EXPECT_THROW(safetensors_header({{"a", {DType::f32, {}}}, {"a", {DType::f32, {}}}}, {}), Error);
}

}  // namespace
}  // namespace shardrun
