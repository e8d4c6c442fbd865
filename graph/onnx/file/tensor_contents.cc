// Comparisons of initialisers' bytes and numbers.
#include "graph/onnx/file/tensor_contents.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {

bool is_uniform(const StoredTensor& tensor) {
  const Contents contents(tensor);
  const auto width = static_cast<size_t>(size_of(tensor.stored));
  const auto bytes = static_cast<size_t>(tensor.count()) * width;
  return bytes <= width ||
         std::memcmp(contents.bytes(), contents.bytes() + width, bytes - width) == 0;
}

bool has_two_values(const StoredTensor& tensor) {
  const Contents contents(tensor);
  const auto width = static_cast<size_t>(size_of(tensor.stored));
  const char *first = contents.bytes(), *second = nullptr;
  for (int64_t i = 1; i < tensor.count(); ++i) {
    const char* at = first + static_cast<size_t>(i) * width;
    if (std::memcmp(at, first, width) == 0) continue;
    if (second == nullptr) second = at;
    if (std::memcmp(at, second, width) != 0) return false;
  }
  return true;
}

bool equal_contents(const StoredTensor& a, const StoredTensor& b) {
  if (a.stored != b.stored || a.count() != b.count()) return false;
  const Contents x(a), y(b);
  return a.count() == 0 ||
         std::memcmp(x.bytes(), y.bytes(), static_cast<size_t>(a.count() * size_of(a.stored))) == 0;
}

uint64_t diagonal_hash(const StoredTensor& tensor) {
  constexpr int64_t kLooked = 16;
  const Contents contents(tensor);
  const int64_t columns = tensor.type.shape[1], width = size_of(tensor.stored);
  const int64_t length = std::min(tensor.type.shape[0], columns);
  uint64_t hash = 0;
  for (int64_t k = 0; k < std::min(kLooked, length); ++k) {
    const int64_t i = k * length / std::min(kLooked, length);
    const std::string_view number(contents.bytes() + (i * columns + i) * width,
                                  static_cast<size_t>(width));
    hash = hash * 1099511628211u + std::hash<std::string_view>()(number);
  }
  return hash;
}

bool transposed_contents(const StoredTensor& a, const StoredTensor& b) {
  if (a.stored != b.stored || a.type.shape.size() != 2) return false;
  const int64_t rows = a.type.shape[0], columns = a.type.shape[1];
  if (b.type.shape != Shape{columns, rows}) return false;
  const Contents x(a), y(b);
  const auto width = static_cast<size_t>(size_of(a.stored));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      if (std::memcmp(x.bytes() + static_cast<size_t>(i * columns + j) * width,
                      y.bytes() + static_cast<size_t>(j * rows + i) * width, width) != 0) {
        return false;
      }
    }
  }
  return true;
}

std::optional<int64_t> row_of_zeros(const StoredTensor& table) {
  constexpr int64_t kFirst = 4;
  if (table.type.shape.size() != 2 || table.count() == 0) return std::nullopt;
  const int64_t rows = table.type.shape[0];
  const auto width = static_cast<size_t>(table.type.shape[1] * size_of(table.stored));
  const Contents contents(table);
  const std::string zeros(width, '\0');
  std::optional<int64_t> found;
  for (int64_t r = 0; r < rows;
       r = r + 1 < std::min(kFirst, rows) ? r + 1 : std::max(r + 1, rows - 1)) {
    if (std::memcmp(contents.bytes() + static_cast<size_t>(r) * width, zeros.data(), width) != 0)
      continue;
    if (found) return std::nullopt;
    found = r;
  }
  return rows > 1 ? found : std::nullopt;
}

namespace {

constexpr double kAngleRounding = 4e-3;  // of bf16

/// Is every row, but for zeros, made of sines with their cosines, `stride` numbers apart, and one
/// row of the angle 0?
bool has_sines_with_cosines(const Tensor& x, int64_t width, int64_t stride) {
  if (stride == 0 || width % (2 * stride) != 0) return false;
  bool begins = false;
  for (int64_t row = 0; row < x.count(); row += width) {
    bool zeros = true, circle = true, angle_0 = true;
    for (int64_t k = 0; k < width; ++k) {
      const double a = x.at(row + k);
      zeros = zeros && a == 0;
      if (k / stride % 2 != 0) continue;
      const double b = x.at(row + k + stride);
      circle = circle && std::abs(a * a + b * b - 1) < kAngleRounding;
      angle_0 = angle_0 && (a == 0 || b == 0);
    }
    if (!zeros && !circle) return false;
    begins = begins || (circle && angle_0);
  }
  return begins;
}

/// Are all numbers within [-1, 1], and the first column that of sines or cosines of 0, 1, …?
bool begins_as_angles(const Tensor& x, int64_t width) {
  const double first = x.at(0), second = x.at(width);
  const bool sine = first == 0 && std::abs(second - std::sin(1.0)) < kAngleRounding;
  const bool cosine = first == 1 && std::abs(second - std::cos(1.0)) < kAngleRounding;
  if (!sine && !cosine) return false;
  for (int64_t i = 0; i < x.count(); ++i) {
    if (!(std::abs(x.at(i)) <= 1 + kAngleRounding)) return false;
  }
  return true;
}

}  // namespace

bool is_sinusoid(const StoredTensor& tensor) {
  constexpr int64_t kLeastWidth = 4;  // pairs of 0 and 1 are no angles yet
  Shape shape = tensor.type.shape;
  std::erase(shape, 1);
  if (shape.size() < 2 || tensor.count() == 0 || tensor.count() > kFoldLimit) return false;
  const Tensor x = tensor.load();
  const int64_t width = shape.back();
  if (begins_as_angles(x, width)) return true;
  const int64_t strides[] = {1, width / 2, width / 4};
  return width >= kLeastWidth && shape[0] >= 3 &&
         std::any_of(std::begin(strides), std::end(strides),
                     [&](int64_t stride) { return has_sines_with_cosines(x, width, stride); });
}

namespace {

/// Along a dim of `size` numbers that are `stride` apart.
bool has_hamming_window(const Tensor& x, int64_t size, int64_t stride) {
  constexpr int64_t kLeast = 3;       // two numbers may be any
  constexpr double kRounding = 2e-6;  // of angles in f32; PyTorch's own window is 7e-3 off
  int64_t first = 0, last = size - 1;
  while (first < last && x.at(first * stride) == 0) ++first;
  while (last > first && x.at(last * stride) == 0) --last;
  const int64_t length = last - first + 1;
  if (length < kLeast) return false;
  const auto is_window = [&](int64_t period) {
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t k = i / stride % size;
      const double angle =
          2 * std::numbers::pi * static_cast<double>(k - first) / static_cast<double>(period);
      const double want = k < first || k > last ? 0 : (25 - 21 * std::cos(angle)) / 46;
      if (!(std::abs(x.at(i) - want) < kRounding)) return false;
    }
    return true;
  };
  return is_window(length) || is_window(length - 1);
}

}  // namespace

bool is_hamming_window(const StoredTensor& tensor) {
  if (!is_float(tensor.stored) || size_of(tensor.stored) < 4 || tensor.count() == 0 ||
      tensor.count() > kFoldLimit)
    return false;
  const Tensor x = tensor.load();
  int64_t stride = tensor.count();
  for (int64_t size : tensor.type.shape) {
    stride /= size;
    if (has_hamming_window(x, size, stride)) return true;
  }
  return false;
}

bool has_infinity(const StoredTensor& tensor) {
  constexpr int64_t kLooked = int64_t{1} << 16;
  if (!is_float(tensor.type.dtype)) return false;
  StoredTensor first = tensor;
  if (first.in_file()) first.type.shape = {std::min(kLooked, tensor.count())};
  const Tensor x = first.in_file() ? first.load() : first.data;
  const int64_t count = std::min(kLooked, x.count());
  const auto infinite = [](float value) { return std::isinf(value); };
  if (x.dtype() == DType::f32) return std::any_of(x.as<float>(), x.as<float>() + count, infinite);
  for (int64_t i = 0; i < count; ++i) {
    if (std::isinf(x.at(i))) return true;
  }
  return false;
}

namespace {

/// Are more than chance makes equal? Of `n` numbers of a random tensor, one in so many sampled.
bool more_than_chance(size_t equal, size_t n, uint64_t sampled) {
  constexpr double kPairs = 1 << 25;  // one in as many pairs of f32 is equal
  constexpr double kNever = 5e-4;     // pairs, of which none is taken for chance
  const auto numbers = static_cast<double>(n);
  const double chance = numbers * numbers * static_cast<double>(sampled) / kPairs;
  return static_cast<double>(equal) > (chance < kNever ? 0 : 4 * chance + 3);
}

}  // namespace

bool repeats_itself(const StoredTensor& tensor) {
  if (size_of(tensor.stored) < 4 || tensor.count() > kFoldLimit) return false;
  const Tensor x = tensor.load();
  std::map<double, int64_t> times;
  for (int64_t i = 0; i < x.count(); ++i) ++times[x.at(i)];
  const auto repeated = std::count_if(times.begin(), times.end(), [](const auto& number) {
    return number.first != 0 && number.second > 1;
  });
  return static_cast<int64_t>(times.size()) * 10 < x.count() * 9 ||
         more_than_chance(static_cast<size_t>(repeated), static_cast<size_t>(x.count()), 1);
}

bool have_common_numbers(const std::vector<const StoredTensor*>& parts) {
  int64_t total = 0;
  for (const StoredTensor* part : parts) total += part->count();
  const uint64_t sampled = static_cast<uint64_t>(total / kFoldLimit) + 1;  // one number of as many
  std::vector<uint64_t> keys;
  for (const StoredTensor* part : parts) {
    if (is_uniform(*part)) continue;
    const Contents contents(*part);
    const auto width = static_cast<size_t>(size_of(part->stored));
    const size_t length = width > 2 ? width : sizeof(uint64_t);
    const size_t bytes = static_cast<size_t>(part->count()) * width;
    std::vector<uint64_t> own;
    for (size_t i = 0; i + length <= bytes; i += width) {
      uint64_t key = 0;
      std::memcpy(&key, contents.bytes() + i, length);
      if (key * 0x9E3779B97F4A7C15u % sampled == 0) own.push_back(key);
    }
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    keys.insert(keys.end(), own.begin(), own.end());
  }
  std::sort(keys.begin(), keys.end());
  size_t common = 0;
  for (size_t i = 1; i < keys.size(); ++i) common += keys[i] == keys[i - 1];
  return more_than_chance(common, keys.size(), sampled);
}

bool is_normalised(const StoredTensor& tensor) {
  constexpr int64_t kLeastNumbers = 4;              // of a row: two are normalised to 1 and -1
  constexpr double kMean = 1e-4, kVariance = 0.02;  // an epsilon takes from the variance
  const Shape& shape = tensor.type.shape;
  if (shape.empty() || shape[0] == 0 || tensor.count() > kFoldLimit) return false;
  const int64_t row = tensor.count() / shape[0];
  if (row < kLeastNumbers) return false;
  const Tensor x = tensor.load();
  for (int64_t begin = 0; begin < x.count(); begin += row) {
    double sum = 0, squares = 0;
    for (int64_t i = begin; i < begin + row; ++i) {
      sum += x.at(i);
      squares += x.at(i) * x.at(i);
    }
    const double n = static_cast<double>(row), mean = sum / n;
    if (std::abs(mean) > kMean || std::abs(squares / n - mean * mean - 1) > kVariance) return false;
  }
  return true;
}

}  // namespace shardrun::importer
