// Device: where a rank's buffers lie, and the order in which work on them is done.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/shape.h"

namespace shardrun {

class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void run() = 0;
};

/// Notes when work on a device was done, without changing its order.
class Marks {
 public:
  virtual ~Marks() = default;
  /// Waits for the device; the first mark is here, and all before are forgotten.
  virtual void begin() = 0;
  /// Another one, behind all that the device has been asked for.
  virtual void add() = 0;
  /// Waits, and returns the seconds of steady_clock at which what stands before each mark was done.
  virtual std::span<const double> times() = 0;
};

/// Work on one device happens in the order of the calls. The host has done what a call asked for
/// when the call returns; other devices may be behind, until synchronize() or copy_out() returns.
/// `bytes` may be 0, pointers are then not looked at. Failures are Error(device) naming the
/// operation; those of earlier work may come with a later call.
///
///   Device& device = host_device();
///   device.copy_in(shard.data, numbers.data(), bytes);
///   kernel.run({in, out, workspace, device.stream()});
///   device.copy_out(&loss, result.data, sizeof loss);
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu", "cuda:0 (NVIDIA H200)"
  /// May host code read and write its memory? What is done there has still to be waited for.
  virtual bool is_host() const = 0;
  /// What kernels of this device are launched on: a cudaStream_t; null on the host.
  virtual void* stream() const = 0;

  /// Zeroed, aligned to 256 bytes; null for 0 bytes. It may outlive the Device. Throws
  /// out_of_memory with the bytes that were asked for and those that are free.
  virtual std::shared_ptr<char> allocate(int64_t bytes) = 0;
  /// Bytes that allocate could still give.
  virtual int64_t free_bytes() const = 0;

  virtual void copy_in(void* to, const void* from_host, int64_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from, int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;  // must not overlap
  virtual void zero(void* to, int64_t bytes) = 0;
  /// `count` times the element of 1, 2, 4 or 8 bytes that the host holds at `element`.
  virtual void fill(void* to, int64_t count, const void* element, int64_t element_bytes) = 0;
  /// base/shape.h's copy_box; add_box adds instead.
  virtual void copy_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
                        const Box& region, int64_t element_bytes) = 0;
  virtual void add_box(const void* src, const Box& src_box, void* dst, const Box& dst_box,
                       const Box& region, DType dtype) = 0;

  /// Names the step that work is asked for from now on, for what is found wrong with what it was
  /// given only when the host waits for the device: "rank 0: step 'loss'"; "" for none.
  virtual void begins(const std::string& /*step*/) {}

  /// Returns when all work that was asked for is done.
  virtual void synchronize() = 0;

  /// Without a clock of the device's own it is the host's, which then waits at each mark.
  virtual std::unique_ptr<Marks> marks();

  /// A second order of work on the same memory, which runs concurrently with this one's; null:
  /// there is none.
  virtual Device* side() { return nullptr; }
  /// Work that is asked of this device from now on waits for all that `other`, its side or the
  /// device whose side it is, has been asked for so far.
  virtual void wait_for(Device& other) { other.synchronize(); }
  /// What this device has been asked for so far is what wait_for_point(…, point) waits for from now
  /// on. Points are small numbers, from 0.
  virtual void passes(int /*point*/) {}
  /// As wait_for, but for what `other` had been asked for when it passed that point last.
  virtual void wait_for_point(Device& other, int /*point*/) { other.synchronize(); }

  /// What `work` asks this device for, not done but noted, so that it can be asked for again in one
  /// call: a CUDA graph. `work` may not wait, nor copy in or out; its wait_for may be for what it
  /// asked of the other device itself, and for nothing before. Null: this device notes nothing, and
  /// `work` was not called.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work) = 0;
};

/// This process's memory and its calling thread.
Device& host_device();

}  // namespace shardrun
