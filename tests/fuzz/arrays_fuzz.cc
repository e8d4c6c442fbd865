// npz archives, npy arrays, and what is neither as IDX images.
#include "tests/fuzz/fuzz.h"
#include "tests/hostile/bad_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto reader = bytes.starts_with("PK")          ? test::Arrays::npz
                      : bytes.starts_with("\x93NUMPY") ? test::Arrays::npy
                                                       : test::Arrays::idx;
  fuzz::expect_read_or_refused(
      [&] { test::read_arrays(reader, test::write_arrays(reader, fuzz::folder(), bytes)); });
  return 0;
}
