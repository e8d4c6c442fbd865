// Staging: a collective's staging memory, which shows a write past its end.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

namespace shardrun::test {

/// Aligned as a Communicator wants it.
class Staging {
 public:
  explicit Staging(int64_t bytes)
      : bytes_(bytes), memory_(new char[static_cast<size_t>(bytes) + 64]) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (64 - at % 64) % 64;
    // The last bytes of the allocation show a write past the end.
    tail_ = memory_.get() + bytes + 64 -
            (data_ - memory_.get() < 64 ? 64 - (data_ - memory_.get()) : 0);
    for (char* p = tail_; p < memory_.get() + bytes + 64; ++p) *p = 0x5a;
  }
  ~Staging() {
    for (char* p = tail_; p < memory_.get() + bytes_ + 64; ++p)
      EXPECT_EQ(*p, 0x5a) << "staging overrun";
  }
  void* data() { return bytes_ == 0 ? nullptr : data_; }

 private:
  int64_t bytes_;
  std::unique_ptr<char[]> memory_;
  char* data_;
  char* tail_;
};

}  // namespace shardrun::test
