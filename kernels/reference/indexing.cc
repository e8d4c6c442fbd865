// Reference kernels of indexing. An index outside the operand reads zeros and writes nowhere.
#include <algorithm>

#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

using Ints = std::vector<int64_t>;

int64_t product(const Shape& shape, size_t from, size_t to) {
  int64_t n = 1;
  for (size_t d = from; d < to; ++d) n *= shape[d];
  return n;
}

/// Copies `size` elements, or zeros where `from` is negative.
void copy_or_zero(const TensorView& in, int64_t from, const TensorView& out, int64_t to,
                  int64_t size) {
  const int64_t width = size_of(in.type.dtype);
  if (size == 0) return;
  char* target = static_cast<char*>(out.data) + to * width;
  if (from < 0) {
    std::memset(target, 0, static_cast<size_t>(size * width));
  } else {
    std::memcpy(target, static_cast<const char*>(in.data) + from * width,
                static_cast<size_t>(size * width));
  }
}

void run_gather(const Node& node, const KernelArgs& args) {
  const TensorView &data = args.in[0], &out = args.out[0];
  const Shape& shape = data.type.shape;
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const int64_t offset = node.attrs.i("offset", 0), extent = shape[axis];
  const int64_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, shape.size());
  const Ints indices = load_ints(args.in[1]);
  int64_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t index : indices) {
      const int64_t row = index - offset;
      const bool inside = row >= 0 && row < extent;
      copy_or_zero(data, inside ? (o * extent + row) * inner : -1, out, to, inner);
      to += inner;
    }
  }
}

/// Onto `sum`, which has the result's elements.
void add_rows(const Node& node, const TensorView& dy, const TensorView& rows, const TensorView& out,
              std::vector<double> sum) {
  const Shape& shape = out.type.shape;
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const int64_t offset = node.attrs.i("offset", 0), extent = shape[axis];
  const int64_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, shape.size());
  const Ints indices = load_ints(rows);
  std::vector<double> row(static_cast<size_t>(inner));
  int64_t from = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t index : indices) {
      const int64_t target = index - offset;
      if (target >= 0 && target < extent) {
        load(dy, from, 1, inner, row.data());
        double* to = sum.data() + (o * extent + target) * inner;
        for (int64_t k = 0; k < inner; ++k) to[k] += row[static_cast<size_t>(k)];
      }
      from += inner;
    }
  }
  store_all(out, sum);
}

void run_gather_grad(const Node& node, const KernelArgs& args) {
  add_rows(node, args.in[0], args.in[1], args.out[0],
           std::vector<double>(static_cast<size_t>(args.out[0].count())));
}

void run_add_rows(const Node& node, const KernelArgs& args) {
  std::vector<double> x(static_cast<size_t>(args.in[0].count()));
  load(args.in[0], 0, 1, args.in[0].count(), x.data());
  add_rows(node, args.in[1], args.in[2], args.out[0], std::move(x));
}

void run_group_rows(const Node& node, const KernelArgs& args) {
  const int64_t size = node.attrs.i("size"), offset = node.attrs.i("offset", 0);
  std::vector<Ints> places(static_cast<size_t>(size) + 1);
  const Ints numbers = load_ints(args.in[0]);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t row = numbers[i] - offset;
    places[static_cast<size_t>(row >= 0 && row < size ? row : size)].push_back(
        static_cast<int64_t>(i));
  }
  Ints groups = {0}, order;
  for (const Ints& place : places) {
    order.insert(order.end(), place.begin(), place.end());
    groups.push_back(static_cast<int64_t>(order.size()));
  }
  groups.insert(groups.end(), order.begin(), order.end());
  store_all(args.out[0], groups);
}

/// For each element of indices, where in data (offset in elements) it points; -1: outside.
Ints element_positions(const Node& node, const TensorView& data, const TensorView& indices) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const int64_t offset = node.attrs.i("offset", 0);
  const Shape strides = row_major_strides(data.type.shape);
  const Shape& shape = indices.type.shape;
  Ints positions = load_ints(indices), index(shape.size(), 0);
  for (int64_t& value : positions) {
    int64_t position = -1;
    value -= offset;
    if (value >= 0 && value < data.type.shape[axis]) {
      position = value * strides[axis];
      for (size_t d = 0; d < shape.size(); ++d) {
        if (d != axis) position += index[d] * strides[d];
      }
    }
    value = position;
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return positions;
}

/// For each index tuple, where in data the slice that it picks begins; -1: outside.
Ints tuple_positions(const Node& node, const TensorView& data, const TensorView& indices) {
  const auto batch = static_cast<size_t>(node.attrs.i("batch_dims", 0));
  const Shape strides = row_major_strides(data.type.shape);
  const Shape& shape = indices.type.shape;
  const auto entries = static_cast<size_t>(shape.back());
  const int64_t batches = product(shape, 0, batch);
  const int64_t tuples = product(shape, batch, shape.size() - 1);
  const int64_t batch_size = product(data.type.shape, batch, data.type.shape.size());
  const Ints values = load_ints(indices);
  Ints positions;
  size_t next = 0;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t t = 0; t < tuples; ++t) {
      int64_t position = b * batch_size;
      bool inside = true;
      for (size_t e = 0; e < entries; ++e) {
        const int64_t value = values[next++];
        inside = inside && value >= 0 && value < data.type.shape[batch + e];
        position += value * strides[batch + e];
      }
      positions.push_back(inside ? position : -1);
    }
  }
  return positions;
}

int64_t slice_size(const Node& node, const TensorView& data, const TensorView& indices) {
  const Shape& shape = data.type.shape;
  const auto picked =
      static_cast<size_t>(node.attrs.i("batch_dims", 0) + indices.type.shape.back());
  return product(shape, picked, shape.size());
}

void gather_slices(const KernelArgs& args, const Ints& positions, int64_t size) {
  int64_t to = 0;
  for (int64_t position : positions) {
    copy_or_zero(args.in[0], position, args.out[0], to, size);
    to += size;
  }
}

template <class T>
void scatter_slices_as(const std::string& reduction, const KernelArgs& args, const Ints& positions,
                       int64_t size) {
  std::vector<T> result(static_cast<size_t>(args.in[0].count()));
  load(args.in[0], 0, 1, args.in[0].count(), result.data());
  std::vector<T> row(static_cast<size_t>(size));
  int64_t from = 0;
  for (int64_t position : positions) {
    if (position >= 0) {
      load(args.in[2], from, 1, size, row.data());
      T* to = result.data() + position;
      for (int64_t k = 0; k < size; ++k) {
        const T x = row[static_cast<size_t>(k)];
        if (reduction == "add") {
          to[k] += x;
        } else if (reduction == "mul") {
          to[k] *= x;
        } else if (reduction == "max") {
          to[k] = std::max(to[k], x);
        } else if (reduction == "min") {
          to[k] = std::min(to[k], x);
        } else {
          to[k] = x;
        }
      }
    }
    from += size;
  }
  store_all(args.out[0], result);
}

void scatter_slices(const Node& node, const KernelArgs& args, const Ints& positions, int64_t size) {
  const std::string reduction = node.attrs.s("reduction", "none");
  if (is_float(args.in[0].type.dtype)) {
    scatter_slices_as<double>(reduction, args, positions, size);
  } else {
    scatter_slices_as<int64_t>(reduction, args, positions, size);
  }
}

}  // namespace

KernelList indexing_kernels() {
  return {kernel("gather", run_gather),
          kernel("gather_grad", run_gather_grad),
          kernel("add_rows", run_add_rows),
          kernel("group_rows", run_group_rows),
          kernel("gather_elements",
                 [](const Node& node, const KernelArgs& args) {
                   gather_slices(args, element_positions(node, args.in[0], args.in[1]), 1);
                 }),
          kernel("gather_nd",
                 [](const Node& node, const KernelArgs& args) {
                   gather_slices(args, tuple_positions(node, args.in[0], args.in[1]),
                                 slice_size(node, args.in[0], args.in[1]));
                 }),
          kernel("scatter_elements",
                 [](const Node& node, const KernelArgs& args) {
                   scatter_slices(node, args, element_positions(node, args.in[0], args.in[1]), 1);
                 }),
          kernel("scatter_nd", [](const Node& node, const KernelArgs& args) {
            scatter_slices(node, args, tuple_positions(node, args.in[0], args.in[1]),
                           slice_size(node, args.in[0], args.in[1]));
          })};
}

}  // namespace shardrun::reference
