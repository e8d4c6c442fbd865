// What the fuzzers begin with: write_seeds FOLDER fills FOLDER/plan, FOLDER/arrays … with the files
// of tests/hostile, good and bad.
#include "tests/fuzz/fuzz.h"
#include "tests/hostile/bad_file.h"

namespace {

namespace fs = std::filesystem;
using namespace shardrun;

constexpr uintmax_t kMostBytes = 64 << 10;

/// The regular files among what they write, each under a name of its own.
void write_seeds(const std::string& folder, std::vector<testing::BadFile> files) {
  static int count = 0;
  fs::create_directories(folder);
  for (const testing::BadFile& file : files) {
    const std::string scratch = folder + "/scratch";
    fs::create_directory(scratch);
    file.write(scratch);
    for (const auto& entry : fs::recursive_directory_iterator(scratch)) {
      if (entry.symlink_status().type() == fs::file_type::regular && entry.file_size() < kMostBytes)
        fs::copy_file(entry.path(), folder + "/" + std::to_string(count++));
    }
    fs::remove_all(scratch);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_seeds FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  write_seeds(folder + "/import", testing::bad_models());
  write_seeds(folder + "/import", testing::bad_operators());
  write_seeds(folder + "/import", testing::bad_recipes());
  write_seeds(folder + "/plan", testing::bad_plans());
  write_seeds(folder + "/cluster", testing::bad_clusters());
  write_seeds(folder + "/checkpoint", testing::bad_checkpoints());
  write_seeds(folder + "/checkpoint", testing::bad_safetensors());
  write_seeds(folder + "/arrays", testing::bad_arrays());
  write_seeds(folder + "/arrays", testing::bad_samples());
  write_seeds(folder + "/problem", testing::bad_problems());
  return 0;
}
