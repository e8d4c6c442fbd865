// The host as a device: plain loops on the calling thread.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/round_up.h"
#include "base/short_array.h"
#include "device/device.h"

namespace shardrun {
namespace {

void add_box(const void* from, const Box& from_box, void* to, const Box& to_box, const Box& region,
             DType dtype) {
  if (is_empty(region)) return;
  const size_t rank = region.size();
  ShortArray<int64_t> from_strides(rank), to_strides(rank);
  row_major_strides(from_box, from_strides);
  row_major_strides(to_box, to_strides);
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* source = static_cast<const T*>(from);
    T* target = static_cast<T*>(to);
    for (size_t d = 0; d < rank; ++d) {
      source += (region[d].begin - from_box[d].begin) * from_strides[d];
      target += (region[d].begin - to_box[d].begin) * to_strides[d];
    }
    const int64_t run = rank == 0 ? 1 : region[rank - 1].size;
    ShortArray<int64_t> at(rank);
    while (true) {
      for (int64_t i = 0; i < run; ++i) target[i] = static_cast<T>(target[i] + source[i]);
      size_t d = rank == 0 ? 0 : rank - 1;
      while (d-- > 0) {
        source += from_strides[d];
        target += to_strides[d];
        if (++at[d] < region[d].size) break;
        source -= from_strides[d] * region[d].size;
        target -= to_strides[d] * region[d].size;
        at[d] = 0;
        if (d == 0) return;
      }
      if (rank <= 1) return;
    }
  });
}

class HostDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool is_host() const override { return true; }
  void* stream() const override { return nullptr; }

  std::shared_ptr<char> allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    // Large pages where the system has them: kernels that go down columns touch many small ones.
    constexpr int64_t kPage = 4096, kLargePage = int64_t{2} << 20;
    const auto rounded = static_cast<size_t>(round_up(bytes, kPage)),
               large = rounded / kLargePage * kLargePage;
    auto* data = static_cast<char*>(std::aligned_alloc(large > 0 ? kLargePage : kPage, rounded));
    SR_REQUIRE(data != nullptr, out_of_memory, "asked for ", bytes, " bytes, ", free_bytes(),
               " are free");
    if (large > 0) madvise(data, large, MADV_HUGEPAGE);  // a hint
    std::memset(data, 0, rounded);
    return {data, [](char* p) { std::free(p); }};
  }

  int64_t free_bytes() const override {
    return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  }

  void copy_in(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy_out(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void zero(void* to, int64_t bytes) override {
    if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
  }

  void fill(void* to, int64_t count, const void* element, int64_t element_bytes) override {
    auto* at = static_cast<char*>(to);
    const auto bytes = static_cast<size_t>(element_bytes);
    for (int64_t i = 0; i < count; ++i, at += bytes) std::memcpy(at, element, bytes);
  }

  void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
                const Box& region, int64_t element_bytes) override {
    shardrun::copy_box(src, src_box, dst, dst_box, region, element_bytes);
  }

  void add_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
               const Box& region, DType dtype) override {
    shardrun::add_box(src, src_box, dst, dst_box, region, dtype);
  }

  void synchronize() override {}
  std::unique_ptr<RecordedWork> record(const std::function<void()>&) override { return nullptr; }
};

class HostMarks final : public Marks {
 public:
  explicit HostMarks(Device& device) : device_(device) {}
  void begin() override {
    times_.clear();
    add();
  }
  void add() override {
    device_.synchronize();
    times_.push_back(now_seconds());
  }
  std::span<const double> times() override { return times_; }

 private:
  Device& device_;
  std::vector<double> times_;
};

}  // namespace

std::unique_ptr<Marks> Device::marks() { return std::make_unique<HostMarks>(*this); }

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace shardrun
