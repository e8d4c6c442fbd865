// Data sources: the specification, and what all sources share.
#include "exec/data/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/tensor.h"
#include "exec/data/data_internal.h"
#include "exec/data/data_readers.h"
#include "exec/data/data_sources.h"

namespace shardrun {
namespace {

constexpr int kToRead = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // does not wait for a pipe's writer

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path), file_(::open(path.c_str(), kToRead)) {
  SR_REQUIRE(file_ >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
  struct stat info {};
  const int error = fstat(file_, &info) == 0 ? 0 : errno;
  size_ = info.st_size;
  if (error == 0 && S_ISREG(info.st_mode) && size_ > 0) return;
  ::close(file_);
  SR_REQUIRE(error == 0, invalid_input, path, ": cannot read: ", std::strerror(error));
  SR_REQUIRE(S_ISREG(info.st_mode), invalid_input, path, ": is not a regular file");
  fail(ErrorKind::invalid_input, path, ": the file is empty");
}

DataFile::~DataFile() { ::close(file_); }

void DataFile::read(int64_t begin, int64_t bytes, void* out) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got = pread(file_, static_cast<char*>(out) + done,
                              static_cast<size_t>(bytes - done), begin + done);
    if (got < 0 && errno == EINTR) continue;
    SR_REQUIRE(got >= 0, device, path_, ": cannot read at byte ", begin + done, ": ",
               std::strerror(errno));
    SR_REQUIRE(got > 0, device, path_, ": ends at byte ", begin + done, ", but had ", size_,
               " bytes when the run began; leave the data alone while a run reads them");
    done += got;
  }
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), kToRead);
  SR_REQUIRE(file >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
  struct stat info {};
  const bool known = fstat(file, &info) == 0;
  const bool regular = known && S_ISREG(info.st_mode);
  int error = known ? 0 : errno;
  if (regular && info.st_size > 0) {
    data_ = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (data_ == MAP_FAILED) {
      error = errno;
      data_ = nullptr;
    }
  }
  ::close(file);
  SR_REQUIRE(error == 0, invalid_input, path, ": cannot read: ", std::strerror(error));
  SR_REQUIRE(regular, invalid_input, path, ": is not a regular file");
  SR_REQUIRE(info.st_size > 0, invalid_input, path, ": the file is empty");
  size_ = info.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream, uint64_t epoch)
    : size_(static_cast<uint64_t>(size)), keys_{seed, stream, epoch} {
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

int64_t Permutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = keys_.bits(((round << 32) | right) * 4);
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string few_samples(int64_t samples, int64_t batch) {
  return samples >= batch
             ? ""
             : str("; a batch of ", batch, " has each of the ", samples,
                   " several times, or some of them: to train, give a smaller --batch");
}

void store_integer(void* out, DType dtype, int64_t i, int64_t value) {
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(out)[i] = static_cast<T>(value);
  });
}

namespace {

bool take_suffix(std::string& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.resize(text.size() - suffix.size());
  return true;
}

std::unique_ptr<DataSource> open_token_file(const std::string& spec, std::string path,
                                            std::vector<BatchField> fields,
                                            const DataOptions& options) {
  int bytes = 2;
  if (take_suffix(path, ":uint32")) {
    bytes = 4;
  } else if (!take_suffix(path, ":uint16")) {
    for (const BatchField& field : fields) {
      if (field.role == BatchField::Role::input && field.bound > 65536) bytes = 4;
    }
  }
  return open_tokens(spec, path, bytes, std::move(fields), options);
}

}  // namespace

std::optional<DataSpec> parse_data(const std::string& text) {
  const size_t colon = text.find(':');
  const std::optional<DataKind> kind = kind_named(kDataKinds, text.substr(0, colon));
  if (!kind || colon == std::string::npos || colon + 1 == text.size()) return std::nullopt;
  return DataSpec{text, *kind, text.substr(colon + 1)};
}

std::unique_ptr<DataSource> open_data(const std::string& text, std::vector<BatchField> fields,
                                      const DataOptions& options) {
  SR_REQUIRE(options.validation_fraction >= 0 && options.validation_fraction < 1, invalid_input,
             "validation fraction: got ", options.validation_fraction,
             ", wanted 0 <= fraction < 1");
  check_transforms(options);
  if (text.empty()) return make_synthetic_source(fields, options);
  const std::optional<DataSpec> spec = parse_data(text);
  SR_REQUIRE(spec, invalid_input, "--data ", text,
             ": wanted text:FILE, tokens:FILE, npy:FILE,…, npz:FILE, idx:IMAGES,LABELS or "
             "cifar:FOLDER");
  const bool tokens = spec->kind == DataKind::text || spec->kind == DataKind::tokens;
  SR_REQUIRE(
      !tokens || (!options.sort_edges && !changes_images(options) && !normalises_rows(options)),
      invalid_input, "--data ", text,
      ": sort-edges, augment and normalise are for arrays (npz:, idx:, cifar:)");
  SR_REQUIRE(!fields.empty(), invalid_input, "--data ", text, ": the model has no batch inputs");
  if (spec->kind == DataKind::text)
    return open_tokens(text, spec->rest, 1, std::move(fields), options);
  if (tokens) return open_token_file(text, spec->rest, std::move(fields), options);
  return open_arrays(*spec, std::move(fields), options);
}

int64_t tokens_per_batch(const std::vector<BatchField>& fields) {
  const auto target = std::find_if(fields.begin(), fields.end(), [](const BatchField& f) {
    return f.role == BatchField::Role::target && !f.type.shape.empty();
  });
  for (const BatchField& field : fields) {
    const Shape& shape = field.type.shape;
    if (field.role != BatchField::Role::input || is_float(field.type.dtype) ||
        field.type.dtype == DType::boolean || shape.size() < 2) {
      continue;
    }
    // Targets for each row or for each token; 2 x 13264 ends of edges are no tokens of 2708 nodes.
    const bool for_each =
        target != fields.end() && element_count(target->type.shape) == element_count(shape);
    // Bytes of images index nothing, and the columns of a table index different things.
    if (!for_each && (field.bound == 0 || !field.column_bounds.empty())) continue;
    const bool tokens = for_each || target == fields.end() || target->type.shape[0] == shape[0];
    return tokens ? element_count(shape) : 0;
  }
  return 0;
}

}  // namespace shardrun
