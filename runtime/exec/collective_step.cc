// Packing, unpacking and calling a Communicator for one Collective.
#include "exec/collective_step.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "base/round_up.h"
#include "base/short_array.h"

namespace shardrun {
namespace {

int64_t count_of(const Box& box) {
  int64_t count = 1;
  for (const Range& range : box) count *= range.size;
  return count;
}

/// Are the pieces of a dense tensor holding `box`, cut along `dim`, dense one after the other?
bool dense_along(const Box& box, int dim) {
  int64_t outer = 1;
  for (int d = 0; d < dim; ++d) outer *= box[static_cast<size_t>(d)].size;
  return outer <= 1;
}

}  // namespace

Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return Reduction::sum;
    case ReduceOp::max: return Reduction::max;
    case ReduceOp::min: return Reduction::min;
    case ReduceOp::prod: return Reduction::prod;
  }
  return Reduction::sum;
}

void fill_identity(Device& device, void* data, int64_t count, DType dtype, ReduceOp op) {
  if (op == ReduceOp::sum) {
    device.zero(data, count * size_of(dtype));
    return;
  }
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool low = op == ReduceOp::max;
    T value{};
    if (op == ReduceOp::prod) {
      value = static_cast<T>(1);
    } else if constexpr (std::is_same_v<T, bool>) {
      value = !low;
    } else if constexpr (std::is_integral_v<T>) {
      value = low ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
    } else {
      value = static_cast<T>(low ? -std::numeric_limits<float>::infinity()
                                 : std::numeric_limits<float>::infinity());
    }
    device.fill(data, count, &value, size_of(dtype));
  });
}

CollectiveStep::Bytes CollectiveStep::bytes_of(const Collective& c, DType dtype, size_t me) {
  using Along = CollectiveTraits::Along;
  const Box &in = c.in_boxes[me], &out = c.out_boxes[me];
  const auto to_pack = [&](const Box& box, Along along) -> int64_t {
    if (along == Along::none || dense_along(box, along == Along::dim ? c.dim : c.to_dim)) return 0;
    return round_up(count_of(box) * size_of(dtype), kArenaAlignment);
  };
  Bytes bytes;
  bytes.pack = to_pack(in, c.traits().packs);
  bytes.unpack = to_pack(out, c.traits().unpacks);
  if (c.kind == Collective::Kind::reduce_scatter) {
    std::vector<int64_t> counts;
    for (const Box& part : c.out_boxes) counts.push_back(count_of(part));
    bytes.staging = reduce_scatter_staging_bytes(counts, dtype);
  }
  if (c.kind == Collective::Kind::all_reduce)
    bytes.staging = all_reduce_staging_bytes(count_of(in), dtype, static_cast<int>(c.group.size()));
  return bytes;
}

int64_t CollectiveStep::workspace_bytes(const Collective& collective, DType dtype, int64_t rank) {
  if (collective.traits().is_exchange())
    return CollectiveStep(collective, dtype, rank).workspace_bytes();
  const Bytes bytes = bytes_of(collective, dtype, place_in_group(collective, rank));
  return bytes.pack + bytes.unpack + bytes.staging;
}

CollectiveStep::CollectiveStep(std::shared_ptr<const Collective> collective, DType dtype,
                               int64_t rank, Device& device)
    : collective_(std::move(collective)),
      device_(&device),
      dtype_(dtype),
      me_(place_in_group(*collective_, rank)) {
  const Collective& c = *collective_;
  if (c.traits().by_rows) {
    rows_.emplace(c, dtype, me_);
    return;
  }
  if (c.traits().is_exchange()) {
    prepare_exchange();
    return;
  }
  bytes_ = bytes_of(c, dtype, me_);
  if (c.kind == Collective::Kind::all_gather) recv_boxes_ = c.in_boxes;
  if (c.kind == Collective::Kind::reduce_scatter) send_boxes_ = c.out_boxes;
  if (c.kind == Collective::Kind::all_to_all) {
    for (size_t j = 0; j < c.group.size(); ++j) {
      send_boxes_.push_back(intersect(c.in_boxes[me_], c.out_boxes[j]));
      recv_boxes_.push_back(intersect(c.in_boxes[j], c.out_boxes[me_]));
    }
  }
  for (const Box& box : send_boxes_) send_counts_.push_back(count_of(box));
  for (const Box& box : recv_boxes_) recv_counts_.push_back(count_of(box));
}

void CollectiveStep::prepare_exchange() {
  const Collective& c = *collective_;
  if (c.kind == Collective::Kind::block_exchange) {
    const size_t members = std::get<MemberBlocks>(c.payload).size();
    SR_REQUIRE(members == c.group.size(), internal, to_string(c.kind), ": a group of ",
               c.group.size(), " has blocks for ", members);
  }
  const auto count = [](const std::vector<CollectivePiece>& pieces) {
    int64_t sum = 0;
    for (const CollectivePiece& piece : pieces) sum += count_of(piece.region);
    return sum;
  };
  int64_t sent = 0, received = 0;
  for (size_t j = 0; j < c.group.size(); ++j) {
    sends_.push_back(pieces_of(c, me_, j));
    recvs_.push_back(pieces_of(c, j, me_));
    send_counts_.push_back(j == me_ ? 0 : count(sends_[j]));
    recv_counts_.push_back(j == me_ ? 0 : count(recvs_[j]));
    sent += send_counts_.back();
    received += recv_counts_.back();
  }
  bytes_.pack = round_up(sent * size_of(dtype_), kArenaAlignment);
  bytes_.unpack = round_up(received * size_of(dtype_), kArenaAlignment);
}

/// A row that several members made is summed in their order, so a run repeats bit for bit.
void CollectiveStep::run_exchange(const void* in, void* out, void* workspace,
                                  Communicator* group) const {
  const int64_t element = size_of(dtype_);
  const Box& box = collective_->out_boxes[me_];
  char* packed = static_cast<char*>(workspace);
  char* received = packed + bytes_.pack;
  char* to = packed;
  for (size_t j = 0; j < sends_.size(); ++j) {
    if (j == me_) continue;
    for (const CollectivePiece& piece : sends_[j]) {
      device_->copy_box(in, piece.local, to, piece.region, piece.region, element);
      to += count_of(piece.region) * element;
    }
  }
  group->all_to_all(packed, send_counts_, received, recv_counts_, dtype_);
  const bool adds = collective_->traits().reduces;
  if (adds) fill_identity(*device_, out, count_of(box), dtype_, ReduceOp::sum);
  for (size_t j = 0; j < recvs_.size(); ++j) {
    for (const CollectivePiece& piece : recvs_[j]) {
      const void* from = j == me_ ? in : received;
      const Box& local = j == me_ ? piece.local : piece.region;
      if (adds) {
        device_->add_box(from, local, out, box, piece.region, dtype_);
      } else {
        device_->copy_box(from, local, out, box, piece.region, element);
      }
      if (j != me_) received += count_of(piece.region) * element;
    }
  }
}

void CollectiveStep::pack(const void* in, char* packed) const {
  for (size_t j = 0; j < send_boxes_.size(); ++j) {
    device_->copy_box(in, collective_->in_boxes[me_], packed, send_boxes_[j], send_boxes_[j],
                      size_of(dtype_));
    packed += send_counts_[j] * size_of(dtype_);
  }
}

void CollectiveStep::unpack(const char* packed, void* out) const {
  for (size_t j = 0; j < recv_boxes_.size(); ++j) {
    device_->copy_box(packed, recv_boxes_[j], out, collective_->out_boxes[me_], recv_boxes_[j],
                      size_of(dtype_));
    packed += recv_counts_[j] * size_of(dtype_);
  }
}

void CollectiveStep::run(std::span<const TensorView> in, std::span<const TensorView> out,
                         void* workspace, Communicator* group) const {
  if (rows_ && device_->is_host()) {
    rows_->run(in, out, workspace, *group);
  } else if (rows_) {
    run_rows_on_host(in, out, *group);
  } else {
    run(in[0].data, out[0].data, workspace, group);
  }
}

/// Which rows change ranks is known to those who read the numbers: the host does, with copies.
void CollectiveStep::run_rows_on_host(std::span<const TensorView> in,
                                      std::span<const TensorView> out, Communicator& group) const {
  std::vector<Tensor> copies;
  std::vector<TensorView> from, to;
  for (const TensorView& view : in) {
    copies.emplace_back(view.type);
    device_->copy_out(copies.back().data(), view.data, byte_size(view.type));
    from.push_back(copies.back().view());
  }
  for (const TensorView& view : out) {
    copies.emplace_back(view.type);
    to.push_back(copies.back().view());
  }
  std::vector<std::max_align_t> workspace(
      static_cast<size_t>(rows_->workspace_bytes()) / sizeof(std::max_align_t) + 1);
  rows_->run(from, to, workspace.data(), group.host());
  for (size_t i = 0; i < out.size(); ++i)
    device_->copy_in(out[i].data, to[i].data, byte_size(out[i].type));
}

void CollectiveStep::run(const void* in, void* out, void* workspace, Communicator* group) const {
  const Collective& c = *collective_;
  if (c.traits().is_exchange()) {
    run_exchange(in, out, workspace, group);
    return;
  }
  char* packed = static_cast<char*>(workspace);
  char* unpacked = packed + bytes_.pack;
  void* staging = unpacked + bytes_.unpack;
  const void* send = in;
  void* recv = out;
  if (bytes_.pack > 0) {
    pack(in, packed);
    send = packed;
  }
  if (bytes_.unpack > 0) recv = unpacked;
  const int64_t count = count_of(c.in_boxes[me_]);
  switch (c.kind) {
    case Collective::Kind::all_gather: group->all_gather(send, recv, recv_counts_, dtype_); break;
    case Collective::Kind::reduce_scatter:
      group->reduce_scatter(send, recv, send_counts_, dtype_, reduction_of(c.op), staging);
      break;
    case Collective::Kind::all_reduce:
      if (in != out) device_->copy(out, in, count * size_of(dtype_));
      group->all_reduce(out, count, dtype_, reduction_of(c.op), staging);
      break;
    case Collective::Kind::all_to_all:
      group->all_to_all(send, send_counts_, recv, recv_counts_, dtype_);
      break;
    case Collective::Kind::slice:
      device_->copy_box(in, c.in_boxes[me_], out, c.out_boxes[me_], c.out_boxes[me_],
                        size_of(dtype_));
      break;
    case Collective::Kind::keep_first:
      if (me_ > 0) {
        fill_identity(*device_, out, count, dtype_, c.op);
      } else if (in != out) {
        device_->copy(out, in, count * size_of(dtype_));
      }
      break;
    case Collective::Kind::halo_exchange:
    case Collective::Kind::halo_add:
    case Collective::Kind::block_exchange: break;  // run_exchange
    case Collective::Kind::row_route:
    case Collective::Kind::row_fetch:
    case Collective::Kind::row_add: break;  // RowExchange
  }
  if (bytes_.unpack > 0) unpack(unpacked, out);
}

}  // namespace shardrun
