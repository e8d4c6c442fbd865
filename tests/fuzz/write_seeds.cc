// What the fuzzers begin with: write_seeds FOLDER fills FOLDER/plan, FOLDER/arrays … with the files
// of tests/hostile, good and bad.
#include "tests/fuzz/fuzz.h"
#include "tests/hostile/bad_file.h"

namespace {

namespace fs = std::filesystem;
using namespace shardrun;

constexpr uintmax_t kMostBytes = 64 << 10;

/// The regular files among what they write, each under a name of its own.
void write_seeds(const std::string& folder, std::vector<test::BadFile> files) {
  static int count = 0;
  fs::create_directories(folder);
  for (const test::BadFile& file : files) {
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
  write_seeds(folder + "/import", test::bad_models());
  write_seeds(folder + "/import", test::bad_operators());
  write_seeds(folder + "/import", test::bad_recipes());
  write_seeds(folder + "/plan", test::bad_plans());
  write_seeds(folder + "/cluster", test::bad_clusters());
  write_seeds(folder + "/checkpoint", test::bad_checkpoints());
  write_seeds(folder + "/checkpoint", test::bad_safetensors());
  write_seeds(folder + "/arrays", test::bad_arrays());
  write_seeds(folder + "/arrays", test::bad_samples());
  write_seeds(folder + "/problem", test::bad_problems());
  return 0;
}
