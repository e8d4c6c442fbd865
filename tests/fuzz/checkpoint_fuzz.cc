// Checkpoints: manifests, which begin with '{', with the shard of the seeds, and else the shards,
// which are safetensors files.
#include "base/crc32c.h"
#include "exec/checkpoint/reader.h"
#include "exec/safetensors_folder.h"
#include "tests/fuzz/fuzz.h"
#include "tests/hostile/bad_file.h"

namespace {

using namespace shardrun;

/// The checksum that the text behind it has, or hardly any would get past it.
std::string signed_anew(std::string text) {
  const std::string start = "{\"crc32c\": \"00000000\",\n";
  if (text.size() <= start.size()) return text;
  const char* behind = text.data() + start.size();
  char sum[9];
  std::snprintf(sum, sizeof sum, "%08x",
                crc32c(behind, static_cast<int64_t>(text.size() - start.size())));
  text.replace(12, 8, sum);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string checkpoint = test::write_checkpoint(fuzz::folder());
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > 0 && bytes[0] == '{') {
    test::put(checkpoint + "/manifest.json", signed_anew(bytes));
    fuzz::expect_read_or_refused([&] { Checkpoint::open(checkpoint).verify(); });
  } else {
    const std::string path = fuzz::written("model.safetensors", bytes);
    fuzz::expect_read_or_refused([&] { find_tensors(path); });
  }
  return 0;
}
