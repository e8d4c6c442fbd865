// Data: numpy's arrays and archives, MNIST's and CIFAR's images, tokens and texts.
#include "tests/exec/data/data_support.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

/// Samples of two numbers, and one of four classes each.
std::vector<BatchField> rows() {
  return {field("x", DType::f32, {2, 2}), field("y", DType::i64, {2}, 4, BatchRole::target)};
}
std::vector<BatchField> images(int64_t channels, int64_t side) {
  return {field("x", DType::f32, {2, channels, side, side}),
          field("y", DType::i64, {2}, 4, BatchRole::target)};
}
std::vector<BatchField> tokens() {
  return {field("x", DType::i64, {2, 4}, 100),
          field("y", DType::i64, {2, 4}, 100, BatchRole::target)};
}

/// Opens it and reads a batch.
void read_data(const std::string& spec, const std::vector<BatchField>& fields) {
  const auto source = open_data(spec, fields, {});
  for (const BatchField& f : fields) {
    std::vector<char> out(static_cast<size_t>(byte_size(f.type)));
    source->read(0, Split::training, f, full_box(f.type.shape), out.data());
  }
}

const std::string kNumbers = bytes_of(std::vector<float>(8, 1.F));
const std::string kClasses = bytes_of(std::vector<int64_t>{0, 1, 2, 3});
const std::string kX = npy("<f4", "(4, 2)", kNumbers), kY = npy("<i8", "(4,)", kClasses);

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  if (at == std::string::npos) throw std::runtime_error("no " + what);
  return text.replace(at, what.size(), by);
}

/// `bytes` with `value` put over them at `at` (from the end if below 0), little-endian.
std::string over(std::string bytes, int64_t at, uint64_t value, size_t count) {
  const size_t begin = at < 0 ? bytes.size() - static_cast<size_t>(-at) : static_cast<size_t>(at);
  for (size_t i = 0; i < count; ++i) bytes.at(begin + i) = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string idx(int type, const std::vector<uint32_t>& dims, const std::string& data) {
  std::string out = {0, 0, static_cast<char>(type), static_cast<char>(dims.size())};
  for (uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(dim >> shift);
  }
  return out + data;
}

std::function<std::string(const std::string&)> one_of(Arrays kind, const std::string& bytes) {
  return [=](const std::string& folder) { return write_arrays(kind, folder, bytes); };
}

/// The array x of rows(), with a y that is as it should be.
void add_npy(BadFiles& files) {
  const auto add = [&](const std::string& name, const std::string& x,
                       std::vector<std::string> words) {
    files.add(name, one_of(Arrays::npy, x), std::move(words));
  };
  add("nothing", "", {"x.npy"});
  add("a text", "a text that is long enough", {"x.npy: is no npy file"});
  add("six bytes", "\x93NUMPY", {"x.npy: is no npy file"});
  add("npy version 9", over(kX, 6, 9, 1), {"npy version 9"});
  add("a header beyond the file", over(kX, 8, 0xffff, 2), {"the npy header is cut short"});
  add("version 2, a header of 4 GiB", over(npy("<f4", "(4, 2)", kNumbers, 2), 8, 0xffffffff, 4),
      {"the npy header is cut short"});
  add("no shape", replaced(kX, "'shape'", "'shapf'"), {"the npy header has no 'shape'"});
  add("a shape that is a number", replaced(kX, "(4, 2)", "4     "), {"shape is no tuple"});
  add("a shape without an end", replaced(kX, "(4, 2)", "(4, 2,"), {"shape has no end"});
  add("a shape in words", replaced(kX, "(4, 2)", "(a, 2)"), {"(a, 2)", "whole numbers"});
  add("a dim below none", replaced(kX, "(4, 2)", "(-4,2)"), {"(-4,2)"});
  add("dims that wrap around", npy("<f4", "(4294967296, 4294967296)", kNumbers),
      {"[4294967296, 4294967296] is too large"});
  add("no elements of dims that wrap around",
      npy("<f4", "(0, 4294967296, 4294967296)", "", 1, "True"), {"x.npy: shape"});
  add("a dim of three thousand digits", npy("<f4", "(" + std::string(3000, '1') + ")", ""),
      {"x.npy"});
  add("65 dims",
      npy("<f4",
          "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
          "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,)",
          kNumbers),
      {"more than 64 dims"});
  add("a terabyte of elements", npy("<f4", "(274877906944,)", kNumbers), {"[274877906944]"});
  add("elements missing", kX.substr(0, kX.size() - 4), {"[4, 2]", "but 28 follow the header"});
  add("records", replaced(kX, "'<f4'", "[(1)]"), {"is an array of records"});
  add("objects", npy("|O", "(4, 2)", kNumbers + kNumbers), {"elements are '|O'"});
  add("big-endian numbers", npy(">f4", "(4, 2)", kNumbers), {"elements are '>f4'"});
  add("another shape", npy("<f4", "(4, 3)", std::string(48, '\0')), {"[4, 3]", "'x'", "[2, 2]"});
  add("fewer samples", npy("<f4", "(3, 2)", std::string(24, '\0')), {"4 samples", "has 3"});
  add("a number without dims", npy("<f4", "()", std::string(4, '\0')), {"shape is []"});
  add("no samples", npy("<f4", "(0, 2)", ""), {"x.npy"});
}

void add_npz(BadFiles& files) {
  const std::string good = npz({{"x", kX}, {"y", kY}});
  const auto add = [&](const std::string& name, const std::string& bytes,
                       std::vector<std::string> words) {
    files.add(name, one_of(Arrays::npz, bytes), std::move(words));
  };
  const size_t directory = good.find("PK\1\2");
  const auto at = static_cast<int64_t>(directory);
  add("an archive as it should be", good, {});
  add("an archive of nothing", "", {"data.npz"});
  add("what is no archive", std::string(100, 'x'), {"is no zip file"});
  add("an archive cut short", good.substr(0, good.size() - 30),
      {"is no zip file (or is cut short)"});
  add("an archive without entries", npz({}), {"holds no numpy arrays"});
  add("a directory beyond the file", over(good, -6, 0x7fffffff, 4),
      {"the directory of the zip file at byte 2147483647"});
  add("65534 entries", over(good, -12, 0xfffe, 2), {"the directory of the zip file"});
  add("a directory of zeros", over(good, at, 0, 4), {"its zip directory is damaged"});
  add("a name beyond the file", over(good, at + 28, 0xffff, 2), {"the directory of the zip file"});
  add("an entry beyond the file", over(good, at + 42, 0x7fffffff, 4),
      {"a local header of the zip file at byte 2147483647"});
  add("an entry of 2 GiB", over(over(good, at + 20, 0x7fffffff, 4), at + 24, 0x7fffffff, 4),
      {"an entry of the zip file"});
  add("zip64 without its field", over(good, at + 24, 0xffffffff, 4), {"array 'x'", "4294967295"});
  add("an encrypted entry", over(good, at + 8, 1, 2), {"array 'x': is encrypted"});
  add("an entry packed by bzip2", over(good, at + 10, 12, 2),
      {"array 'x': zip compression method 12"});
  add("what does not inflate", over(good, at + 10, 8, 2), {"array 'x': its compressed data"});
  add("a terabyte deflated", over(over(good, at + 10, 8, 2), at + 24, 0xfffffff0, 4),
      {"array 'x'", "cannot inflate to 4294967280"});
  add("another checksum", over(good, at + 16, 7, 4), {"array 'x': its checksum is wrong"});
  add("a local header of zeros", over(good, 0, 0, 4), {"array 'x': its local header is damaged"});
  add("an array that is a text", npz({{"x", "a text that is long enough"}, {"y", kY}}),
      {"array 'x': is no npy file"});
  add("names twice", npz({{"x", kX}, {"x", kX}, {"y", kY}}), {"has two arrays 'x'"});
  add("a name that a sentence would end at", npz({{std::string("x\0z", 3), kX}, {"y", kY}}),
      {"no array 'x'; it has 'x\\x00z', 'y'"});
  add("no array of the name", npz({{"z", kX}, {"y", kY}}), {"no array 'x'; it has 'z', 'y'"});
  add("a class that is not there",
      npz({{"x", kX}, {"y", npy("<i8", "(4,)", bytes_of(std::vector<int64_t>{0, 1, 9, 3}))}}),
      {"array 'y': element 2 is 9", "0 to 3"});
  add("a class of more than 63 bits",
      npz({{"x", kX}, {"y", npy("<u8", "(4,)", std::string(32, '\xff'))}}),
      {"array 'y'", "18446744073709551615"});
  const auto mask = [](const std::string& bits) {
    return npy("|b1", "(" + std::to_string(bits.size()) + ",)", bits);
  };
  const std::string none(4, '\0'), all(4, '\1');
  add("one mask of three", npz({{"x", kX}, {"y", kY}, {"train_mask", mask(all)}}),
      {"has masks, but no 'val_mask', 'test_mask'"});
  add("masks that share samples",
      npz({{"x", kX},
           {"y", kY},
           {"train_mask", mask(all)},
           {"val_mask", mask(all)},
           {"test_mask", mask(none)}}),
      {"'val_mask'", "has sample 0"});
  add("masks of nothing",
      npz({{"x", kX},
           {"y", kY},
           {"train_mask", mask(none)},
           {"val_mask", mask(none)},
           {"test_mask", mask(none)}}),
      {"'train_mask'", "is false everywhere"});
  add("masks of other lengths",
      npz({{"x", kX},
           {"y", kY},
           {"train_mask", mask(all)},
           {"val_mask", mask("\1")},
           {"test_mask", mask(none)}}),
      {"'val_mask'", "has 1 elements"});
}

void add_idx(BadFiles& files) {
  const auto add = [&](const std::string& name, const std::string& images,
                       std::vector<std::string> words) {
    files.add(name, one_of(Arrays::idx, images), std::move(words));
  };
  const std::string good = idx(8, {4, 3, 3}, std::string(36, '\7'));
  add("images as they should be", good, {});
  add("no images", "", {"the file is empty"});
  add("three bytes of images", good.substr(0, 3), {"is no IDX file"});
  add("images that are a text", "a text", {"is no IDX file"});
  add("images of another type", over(good, 2, 99, 1), {"IDX element type 99"});
  add("images of rank 0", over(good, 3, 0, 1), {"IDX rank 0"});
  add("images of rank 255", over(good, 3, 255, 1), {"IDX rank 255"});
  add("dims missing", good.substr(0, 10), {"the IDX header is cut short"});
  add("images missing", good.substr(0, 40), {"[4, 3, 3]", "needs 36 bytes, but 24"});
  add("images too many", good + "x", {"has more bytes than its shape [4, 3, 3]"});
  add("2^64 images", idx(8, {0xffffffff, 0xffffffff, 3}, ""), {"4294967295", "is too large"});
  add("2^32 images of eight bytes", idx(14, {0xffffffff, 1, 1}, "x"), {"[4294967295, 1, 1]"});
  add("images of half a gzip stream", "\x1f\x8b\x08", {"the gzip stream ends"});
  add("images of no gzip stream", "\x1f\x8b garbage, and more of it",
      {"the gzip stream is damaged"});
  add("images of other sizes", idx(8, {4, 9, 9}, std::string(324, '\0')), {"[4, 9, 9]", "'x'"});
  add("images without labels", idx(8, {5, 3, 3}, std::string(45, '\0')),
      {"labels: is [4]", "has 5 images"});
}

}  // namespace

std::string write_arrays(Arrays kind, const std::string& folder, const std::string& bytes) {
  const char* names[] = {"/x.npy", "/data.npz", "/images"};
  if (kind == Arrays::npy) put(folder + "/y.npy", kY);
  if (kind == Arrays::idx) put(folder + "/labels", idx(8, {4}, std::string("\0\1\2\3", 4)));
  const std::string path = folder + names[static_cast<int>(kind)];
  put(path, bytes);
  return path;
}

void read_arrays(Arrays kind, const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  switch (kind) {
    case Arrays::npy: return read_data("npy:x=" + path + ",y=" + folder + "/y.npy", rows());
    case Arrays::npz: return read_data("npz:" + path, rows());
    case Arrays::idx: return read_data("idx:" + path + "," + folder + "/labels", images(1, 3));
  }
}

std::vector<BadFile> bad_arrays() {
  BadFiles one("", [](const std::string& path) { read_arrays(Arrays::npy, path); });
  one.add("an array as it should be", one_of(Arrays::npy, kX), {});
  add_npy(one);
  BadFiles archive("", [](const std::string& path) { read_arrays(Arrays::npz, path); });
  add_npz(archive);
  std::vector<BadFile> out = one.take();
  for (BadFile& file : archive.take()) out.push_back(std::move(file));
  return out;
}

std::vector<BadFile> bad_samples() {
  BadFiles mnist("", [](const std::string& path) { read_arrays(Arrays::idx, path); });
  add_idx(mnist);
  BadFiles cifar("batch.bin",
                 [](const std::string& path) { read_data("cifar:" + path, images(3, 32)); });
  cifar.add("a record cut short", std::string(3072, '\0'), {"3072 bytes are no whole number"});
  cifar.add("no records", "", {"batch.bin"});
  cifar.add("a label that is not there", std::string(3073, '\7') + std::string(3073, '\0'),
            {"labels: element 0 is 7", "0 to 3"});
  BadFiles numbers("tokens.bin", [](const std::string& path) {
    read_data("tokens:" + path + ":uint16", tokens());
  });
  numbers.add("no tokens", "", {"the file is empty"});
  numbers.add("half a token", std::string(41, '\0'), {"41 bytes are no whole number of 2-byte"});
  numbers.add("too few tokens", std::string(8, '\0'), {"4 tokens are too few for a context of 4"});
  numbers.add("a token beyond the vocabulary", over(std::string(80, '\0'), 20, 100, 2),
              {"token 100 at position 10", "vocabulary of 100"});
  BadFiles text("text.txt", [](const std::string& path) { read_data("text:" + path, tokens()); });
  text.add("no text", "", {"the file is empty"});
  text.add("letters beyond the vocabulary", std::string(40, 'z'),
           {"token 122 at position 0", "vocabulary of 100"});
  std::vector<BadFile> out = mnist.take();
  for (BadFiles* files : {&cifar, &numbers, &text}) {
    for (BadFile& file : files->take()) out.push_back(std::move(file));
  }
  return out;
}

}  // namespace shardrun::test
