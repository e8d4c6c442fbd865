// numpy's files: .npy (numpy.lib.format, versions 1.0 to 3.0) and .npz, a zip of them (PKWARE's
// APPNOTE.TXT 6.3.10; stored and deflated entries, zip64). Every length in a file is checked before
// it is used.
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>

#include "base/printable.h"
#include "base/process/process_memory.h"
#include "exec/data/data_files.h"
#include "exec/data/data_internal.h"

namespace shardrun {
namespace {

// Stored entries up to this size are checked against their CRC when opened; larger ones are mapped
// and read as they are needed.
constexpr int64_t kCheckCrcBytes = 64 << 20;
constexpr int64_t kMostNpyRank = 64;  // numpy's

template <class T>
T little(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The text after `'key':` in the header's dict, without leading spaces.
std::string_view dict_value(std::string_view header, std::string_view key,
                            const std::string& name) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    size_t at = header.find(quoted);
    if (at == std::string_view::npos) continue;
    at = header.find_first_not_of(" ", at + quoted.size());
    if (at == std::string_view::npos || header[at] != ':') continue;
    at = header.find_first_not_of(" ", at + 1);
    if (at != std::string_view::npos) return header.substr(at);
  }
  fail(ErrorKind::invalid_input, name, ": the npy header has no '", key, "'");
}

constexpr size_t kMostOfHeader = 80;  // of a header

Shape parse_shape(std::string_view text, const std::string& name) {
  SR_REQUIRE(!text.empty() && text.front() == '(', invalid_input, name,
             ": the npy header's shape is no tuple");
  const size_t close = text.find(')');
  SR_REQUIRE(close != std::string_view::npos, invalid_input, name,
             ": the npy header's shape has no end");
  std::string_view list = text.substr(1, close - 1);
  Shape shape;
  while (true) {
    const size_t start = list.find_first_not_of(" ,");
    if (start == std::string_view::npos) return shape;
    list.remove_prefix(start);
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), dim);
    SR_REQUIRE(error == std::errc() && dim >= 0, invalid_input, name, ": the npy header's shape ",
               excerpt(text.substr(0, close + 1), kMostOfHeader), " is not of whole numbers");
    list.remove_prefix(static_cast<size_t>(end - list.data()));
    if (!list.empty() && list.front() == 'L') list.remove_prefix(1);  // Python 2 wrote 3L
    SR_REQUIRE(list.empty() || list.front() == ',' || list.front() == ' ', invalid_input, name,
               ": the npy header's shape ", excerpt(text.substr(0, close + 1), kMostOfHeader),
               " is not of whole numbers");
    SR_REQUIRE(std::ssize(shape) < kMostNpyRank, invalid_input, name,
               ": the npy header's shape has more than ", kMostNpyRank, " dims");
    shape.push_back(dim);
  }
}

/// One entry of the zip's central directory.
struct ZipEntry {
  std::string name;
  int method = 0;
  uint16_t flags = 0;
  uint32_t crc = 0;
  int64_t stored = 0, size = 0, offset = 0;
};

class Zip {
 public:
  explicit Zip(std::shared_ptr<MappedFile> file) : file_(std::move(file)) { read_directory(); }

  const std::vector<ZipEntry>& entries() const { return entries_; }

  StoredArray open(const ZipEntry& entry, const std::string& name) const {
    SR_REQUIRE((entry.flags & 1) == 0, unsupported, name, ": is encrypted");
    // The local header repeats the name and has an extra field of its own length.
    need(entry.offset, 30, "a local header");
    const unsigned char* local = file_->data() + entry.offset;
    SR_REQUIRE(little<uint32_t>(local) == 0x04034b50, invalid_input, name,
               ": its local header is damaged");
    const int64_t start =
        entry.offset + 30 + little<uint16_t>(local + 26) + little<uint16_t>(local + 28);
    need(start, entry.stored, "an entry");
    const unsigned char* data = file_->data() + start;
    if (entry.method == 0) {
      SR_REQUIRE(entry.stored == entry.size, invalid_input, name, ": stored in ", entry.stored,
                 " bytes, but ", entry.size, " long");
      if (entry.size <= kCheckCrcBytes) check_crc(data, entry, name);
      return parse_npy(data, entry.size, file_, name);
    }
    SR_REQUIRE(entry.method == 8, unsupported, name, ": zip compression method ", entry.method,
               "; write it with numpy's savez or savez_compressed");
    const auto bytes = inflate_entry(data, entry, name);
    return parse_npy(bytes->data(), entry.size, bytes, name);
  }

 private:
  void need(int64_t offset, int64_t bytes, const char* what) const {
    const bool fits =
        offset >= 0 && bytes >= 0 && offset <= file_->size() && bytes <= file_->size() - offset;
    SR_REQUIRE(fits, invalid_input, file_->path(), ": ", what, " of the zip file at byte ", offset,
               " lies beyond its end at ", file_->size(), "; the file is cut short or damaged");
  }

  void read_directory() {
    const int64_t size = file_->size();
    const unsigned char* data = file_->data();
    // The end record is 22 bytes and a comment of up to 65535.
    int64_t end = size - 22;
    while (end >= 0 && end >= size - 22 - 65535 && little<uint32_t>(data + end) != 0x06054b50)
      --end;
    SR_REQUIRE(end >= 0 && end >= size - 22 - 65535, invalid_input, file_->path(),
               ": is no zip file (or is cut short); write it with numpy's savez");
    int64_t count = little<uint16_t>(data + end + 10);
    int64_t at = little<uint32_t>(data + end + 16);
    if ((count == 0xffff || at == 0xffffffff) && end >= 20 &&
        little<uint32_t>(data + end - 20) == 0x07064b50) {
      const int64_t record = little<int64_t>(data + end - 20 + 8);
      need(record, 56, "the zip64 end record");
      SR_REQUIRE(little<uint32_t>(data + record) == 0x06064b50, invalid_input, file_->path(),
                 ": its zip64 end record is damaged");
      count = little<int64_t>(data + record + 32);
      at = little<int64_t>(data + record + 48);
    }
    for (int64_t i = 0; i < count; ++i) at = read_entry(at);
  }

  /// Reads the directory's entry at `at`; returns where the next one is.
  int64_t read_entry(int64_t at) {
    need(at, 46, "the directory");
    const unsigned char* p = file_->data() + at;
    SR_REQUIRE(little<uint32_t>(p) == 0x02014b50, invalid_input, file_->path(),
               ": its zip directory is damaged");
    const int64_t name_bytes = little<uint16_t>(p + 28), extra_bytes = little<uint16_t>(p + 30);
    const int64_t next = at + 46 + name_bytes + extra_bytes + little<uint16_t>(p + 32);
    need(at, next - at, "the directory");
    ZipEntry entry;
    entry.flags = little<uint16_t>(p + 8);
    entry.method = little<uint16_t>(p + 10);
    entry.crc = little<uint32_t>(p + 16);
    entry.stored = little<uint32_t>(p + 20);
    entry.size = little<uint32_t>(p + 24);
    entry.offset = little<uint32_t>(p + 42);
    entry.name =
        printable({reinterpret_cast<const char*>(p) + 46, static_cast<size_t>(name_bytes)});
    read_zip64_extra(p + 46 + name_bytes, extra_bytes, entry);
    entries_.push_back(std::move(entry));
    return next;
  }

  /// Fields that overflow 32 bits stand, in this order and only they, in the extra field of id 1.
  void read_zip64_extra(const unsigned char* extra, int64_t bytes, ZipEntry& entry) const {
    while (bytes >= 4) {
      const int64_t length = little<uint16_t>(extra + 2);
      if (length > bytes - 4) return;
      if (little<uint16_t>(extra) == 1) {
        int64_t at = 0;
        for (int64_t* field : {&entry.size, &entry.stored, &entry.offset}) {
          if (*field != 0xffffffff) continue;
          SR_REQUIRE(at + 8 <= length, invalid_input, file_->path(), ": the zip64 field of '",
                     entry.name, "' is cut short");
          *field = little<int64_t>(extra + 4 + at);
          at += 8;
        }
      }
      extra += 4 + length;
      bytes -= 4 + length;
    }
  }

  static void check_crc(const unsigned char* data, const ZipEntry& entry, const std::string& name) {
    const auto crc = crc32_z(0, data, static_cast<z_size_t>(entry.size));
    SR_REQUIRE(crc == entry.crc, invalid_input, name,
               ": its checksum is wrong; the file is damaged");
  }

  static std::shared_ptr<std::vector<unsigned char>> inflate_entry(const unsigned char* data,
                                                                   const ZipEntry& entry,
                                                                   const std::string& name) {
    // Deflate shrinks by at most 1032: a size beyond that is a lie that must not be allocated.
    SR_REQUIRE(entry.size >= 0 && entry.size / 1040 <= entry.stored, invalid_input, name, ": ",
               entry.stored, " bytes cannot inflate to ", entry.size, "; the file is damaged");
    require_memory(entry.size, str(name, " takes ", entry.size, " bytes unpacked"),
                   "write it with numpy's savez, which is read where it lies");
    auto bytes = std::make_shared<std::vector<unsigned char>>(static_cast<size_t>(entry.size));
    z_stream stream{};
    SR_REQUIRE(inflateInit2(&stream, -MAX_WBITS) == Z_OK, internal, name, ": zlib does not start");
    int64_t in = 0, out = 0;
    int code = Z_OK;
    // zlib counts in 32 bits: feed it by the gigabyte.
    constexpr int64_t kPiece = 1 << 30;
    while (code == Z_OK) {
      const int64_t in_piece = std::min(kPiece, entry.stored - in);
      const int64_t out_piece = std::min(kPiece, entry.size - out);
      stream.next_in = const_cast<unsigned char*>(data) + in;
      stream.avail_in = static_cast<uInt>(in_piece);
      unsigned char spare = 0;  // zlib wants a place even when nothing is left to write
      stream.next_out = out_piece > 0 ? bytes->data() + out : &spare;
      stream.avail_out = static_cast<uInt>(out_piece);
      code = inflate(&stream, Z_NO_FLUSH);
      in += in_piece - stream.avail_in;
      out += out_piece - stream.avail_out;
    }
    inflateEnd(&stream);
    SR_REQUIRE(code == Z_STREAM_END && out == entry.size, invalid_input, name,
               ": its compressed data are damaged");
    check_crc(bytes->data(), entry, name);
    return bytes;
  }

  std::shared_ptr<MappedFile> file_;
  std::vector<ZipEntry> entries_;
};

/// The array, whose first dim runs fastest, in the usual order. It is copied into memory.
void turn_rows_major(StoredArray& array) {
  const int64_t bytes = array.element_bytes(), count = element_count(array.shape);
  require_memory(count * bytes, str(array.name, " takes ", count * bytes, " bytes turned round"),
                 "write it in C order, with numpy.ascontiguousarray");
  auto turned = std::make_shared<std::vector<unsigned char>>(static_cast<size_t>(count * bytes));
  const Shape strides = row_major_strides(array.shape);
  Shape at(array.shape.size(), 0);
  int64_t to = 0;
  for (int64_t from = 0; from < count; ++from) {
    std::memcpy(turned->data() + to * bytes, array.data + from * bytes, static_cast<size_t>(bytes));
    for (size_t d = 0; d < at.size(); ++d) {
      to += strides[d];
      if (++at[d] < array.shape[d]) break;
      to -= at[d] * strides[d];
      at[d] = 0;
    }
  }
  array.data = turned->data();
  array.owner = turned;
}

}  // namespace

StoredArray parse_npy(const unsigned char* data, int64_t size, std::shared_ptr<const void> owner,
                      const std::string& name) {
  SR_REQUIRE(size >= 10 && std::memcmp(data, "\x93NUMPY", 6) == 0, invalid_input, name,
             ": is no npy file; write it with numpy's save");
  const int version = data[6];
  SR_REQUIRE(version >= 1 && version <= 3, unsupported, name, ": npy version ", version,
             ", wanted 1 to 3");
  const int64_t preamble = version == 1 ? 10 : 12;
  SR_REQUIRE(size >= preamble, invalid_input, name, ": the npy header is cut short");
  const int64_t header_bytes =
      version == 1 ? int64_t{little<uint16_t>(data + 8)} : int64_t{little<uint32_t>(data + 8)};
  SR_REQUIRE(header_bytes <= size - preamble, invalid_input, name, ": the npy header is cut short");
  const std::string_view header(reinterpret_cast<const char*>(data) + preamble,
                                static_cast<size_t>(header_bytes));

  StoredArray array;
  array.name = name;
  array.owner = std::move(owner);
  array.data = data + preamble + header_bytes;
  const std::string_view descr = dict_value(header, "descr", name);
  SR_REQUIRE(descr.front() == '\'' || descr.front() == '"', unsupported, name,
             ": is an array of records; save its fields as arrays of their own");
  const size_t close = descr.find(descr.front(), 1);
  SR_REQUIRE(close != std::string_view::npos, invalid_input, name,
             ": the npy header's descr has no end");
  array.format = excerpt(descr.substr(1, close - 1), kMostOfHeader);
  array.shape = parse_shape(dict_value(header, "shape", name), name);
  const bool fortran = dict_value(header, "fortran_order", name).starts_with("True");

  int64_t count = 0;
  try {
    count = element_count(array.shape);
  } catch (const Error&) {
    fail(ErrorKind::invalid_input, name, ": shape ", to_string(array.shape), " is too large");
  }
  const int64_t element = array.element_bytes();
  const int64_t have = size - preamble - header_bytes;
  SR_REQUIRE(count <= have / element, invalid_input, name, ": shape ", to_string(array.shape),
             " of '", array.format, "' needs ",
             static_cast<double>(count) * static_cast<double>(element), " bytes, but ", have,
             " follow the header; the file is cut short");
  if (fortran && array.shape.size() > 1) turn_rows_major(array);
  return array;
}

NpzArchive::NpzArchive(const std::string& path) {
  const auto zip = std::make_shared<Zip>(std::make_shared<MappedFile>(path));
  std::vector<ZipEntry> entries;
  std::set<std::string> seen;
  for (const ZipEntry& entry : zip->entries()) {
    if (!entry.name.ends_with(".npy")) continue;
    names_.push_back(entry.name.substr(0, entry.name.size() - 4));
    entries.push_back(entry);
    SR_REQUIRE(seen.insert(names_.back()).second, invalid_input, path, ": has two arrays '",
               names_.back(), "', wanted one of each name");
  }
  SR_REQUIRE(!names_.empty(), invalid_input, path, ": holds no numpy arrays");
  open_ = [=, names = names_](size_t i) {
    return zip->open(entries[i], str(path, ": array '", names[i], "'"));
  };
}

bool NpzArchive::has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

const StoredArray* NpzArchive::find(const std::string& name) const {
  if (const auto known = opened_.find(name); known != opened_.end()) return &known->second;
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at == names_.end()) return nullptr;
  return &opened_.emplace(name, open_(static_cast<size_t>(at - names_.begin()))).first->second;
}

}  // namespace shardrun
