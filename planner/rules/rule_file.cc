// The file: a line that names it, the version, a checksum of what follows, and entries.
#include "planner/rules/rule_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <type_traits>

#include "base/crc32c.h"
#include "base/files/cache_folder.h"
#include "planner/rules/rules_version.h"

namespace shardrun {
namespace {

constexpr char kFirstLine[] = "shardrun rules 1, of sources ";
constexpr int64_t kMostRead = int64_t{64} << 20, kMostKept = int64_t{16} << 20;
/// Beyond what any rule has. They bound what a damaged number can ask for.
constexpr uint32_t kMostOptions = 1u << 16, kMostBlocks = 1u << 16;
constexpr int64_t kMostRows = int64_t{1} << 31;

/// What stands for a rule that was judged by the node's own sizes, too: the entry of the key with
/// these has it.
constexpr char kBySizes[] = "by sizes";

class Encoder {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Gives zeros behind the end, and then is not good().
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value{};
    if (const std::string_view from = next(sizeof value); good_)
      std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string_view text() { return next(number<uint32_t>()); }
  bool good() const { return good_; }
  bool at_end() const { return good_ && bytes_.empty(); }

 private:
  std::string_view next(size_t size) {
    good_ = good_ && size <= bytes_.size();
    if (!good_) return {};
    const std::string_view out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }
  std::string_view bytes_;
  bool good_ = true;
};

void encode(Encoder& out, const Placement& p) {
  out.number(static_cast<uint8_t>(p.kind));
  out.number(static_cast<int32_t>(p.dim));
  out.number(static_cast<uint8_t>(p.op));
  const HaloWindow window = p.window.value_or(HaloWindow{});
  out.number(static_cast<uint8_t>(p.window.has_value()));
  for (int64_t n : {window.num, window.den, window.low, window.high}) out.number(n);
  out.number(static_cast<uint32_t>(p.blocks.size()));
  for (int operand : p.blocks) out.number(static_cast<int32_t>(operand));
}

std::string encoded(const SpmdRule& rule) {
  Encoder out;
  out.number(static_cast<uint32_t>(rule.options.size()));
  for (const SpmdRule::Option& option : rule.options) {
    out.number(static_cast<uint32_t>(option.in.size()));
    out.number(static_cast<uint32_t>(option.out.size()));
    for (const Placement& p : option.in) encode(out, p);
    for (const Placement& p : option.out) encode(out, p);
  }
  return out.take();
}

/// Reads placements of a node's operands or results; good() turns false at one that they cannot
/// have.
class RuleDecoder {
 public:
  RuleDecoder(std::string_view bytes, std::span<const TensorType> in,
              std::span<const TensorType> out)
      : from_(bytes), in_(in), out_(out) {}

  std::optional<SpmdRule> rule() {
    SpmdRule found;
    const auto options = from_.number<uint32_t>();
    require(options <= kMostOptions);
    for (uint32_t o = 0; o < options && good(); ++o) {
      require(from_.number<uint32_t>() == in_.size());
      require(from_.number<uint32_t>() == out_.size());
      SpmdRule::Option option;
      for (size_t i = 0; i < in_.size() && good(); ++i) option.in.push_back(placement(in_[i], {}));
      for (size_t r = 0; r < out_.size() && good(); ++r)
        option.out.push_back(placement(out_[r], option.in));
      found.options.push_back(std::move(option));
    }
    if (!good() || !from_.at_end()) return std::nullopt;
    return found;
  }

 private:
  bool good() const { return good_ && from_.good(); }
  void require(bool holds) { good_ = good_ && holds; }

  /// `operands`: of a result, what its blocks may be of.
  Placement placement(const TensorType& type, const std::vector<Placement>& operands) {
    Placement p;
    const auto kind = from_.number<uint8_t>();
    require(kind <= static_cast<uint8_t>(Placement::Kind::partial));
    p.kind = static_cast<Placement::Kind>(kind);
    p.dim = from_.number<int32_t>();
    const auto op = from_.number<uint8_t>();
    require(std::any_of(std::begin(kReduceOps), std::end(kReduceOps),
                        [&](ReduceOp known) { return op == static_cast<uint8_t>(known); }));
    p.op = static_cast<ReduceOp>(op);
    const auto windowed = from_.number<uint8_t>();
    HaloWindow window;
    for (int64_t* n : {&window.num, &window.den, &window.low, &window.high}) {
      *n = from_.number<int64_t>();
      require(-kMostRows < *n && *n < kMostRows);
    }
    require(windowed <= 1 && window.num > 0 && window.den > 0);
    if (windowed == 1) p.window = window;
    const auto blocks = from_.number<uint32_t>();
    require(blocks <= kMostBlocks);
    for (uint32_t b = 0; b < blocks && good(); ++b) {
      p.blocks.push_back(from_.number<int32_t>());
      const int operand = p.blocks.back();
      require(operand >= 0 && static_cast<size_t>(operand) < operands.size() &&
              operands[static_cast<size_t>(operand)].is_shard());
    }
    if (p.kind == Placement::Kind::shard) {
      require(p.dim >= 0 && static_cast<size_t>(p.dim) < type.shape.size());
      require(!p.window || p.blocks.empty());
    } else {
      require(p.dim == 0 && !p.window && p.blocks.empty());
    }
    return p;
  }

  Decoder from_;
  std::span<const TensorType> in_, out_;
  bool good_ = true;
};

std::string key_with_sizes(const std::string& key, const Node& node,
                           std::span<const TensorType> in) {
  std::string out = key + " of";
  for (const TensorType& type : in) out += " " + to_string(type);
  return out + " {" + to_string(node.attrs) + "}";
}

/// Is it a file of this user's that nobody else can write?
bool is_own(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
         status.st_size <= kMostRead;
}

/// Empty where there is no such file.
std::string own_bytes(const std::string& path) {
  return path.empty() || !is_own(path) ? "" : read_cached(path);
}

std::string first_line() { return str(kFirstLine, kRulesVersion, "\n"); }

}  // namespace

std::string rule_file_path() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/rules";
}

RuleFile::RuleFile(std::string path)
    : path_(std::move(path)), bytes_(own_bytes(path_)), entries_(entries_of(bytes_)) {}

RuleFile::Entries RuleFile::entries_of(const std::string& bytes) {
  const std::string line = first_line();
  if (!bytes.starts_with(line)) return {};
  Decoder from(std::string_view(bytes).substr(line.size()));
  const auto sum = from.number<uint32_t>();
  const size_t begin = line.size() + sizeof sum;
  if (!from.good() ||
      sum != crc32c(bytes.data() + begin, static_cast<int64_t>(bytes.size() - begin)))
    return {};
  Entries entries;
  while (from.good() && !from.at_end()) {
    const std::string_view key = from.text();
    entries.insert_or_assign(entries.end(), key, from.text());  // written by key
  }
  return from.good() ? entries : Entries();
}

std::optional<SpmdRule> RuleFile::find(const std::string& key, const Node& node,
                                       std::span<const TensorType> in) {
  auto it = entries_.find(key);
  if (it == entries_.end() || op_def(node.op).foreign) return std::nullopt;
  const auto marker = it;
  if (it->second == kBySizes) it = entries_.find(key_with_sizes(key, node, in));
  if (it == entries_.end()) return std::nullopt;
  const std::vector<TensorType> out = infer_types(node, in);
  std::optional<SpmdRule> rule = RuleDecoder(it->second, in, out).rule();
  if (!rule) return std::nullopt;
  rule->by_sizes = it != marker;
  used_.emplace(*marker);
  used_.emplace(*it);
  return rule;
}

void RuleFile::add(const std::string& key, const Node& node, std::span<const TensorType> in,
                   const SpmdRule& rule) {
  if (path_.empty() || op_def(node.op).foreign) return;
  used_[key] = rule.by_sizes ? kBySizes : encoded(rule);
  if (rule.by_sizes) used_[key_with_sizes(key, node, in)] = encoded(rule);
  added_ = true;
}

void RuleFile::save() noexcept {
  if (!added_) return;
  try {
    const std::string bytes = own_bytes(path_);
    Entries all(used_.begin(), used_.end());
    all.merge(entries_of(bytes));
    write(all);
  } catch (const std::exception&) {  // no memory: a cache is not worth more
  }
}

void RuleFile::write(const Entries& entries) const {
  const auto body = [](const Entries& of) {
    Encoder out;
    for (const auto& [key, rule] : of) {
      out.text(key);
      out.text(rule);
    }
    return out.take();
  };
  std::string bytes = body(entries);
  if (std::ssize(bytes) > kMostKept) bytes = body({used_.begin(), used_.end()});
  if (std::ssize(bytes) > kMostKept) return;
  Encoder sum;
  sum.number(crc32c(bytes.data(), std::ssize(bytes)));
  write_cached(path_, first_line() + sum.take() + bytes);
}

}  // namespace shardrun
