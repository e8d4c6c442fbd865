// MNIST's IDX files, gzipped or not: two zero bytes, a byte for the type, one for the rank, the
// dims as big-endian u32, then the elements, big-endian.
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/process/process_memory.h"
#include "exec/data/data_files.h"
#include "exec/data/data_internal.h"

namespace shardrun {
namespace {

using Bytes = std::vector<unsigned char>;

struct IdxType {
  int code;
  const char* format;  // numpy's, once in this machine's order
  int bytes;
};
constexpr IdxType kIdxTypes[] = {{0x08, "|u1", 1}, {0x09, "|i1", 1}, {0x0b, "<i2", 2},
                                 {0x0c, "<i4", 4}, {0x0d, "<f4", 4}, {0x0e, "<f8", 8}};
constexpr int64_t kMostIdxRank = 8;

/// zlib's stream, ended whatever happens.
struct Inflater {
  z_stream stream{};
  Inflater() {
    SR_REQUIRE(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK, internal, "zlib does not start");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

/// Bytes of a file, plain or gzipped, one after the other.
class Reader {
 public:
  explicit Reader(const std::string& path) : file_(std::make_shared<MappedFile>(path)) {
    gzipped_ = file_->size() >= 2 && file_->data()[0] == 0x1f && file_->data()[1] == 0x8b;
    if (gzipped_) inflater_ = std::make_unique<Inflater>();
  }

  bool gzipped() const { return gzipped_; }
  const std::shared_ptr<MappedFile>& file() const { return file_; }
  int64_t position() const { return out_; }

  /// Returns how many of `count` bytes there were.
  int64_t read(int64_t count, unsigned char* to) {
    if (count == 0) return 0;  // no images: nowhere to write to
    if (!gzipped_) {
      const int64_t n = std::min(count, file_->size() - out_);
      std::memcpy(to, file_->data() + out_, static_cast<size_t>(n));
      out_ += n;
      return n;
    }
    z_stream& z = inflater_->stream;
    constexpr int64_t kPiece = 1 << 30;  // zlib counts in 32 bits
    int64_t done = 0;
    while (done < count && !ended_) {
      const int64_t in = std::min(kPiece, file_->size() - in_);
      const int64_t out = std::min(kPiece, count - done);
      z.next_in = const_cast<unsigned char*>(file_->data()) + in_;
      z.avail_in = static_cast<uInt>(in);
      z.next_out = to + done;
      z.avail_out = static_cast<uInt>(out);
      const int code = inflate(&z, Z_NO_FLUSH);
      in_ += in - z.avail_in;
      done += out - z.avail_out;
      if (code == Z_STREAM_END) {  // other members may follow, which hold what comes next
        const unsigned char* next = file_->data() + in_;
        ended_ = file_->size() - in_ < 2 || next[0] != 0x1f || next[1] != 0x8b;
        if (!ended_) inflateReset(&z);
      }
      const bool stuck = code == Z_BUF_ERROR || (code == Z_OK && in == 0 && z.avail_out > 0);
      SR_REQUIRE(!stuck, invalid_input, file_->path(), ": the gzip stream ends after ",
                 file_->size(), " bytes, before its data do; the file is cut short");
      SR_REQUIRE(code == Z_STREAM_END || code == Z_OK, invalid_input, file_->path(),
                 ": the gzip stream is damaged: ", z.msg == nullptr ? "bad data" : z.msg);
    }
    out_ += done;
    return done;
  }

  /// Are there bytes left? Reads the gzip stream to its end, where its checksum is.
  bool more() {
    if (!gzipped_) return out_ < file_->size();
    unsigned char spare = 0;
    return read(1, &spare) > 0;
  }

 private:
  std::shared_ptr<MappedFile> file_;
  bool gzipped_ = false, ended_ = false;
  std::unique_ptr<Inflater> inflater_;
  int64_t in_ = 0, out_ = 0;
};

void reverse_elements(Bytes& bytes, int width) {
  for (size_t i = 0; i + static_cast<size_t>(width) <= bytes.size();
       i += static_cast<size_t>(width)) {
    std::reverse(bytes.begin() + static_cast<int64_t>(i),
                 bytes.begin() + static_cast<int64_t>(i) + width);
  }
}

}  // namespace

StoredArray open_idx(const std::string& path) {
  Reader reader(path);
  unsigned char magic[4];
  const bool begins = reader.read(4, magic) == 4 && magic[0] == 0 && magic[1] == 0;
  SR_REQUIRE(begins, invalid_input, path,
             ": is no IDX file: it has to begin with two zero bytes, a type and a rank");
  const IdxType* type = nullptr;
  for (const IdxType& t : kIdxTypes) {
    if (t.code == magic[2]) type = &t;
  }
  SR_REQUIRE(type != nullptr, invalid_input, path, ": IDX element type ", int{magic[2]},
             ", wanted 8, 9, 11, 12, 13 or 14");
  const int64_t rank = magic[3];
  SR_REQUIRE(rank >= 1 && rank <= kMostIdxRank, invalid_input, path, ": IDX rank ", rank,
             ", wanted 1 to ", kMostIdxRank);
  StoredArray array;
  array.name = path;
  array.format = type->format;
  for (int64_t d = 0; d < rank; ++d) {
    unsigned char dim[4];
    SR_REQUIRE(reader.read(4, dim) == 4, invalid_input, path, ": the IDX header is cut short");
    array.shape.push_back(int64_t{dim[0]} << 24 | dim[1] << 16 | dim[2] << 8 | dim[3]);
  }
  int64_t count = 0;
  try {
    count = element_count(array.shape);
    element_count({count, type->bytes});
  } catch (const Error&) {
    fail(ErrorKind::invalid_input, path, ": shape ", to_string(array.shape), " is too large");
  }
  const int64_t bytes = count * type->bytes, header = reader.position();
  const auto require_bytes = [&](int64_t have) {
    SR_REQUIRE(have >= bytes, invalid_input, path, ": shape ", to_string(array.shape), " of '",
               type->format, "' needs ", bytes, " bytes, but ", have,
               " follow the header; the file is cut short");
  };
  bool more = false;
  if (reader.gzipped() || type->bytes > 1) {
    // Deflate shrinks by at most 1032: a size beyond that is a lie that must not be allocated.
    const int64_t size = reader.file()->size();
    require_bytes(std::min(bytes, reader.gzipped() ? size * 1040 : size - header));
    require_memory(bytes, str(path, ": takes ", bytes, " bytes unpacked"),
                   "give --memory more, or unpacked elements of one byte");
    auto unpacked = std::make_shared<Bytes>(static_cast<size_t>(bytes));
    require_bytes(reader.read(bytes, unpacked->data()));
    more = reader.more();
    if (type->bytes > 1) reverse_elements(*unpacked, type->bytes);
    array.data = unpacked->data();
    array.owner = unpacked;
  } else {
    const int64_t have = reader.file()->size() - header;
    require_bytes(have);
    more = have > bytes;
    array.data = reader.file()->data() + header;
    array.owner = reader.file();
  }
  SR_REQUIRE(!more, invalid_input, path, ": has more bytes than its shape ", to_string(array.shape),
             " needs; the file is damaged");
  return array;
}

}  // namespace shardrun
