// What the tests of data sources share: a folder, files in numpy's and zip's formats, reading
// boxes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include "base/tensor.h"
#include "exec/data/data.h"
#include "tests/support/npy.h"

namespace shardrun::test {

using BatchRole = BatchField::Role;

class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("shardrun_data_" + std::string(test->name()) + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = (folder_ / name).string();
    std::filesystem::remove(
        path);  // some file systems flush a file that is truncated and written again
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  template <class T>
  std::string write_values(const std::string& name, const std::vector<T>& values) const {
    return write(
        name, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }

  std::filesystem::path folder_;
};

inline BatchField field(std::string name, DType dtype, Shape shape, int64_t bound = 0,
                        BatchRole role = BatchRole::input) {
  BatchField f;
  f.name = std::move(name);
  f.type = {dtype, std::move(shape)};
  f.bound = bound;
  f.role = role;
  return f;
}

template <class T>
std::vector<T> read(const DataSource& data, int64_t batch, const BatchField& f, const Box& box,
                    Split split = Split::training) {
  std::vector<T> out(static_cast<size_t>(element_count(box_shape(box))));
  data.read(batch, split, f, box, out.data());
  return out;
}

template <class T>
std::vector<T> read_all(const DataSource& data, int64_t batch, const BatchField& f,
                        Split split = Split::training) {
  return read<T>(data, batch, f, full_box(f.type.shape), split);
}

/// Every chunk of every dim, over 3 parts, is that part of the whole batch.
template <class T>
void expect_boxes_cut_the_batch(const DataSource& data, const BatchField& f) {
  const Box whole = full_box(f.type.shape);
  for (Split split : {Split::training, Split::validation, Split::test}) {
    if (split != Split::training && data.batches(split) == 0) continue;
    const std::vector<T> all = read_all<T>(data, 0, f, split);
    for (size_t dim = 0; dim < whole.size(); ++dim) {
      for (size_t other = 0; other < whole.size(); ++other) {
        for (int64_t part = 0; part < 3; ++part) {
          Box box = whole;
          box[dim] = shard_range(f.type.shape[dim], 3, part);
          if (other != dim) box[other] = shard_range(f.type.shape[other], 2, part % 2);
          std::vector<T> want(static_cast<size_t>(element_count(box_shape(box))));
          if (!want.empty()) copy_box(all.data(), whole, want.data(), box, box, sizeof(T));
          EXPECT_EQ(read<T>(data, 0, f, box, split), want)
              << f.name << " dim " << dim << " part " << part;
        }
      }
    }
  }
}

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline std::string open_error(const std::string& spec, std::vector<BatchField> fields,
                              DataOptions options = {}) {
  return error_of([&] { open_data(spec, std::move(fields), options); });
}

/// An archive of .npy files as numpy.savez writes it, uncompressed.
inline std::string npz(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out, directory;
  const auto put = [](std::string& to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i));
  };
  for (const auto& [name, bytes] : files) {
    const std::string file = name + ".npy";
    const uint64_t crc =
        crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    std::string common;
    put(common, 20, 2);  // version
    put(common, 0, 2);   // flags
    put(common, 0, 2);   // stored
    put(common, 0, 4);   // time
    put(common, crc, 4);
    put(common, bytes.size(), 4);
    put(common, bytes.size(), 4);
    put(common, file.size(), 2);
    put(common, 0, 2);  // extra
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);
    directory += common;
    put(directory, 0, 2);  // comment
    put(directory, 0, 2);
    put(directory, 0, 2);
    put(directory, 0, 4);
    put(directory, out.size(), 4);
    directory += file;
    put(out, 0x04034b50, 4);
    out += common + file + bytes;
  }
  const uint64_t at = out.size();
  out += directory;
  put(out, 0x06054b50, 4);
  put(out, 0, 4);
  put(out, files.size(), 2);
  put(out, files.size(), 2);
  put(out, directory.size(), 4);
  put(out, at, 4);
  put(out, 0, 2);
  return out;
}

}  // namespace shardrun::test
