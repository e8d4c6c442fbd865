// Packing, unpacking and calling a Communicator for one Collective.
#include "exec/collective_step.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace shardrun {
namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

int64_t count_of(const Box& box) { return element_count(box_shape(box)); }

/// Are the pieces of a dense tensor holding `box`, cut along `dim`, dense one after the other?
bool dense_along(const Box& box, int dim) {
  int64_t outer = 1;
  for (int d = 0; d < dim; ++d) outer *= box[static_cast<size_t>(d)].size;
  return outer <= 1;
}

Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return Reduction::sum;
    case ReduceOp::max: return Reduction::max;
    case ReduceOp::min: return Reduction::min;
  }
  return Reduction::sum;
}

}  // namespace

void fill_identity(void* data, int64_t count, DType dtype, ReduceOp op) {
  if (count == 0) return;
  if (op == ReduceOp::sum) {
    std::memset(data, 0, static_cast<size_t>(count * size_of(dtype)));
    return;
  }
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool low = op == ReduceOp::max;
    T value{};
    if constexpr (std::is_same_v<T, bool>) {
      value = !low;
    } else if constexpr (std::is_integral_v<T>) {
      value = low ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
    } else {
      value = static_cast<T>(low ? -std::numeric_limits<float>::infinity()
                                 : std::numeric_limits<float>::infinity());
    }
    std::fill_n(static_cast<T*>(data), count, value);
  });
}

CollectiveStep::CollectiveStep(Collective collective, DType dtype, int64_t rank)
    : collective_(std::move(collective)), dtype_(dtype) {
  const Collective& c = collective_;
  const auto found = std::find(c.group.begin(), c.group.end(), rank);
  SR_REQUIRE(found != c.group.end(), internal, to_string(c.kind), ": rank ", rank,
             " is not in its group");
  SR_REQUIRE(c.in_boxes.size() == c.group.size() && c.out_boxes.size() == c.group.size(), internal,
             to_string(c.kind), ": a group of ", c.group.size(), " has ", c.in_boxes.size(),
             " in and ", c.out_boxes.size(), " out boxes");
  me_ = static_cast<size_t>(found - c.group.begin());
  const Box &in = c.in_boxes[me_], &out = c.out_boxes[me_];
  const int64_t element = size_of(dtype);
  switch (c.kind) {
    case Collective::Kind::all_gather:
      recv_boxes_ = c.in_boxes;
      if (!dense_along(out, c.dim)) unpack_bytes_ = aligned(count_of(out) * element);
      break;
    case Collective::Kind::reduce_scatter:
      send_boxes_ = c.out_boxes;
      if (!dense_along(in, c.dim)) pack_bytes_ = aligned(count_of(in) * element);
      break;
    case Collective::Kind::all_to_all:
      for (size_t j = 0; j < c.group.size(); ++j) {
        send_boxes_.push_back(intersect(in, c.out_boxes[j]));
        recv_boxes_.push_back(intersect(c.in_boxes[j], out));
      }
      if (!dense_along(in, c.to_dim)) pack_bytes_ = aligned(count_of(in) * element);
      if (!dense_along(out, c.dim)) unpack_bytes_ = aligned(count_of(out) * element);
      break;
    case Collective::Kind::all_reduce:
    case Collective::Kind::slice:
    case Collective::Kind::keep_first: break;
  }
  for (const Box& box : send_boxes_) send_counts_.push_back(count_of(box));
  for (const Box& box : recv_boxes_) recv_counts_.push_back(count_of(box));
  if (c.kind == Collective::Kind::reduce_scatter) {
    staging_bytes_ = reduce_scatter_staging_bytes(send_counts_, dtype, static_cast<int>(me_));
  } else if (c.kind == Collective::Kind::all_reduce) {
    staging_bytes_ =
        all_reduce_staging_bytes(count_of(in), dtype, static_cast<int>(c.group.size()));
  }
}

void CollectiveStep::pack(const void* in, char* packed) const {
  for (size_t j = 0; j < send_boxes_.size(); ++j) {
    copy_box(in, collective_.in_boxes[me_], packed, send_boxes_[j], send_boxes_[j],
             size_of(dtype_));
    packed += send_counts_[j] * size_of(dtype_);
  }
}

void CollectiveStep::unpack(const char* packed, void* out) const {
  for (size_t j = 0; j < recv_boxes_.size(); ++j) {
    copy_box(packed, recv_boxes_[j], out, collective_.out_boxes[me_], recv_boxes_[j],
             size_of(dtype_));
    packed += recv_counts_[j] * size_of(dtype_);
  }
}

void CollectiveStep::run(const void* in, void* out, void* workspace, Communicator* group) const {
  const Collective& c = collective_;
  char* packed = static_cast<char*>(workspace);
  char* unpacked = packed + pack_bytes_;
  void* staging = unpacked + unpack_bytes_;
  const void* send = in;
  void* recv = out;
  if (pack_bytes_ > 0) {
    pack(in, packed);
    send = packed;
  }
  if (unpack_bytes_ > 0) recv = unpacked;
  const int64_t count = count_of(c.in_boxes[me_]);
  switch (c.kind) {
    case Collective::Kind::all_gather: group->all_gather(send, recv, recv_counts_, dtype_); break;
    case Collective::Kind::reduce_scatter:
      group->reduce_scatter(send, recv, send_counts_, dtype_, reduction_of(c.op), staging);
      break;
    case Collective::Kind::all_reduce:
      if (in != out && count > 0)
        std::memcpy(out, in, static_cast<size_t>(count * size_of(dtype_)));
      group->all_reduce(out, count, dtype_, reduction_of(c.op), staging);
      break;
    case Collective::Kind::all_to_all:
      group->all_to_all(send, send_counts_, recv, recv_counts_, dtype_);
      break;
    case Collective::Kind::slice:
      copy_box(in, c.in_boxes[me_], out, c.out_boxes[me_], c.out_boxes[me_], size_of(dtype_));
      break;
    case Collective::Kind::keep_first:
      if (me_ > 0) {
        fill_identity(out, count, dtype_, c.op);
      } else if (in != out && count > 0) {
        std::memcpy(out, in, static_cast<size_t>(count * size_of(dtype_)));
      }
      break;
  }
  if (unpack_bytes_ > 0) unpack(unpacked, out);
}

}  // namespace shardrun
