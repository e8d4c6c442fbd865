// The limits, and the sentence that names them.
#include "graph/onnx/file/import_budget.h"

#include <algorithm>

#include "base/error.h"

namespace shardrun::importer {
namespace {

constexpr int64_t kAnyway = int64_t{64} << 20, kFilesTimes = 4;
constexpr int64_t kLargestFile = int64_t{1} << 56;  // of which four times are counted
constexpr double kOperations = 2e8;                 // some 20 ns each

}  // namespace

ImportBudget::ImportBudget(int64_t file_bytes)
    : file_bytes_(file_bytes),
      limit_(kAnyway + kFilesTimes * std::min(file_bytes, kLargestFile)),
      left_(limit_),
      operations_(kOperations) {}

void ImportBudget::check(int64_t bytes, const char* what) const {
  SR_REQUIRE(holds(bytes), unsupported, what, " would take ", bytes,
             " bytes; the import of a file of ", file_bytes_, " bytes may take ", limit_,
             " (4 times the file and 64 MiB), and ", limit_ - left_,
             " are taken; export it with smaller constants, sizes or fewer steps");
}

void ImportBudget::take(int64_t bytes, const char* what) {
  check(bytes, what);
  left_ -= bytes;
}

bool ImportBudget::spend(double operations) {
  if (operations > operations_) return false;
  operations_ -= operations;
  return true;
}

}  // namespace shardrun::importer
