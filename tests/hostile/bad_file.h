// Files that no reader may take, each with what is said of it.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace shardrun::test {

struct BadFile {
  std::string name;  // for people
  /// Writes into an empty folder what `read` gets, and returns its path.
  std::function<std::string(const std::string& folder)> write;
  /// Throws an Error.
  std::function<void(const std::string& path)> read;
  /// What the error says besides the file's name: where, and which value. Empty: it is as it should
  /// be, and is read.
  std::vector<std::string> words;
};

inline void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A file of these bytes.
inline std::function<std::string(const std::string&)> file_of(const std::string& name,
                                                              const std::string& bytes) {
  return [=](const std::string& folder) {
    const std::string path = folder + "/" + name;
    put(path, bytes);
    return path;
  };
}

/// A list of them that one reader gets.
class BadFiles {
 public:
  BadFiles(std::string file, std::function<void(const std::string&)> read)
      : file_(std::move(file)), read_(std::move(read)) {}
  void add(const std::string& name, const std::string& bytes, std::vector<std::string> words) {
    add(name, file_of(file_, bytes), std::move(words));
  }
  void add(const std::string& name, std::function<std::string(const std::string&)> write,
           std::vector<std::string> words) {
    files_.push_back({name, std::move(write), read_, std::move(words)});
  }
  std::vector<BadFile> take() { return std::move(files_); }

 private:
  std::string file_;
  std::function<void(const std::string&)> read_;
  std::vector<BadFile> files_;
};

/// Reads a plan and checks it against the graph that the plans here are for. Throws an Error.
void read_plan(const std::string& path);
/// A checkpoint of two tensors in one file below `folder`. Returns its path.
std::string write_checkpoint(const std::string& folder);
/// Writes a file of this kind, next to the good one that goes with it, and opens both and reads a
/// batch. read_arrays throws an Error.
enum class Arrays { npy, npz, idx };
std::string write_arrays(Arrays kind, const std::string& folder, const std::string& bytes);
void read_arrays(Arrays kind, const std::string& path);

std::vector<BadFile> bad_models();
std::vector<BadFile> bad_operators();
std::vector<BadFile> bad_recipes();
std::vector<BadFile> bad_plans();
std::vector<BadFile> bad_clusters();
std::vector<BadFile> bad_checkpoints();
std::vector<BadFile> bad_safetensors();
std::vector<BadFile> bad_arrays();
std::vector<BadFile> bad_samples();
std::vector<BadFile> bad_problems();

}  // namespace shardrun::test
