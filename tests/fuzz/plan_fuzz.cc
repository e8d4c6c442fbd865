// Plan files, checked against the graph that the seeds are for.
#include "tests/fuzz/fuzz.h"
#include "tests/hostile/bad_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  const std::string path = fuzz::written("plan.json", {reinterpret_cast<const char*>(data), size});
  fuzz::expect_read_or_refused([&] { test::read_plan(path); });
  return 0;
}
