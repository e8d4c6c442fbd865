// Cluster files. One that is taken is written and read again, equal.
#include "planner/cost/cluster_file.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_read_or_refused([&] {
    const Cluster cluster = parse_cluster(text, "cluster.json");
    if (parse_cluster(cluster_json(cluster), "cluster.json") != cluster) std::abort();
  });
  return 0;
}
