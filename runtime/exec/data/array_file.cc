// The layout of .npy (numpy.lib.format, version 1.0) and of zip64 (PKWARE's APPNOTE.TXT 6.3.10).
#include "exec/data/array_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/round_up.h"
#include "exec/data/data_internal.h"

namespace shardrun {
namespace {

const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "<f4";
    case DType::f64: return "<f8";
    case DType::f16: return "<f2";
    case DType::i8: return "|i1";
    case DType::u8: return "|u1";
    case DType::i32: return "<i4";
    case DType::i64: return "<i8";
    case DType::boolean: return "|b1";
    case DType::bf16: break;
  }
  fail(ErrorKind::internal, "an array of ", dtype, " has no form in numpy's files");
}

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A multiple of 64 bytes, the last of them a new line.
std::string npy_header(const TensorType& type) {
  std::string shape = "(";
  for (const int64_t dim : type.shape) shape += str(dim, type.shape.size() == 1 ? "," : ", ");
  if (type.shape.size() > 1) shape.resize(shape.size() - 2);
  const std::string dict = str("{'descr': '", format_of(type.dtype),
                               "', 'fortran_order': False, 'shape': ", shape, "), }");
  constexpr size_t kPreamble = 10, kAlignment = 64;
  const auto bytes = static_cast<size_t>(
      round_up(static_cast<int64_t>(kPreamble + dict.size() + 1), int64_t{kAlignment}));
  std::string out = "\x93NUMPY";
  out += '\x01';
  out += '\0';
  append(out, static_cast<uint16_t>(bytes - kPreamble));
  out += dict;
  out.resize(bytes - 1, ' ');
  return out + '\n';
}

constexpr uint16_t kVersion = 45;            // of zip, that which has zip64
constexpr uint16_t kUtf8 = 1 << 11;          // names are UTF-8
constexpr uint16_t kNoTime = 0, kDay1 = 33;  // midnight of 1 January 1980
constexpr uint32_t kInZip64 = 0xffffffff;

/// What the local and the central header have alike, from the version on.
void append_common(std::string& to, uint32_t crc, const std::string& name, uint16_t extra) {
  append(to, kVersion);
  append(to, kUtf8);
  append(to, uint16_t{0});  // stored
  append(to, kNoTime);
  append(to, kDay1);
  append(to, crc);
  append(to, kInZip64);
  append(to, kInZip64);
  append(to, static_cast<uint16_t>(name.size()));
  append(to, extra);
}

std::string local_header(const std::string& name, uint32_t crc, int64_t size) {
  std::string out;
  append(out, uint32_t{0x04034b50});
  append_common(out, crc, name, 20);
  out += name;
  append(out, uint16_t{1});
  append(out, uint16_t{16});
  append(out, size);
  append(out, size);
  return out;
}

std::string central_header(const std::string& name, uint32_t crc, int64_t size, int64_t at) {
  std::string out;
  append(out, uint32_t{0x02014b50});
  append(out, kVersion);
  append_common(out, crc, name, 28);
  append(out, uint16_t{0});  // no comment
  append(out, uint16_t{0});  // the first disk
  append(out, uint16_t{0});
  append(out, uint32_t{0});
  append(out, kInZip64);
  out += name;
  append(out, uint16_t{1});
  append(out, uint16_t{24});
  append(out, size);
  append(out, size);
  append(out, at);
  return out;
}

std::string end_of_zip(int64_t entries, int64_t directory, int64_t bytes) {
  std::string out;
  append(out, uint32_t{0x06064b50});
  append(out, int64_t{44});  // bytes of this record behind this number
  append(out, kVersion);
  append(out, kVersion);
  append(out, uint32_t{0});
  append(out, uint32_t{0});
  append(out, entries);
  append(out, entries);
  append(out, bytes);
  append(out, directory);
  append(out, uint32_t{0x07064b50});
  append(out, uint32_t{0});
  append(out, directory + bytes);
  append(out, uint32_t{1});
  append(out, uint32_t{0x06054b50});
  append(out, uint16_t{0});
  append(out, uint16_t{0});
  append(out, uint16_t{0xffff});
  append(out, uint16_t{0xffff});
  append(out, kInZip64);
  append(out, kInZip64);
  append(out, uint16_t{0});
  return out;
}

bool is_zip(const std::string& path, const std::vector<ArrayFile::Array>& arrays) {
  if (path.ends_with(".npz")) return true;
  SR_REQUIRE(path.ends_with(".npy"), invalid_input, path, ": ends in neither .npz nor .npy");
  SR_REQUIRE(arrays.size() == 1, invalid_input, path, ": an .npy holds one array, there are ",
             arrays.size(), "; name an .npz");
  return false;
}

}  // namespace

ArrayFile::ArrayFile(const std::string& path, std::vector<Array> arrays)
    : path_(path), zipped_(is_zip(path, arrays)), arrays_(std::move(arrays)), output_(path) {
  SR_REQUIRE(!output_.temporary().empty(), invalid_input, path_,
             ": cannot be written piece by piece; name a regular file");
  fd_ = ::open(output_.temporary().c_str(), O_RDWR | O_CLOEXEC);
  SR_REQUIRE(fd_ >= 0, invalid_input, path_, ": cannot be written: ", std::strerror(errno));
  int64_t at = 0;
  for (const Array& array : arrays_) {
    Entry entry;
    entry.header = at;
    entry.preamble = npy_header(array.type);
    if (zipped_) at += std::ssize(local_header(array.name + ".npy", 0, 0));
    put(at, entry.preamble.data(), std::ssize(entry.preamble));
    entry.data = at + std::ssize(entry.preamble);
    at = entry.end = entry.data + byte_size(array.type);
    entries_.push_back(std::move(entry));
  }
  SR_REQUIRE(::ftruncate(fd_, at) == 0, device, path_,
             ": cannot be written: ", std::strerror(errno));
}

ArrayFile::~ArrayFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ArrayFile::put(int64_t at, const void* bytes, int64_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = ::pwrite(fd_, from, static_cast<size_t>(count), at);
    if (done < 0 && errno == EINTR) continue;
    SR_REQUIRE(done > 0, device, path_, ": cannot be written: ", std::strerror(errno));
    from += done;
    at += done;
    count -= done;
  }
}

void ArrayFile::write(size_t i, const Box& box, const void* elements) {
  if (is_empty(box)) return;
  const TensorType& type = arrays_[i].type;
  const int64_t width = size_of(type.dtype);
  // Up to dim `d` a run of elements that lie together goes on.
  size_t d = box.size();
  int64_t inner = 1;
  while (d > 0 && box[d - 1].size == type.shape[d - 1]) inner *= type.shape[--d];
  const int64_t run = d > 0 ? box[d - 1].size * inner : inner;
  const int64_t row = d > 0 ? type.shape[d - 1] * inner : inner;
  const int64_t first = d > 0 ? box[d - 1].begin * inner : 0;
  const size_t outer = d > 0 ? d - 1 : 0;
  const Shape shape(type.shape.begin(), type.shape.begin() + static_cast<std::ptrdiff_t>(outer));
  for_box(shape, std::span(box).first(outer), [&](int64_t at, int64_t k) {
    put(entries_[i].data + (at * row + first) * width,
        static_cast<const char*>(elements) + k * run * width, run * width);
  });
}

uint32_t ArrayFile::sum(int64_t begin, int64_t end) const {
  std::vector<unsigned char> block(size_t{1} << 20);
  uint32_t crc = 0;
  while (begin < end) {
    const auto want = static_cast<size_t>(std::min<int64_t>(std::ssize(block), end - begin));
    const ssize_t got = ::pread(fd_, block.data(), want, begin);
    if (got < 0 && errno == EINTR) continue;
    SR_REQUIRE(got > 0, device, path_, ": cannot be read back: ", std::strerror(errno));
    crc = static_cast<uint32_t>(crc32_z(crc, block.data(), static_cast<z_size_t>(got)));
    begin += got;
  }
  return crc;
}

void ArrayFile::write_directory() {
  std::string directory;
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const std::string name = arrays_[i].name + ".npy";
    const Entry& entry = entries_[i];
    const int64_t begin = entry.data - std::ssize(entry.preamble), size = entry.end - begin;
    const uint32_t crc = sum(begin, entry.end);
    const std::string header = local_header(name, crc, size);
    put(entry.header, header.data(), std::ssize(header));
    directory += central_header(name, crc, size, entry.header);
  }
  const int64_t at = entries_.empty() ? 0 : entries_.back().end, bytes = std::ssize(directory);
  directory += end_of_zip(std::ssize(arrays_), at, bytes);
  put(at, directory.data(), std::ssize(directory));
}

void ArrayFile::finish() {
  if (zipped_) write_directory();
  const int closed = ::close(fd_);
  fd_ = -1;
  SR_REQUIRE(closed == 0, device, path_, ": cannot be written: ", std::strerror(errno));
  output_.finish();
}

void for_pieces(const Box& box, int64_t most,
                const std::function<void(const Box& part, int64_t first)>& f) {
  if (is_empty(box)) return;
  // Whole dims from `d` + 1 on, a few steps of dim `d` at a time, one of each before.
  size_t d = box.size();
  int64_t inner = 1;
  while (d > 0 && inner * box[d - 1].size <= most) inner *= box[--d].size;
  if (d == 0) return f(box, 0);
  --d;
  const int64_t steps = std::max<int64_t>(1, most / inner);
  const std::span outer = std::span(box).first(d);
  Shape sizes;
  for (const Range& range : outer) sizes.push_back(range.size);
  for_box(sizes, full_box(sizes), [&](int64_t at, int64_t) {
    Box part = box;
    for (size_t k = d, left = static_cast<size_t>(at); k-- > 0;) {
      const auto size = static_cast<size_t>(sizes[k]);
      part[k] = {box[k].begin + static_cast<int64_t>(left % size), 1};
      left /= size;
    }
    for (int64_t begin = 0; begin < box[d].size; begin += steps) {
      part[d] = {box[d].begin + begin, std::min(steps, box[d].size - begin)};
      f(part, (at * box[d].size + begin) * inner);
    }
  });
}

}  // namespace shardrun
