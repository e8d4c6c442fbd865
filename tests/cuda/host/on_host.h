// OnHost: where tests run the bodies of the GPU's kernels, without one. Rows are done by teams of
// one or several fibers, which meet at sums as the threads of a GPU's team do.
#pragma once

#include <ucontext.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/own/team.h"
#include "kernels/kernel.h"
#include "tests/cuda/host/boxes_on_host.h"
#include "tests/cuda/host/lt_on_host.h"

namespace shardrun::cuda {

/// A team of fibers, which take turns in one thread: each goes on where the next must know its part
/// of a sum.
class HostTeam {
 public:
  explicit HostTeam(int size)
      : fibers_(static_cast<size_t>(size)), values_(static_cast<size_t>(size)) {
    for (Fiber& fiber : fibers_) fiber.stack.resize(1 << 18);
  }

  /// body(member) for each member.
  template <class Body>
  void run(const Body& body) {
    if (fibers_.size() == 1) return body(Member(0, *this));
    body_ = [&](int rank) { body(Member(rank, *this)); };
    for (size_t rank = 0; rank < fibers_.size(); ++rank) {
      ucontext_t& context = fibers_[rank].context;
      getcontext(&context);
      context.uc_stack.ss_sp = fibers_[rank].stack.data();
      context.uc_stack.ss_size = fibers_[rank].stack.size();
      context.uc_link = rank + 1 < fibers_.size() ? &fibers_[rank + 1].context : &caller_;
      current_ = this;
      makecontext(&context, reinterpret_cast<void (*)()>(start), 1, static_cast<int>(rank));
    }
    swapcontext(&caller_, &fibers_[0].context);
  }

  class Member {
   public:
    Member(int rank, HostTeam& team) : rank_(rank), team_(team) {}
    int rank() const { return rank_; }
    int size() const { return static_cast<int>(team_.fibers_.size()); }
    template <class V>
    V sum(V value) const {
      return static_cast<V>(
          team_.all(rank_, static_cast<double>(value), [](double a, double b) { return a + b; }));
    }
    float max(float value) const {
      return team_.all(rank_, value, [](float a, float b) { return a > b || b != b ? a : b; });
    }
    template <class V, class F>
    V fold(V value, const F& join, V) const {
      return team_.all(rank_, value, join);
    }

   private:
    int rank_;
    HostTeam& team_;
  };

 private:
  using Value = std::array<char, 8>;
  struct Fiber {
    std::vector<char> stack;
    ucontext_t context{};
  };

  static void start(int rank) { current_->body_(rank); }

  void next(int rank) {
    const auto at = static_cast<size_t>(rank);
    if (fibers_.size() > 1)
      swapcontext(&fibers_[at].context, &fibers_[(at + 1) % fibers_.size()].context);
  }
  /// The first turn leaves a value, the second takes them all.
  template <class V, class F>
  V all(int rank, V value, const F& join) {
    static_assert(sizeof(V) <= sizeof(Value));
    std::memcpy(&values_[static_cast<size_t>(rank)], &value, sizeof(V));
    next(rank);
    const auto of = [this](size_t i) {
      V v;
      std::memcpy(&v, &values_[i], sizeof(V));
      return v;
    };
    V joined = of(0);
    for (size_t i = 1; i < values_.size(); ++i) joined = join(joined, of(i));
    next(rank);
    return joined;
  }

  std::vector<Fiber> fibers_;
  std::vector<Value> values_;
  std::function<void(int)> body_;
  ucontext_t caller_{};
  static inline thread_local HostTeam* current_ = nullptr;
};

/// A kernel list's place to run, as OnGpu is.
template <int kTeam>
struct OnHost {
  static inline std::vector<std::string> launches;  // of rows, by name

  template <class Body>
  static void each(const KernelArgs&, int64_t count, const Body& body, const char*) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  template <class Body>
  static void rows(const KernelArgs&, int64_t rows, int64_t, const Body& body, const char* name) {
    launches.emplace_back(name);
    HostTeam team(kTeam);
    for (int64_t row = 0; row < rows; ++row)
      team.run([&](const HostTeam::Member& member) { body(member, row); });
  }

  /// What cuBLASLt does on a GPU.
  class Product {
   public:
    explicit Product(const LtShape& shape) : shape_(shape) {}
    static int64_t workspace_bytes() { return 0; }
    void run(const KernelArgs&, const void* a, const void* b, void* d, void*) const {
      const auto of = [this](const void* values) {
        return [this, values](int64_t i) {
          return static_cast<double>(shape_.in == DType::f32
                                         ? static_cast<const float*>(values)[i]
                                         : as_float(static_cast<const Bf16*>(values)[i]));
        };
      };
      multiply_on_host(shape_, of(a), of(b), [&](int64_t i, int64_t, double sum) {
        const auto value = static_cast<float>(sum);
        if (shape_.out == DType::f32) {
          static_cast<float*>(d)[i] = value;
        } else {
          assign(static_cast<Bf16*>(d)[i], value);
        }
      });
    }

   private:
    LtShape shape_;
  };

  static void copy(const KernelArgs&, void* to, const void* from, const BoxLoops& loops,
                   int64_t element_bytes) {
    copy_box_on(BoxesOnHost(), from, to, loops, element_bytes);
  }
};

}  // namespace shardrun::cuda
