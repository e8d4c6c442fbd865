// Gathers, scatters and their gradients on a GPU. gather copies rows. Whatever adds rows or
// elements sorts them first by where they go, or is given them so (group_rows): each place is
// summed once, in f32, in the order of the indices, by one thread: the same bits each time, as on
// the CPU.
#pragma once

#include "base/around.h"
#include "graph/attrs.h"
#include "graph/rearranged.h"
#include "kernels/cuda/own/movement.h"
#include "kernels/cuda/own/sorted_keys.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"
#include "program/ops/group_rows.h"

namespace shardrun::cuda {

// ---- gather, gather_nd ----

/// Rows of `units` U each.
template <class U, class Index>
struct GatherUnit {
  const U* from;
  U* to;
  Index indices;
  int64_t units;
  Divisor by_units, by_count;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    int64_t outer = i;
    const int64_t unit = by_units.split(outer), row = indices.row(by_count.split(outer));
    to[i] = row >= 0 ? from[(outer * indices.extent + row) * units + unit] : U{};
  }
};

/// Rows of so many bytes, as `count` indices say, `outer` times.
template <class On, class Index>
void gather_rows(const KernelArgs& args, const Index& indices, int64_t count, int64_t outer,
                 int64_t bytes) {
  if (args.out[0].count() == 0) return;
  const int64_t unit_bytes = unit_of(address_of(args.in[0].data) | address_of(args.out[0].data) |
                                     static_cast<uint64_t>(bytes));
  with_unit(unit_bytes, [&](auto unit) {
    using U = decltype(unit);
    const int64_t units = bytes / unit_bytes, all = outer * count * units;
    const GatherUnit<U, Index> body{args.in[0].as<U>(),  args.out[0].as<U>(), indices, units,
                                    Divisor(units, all), Divisor(count, all)};
    On::each(args, all, body, "gather");
  });
}

template <class On>
PreparedKernel prepare_gather(const KernelCall& call) {
  const Around g(call.in[0].shape, call.node.attrs.i("axis"));
  const int64_t offset = call.node.attrs.i("offset", 0);
  const int64_t bytes = g.inner * size_of(call.in[0].dtype);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    gather_rows<On>(args, Indices(args.in[1], offset, g.extent), args.in[1].count(), g.outer,
                    bytes);
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

template <class On>
PreparedKernel prepare_gather_nd(const KernelCall& call) {
  const Shape& of = call.in[0].shape;
  const int64_t batch_dims = call.node.attrs.i("batch_dims", 0);
  Tuples tuples(of, call.in[1], batch_dims);
  const int64_t count = Tuples::count(call.in[1]);
  const int64_t bytes = Tuples::slice(of, call.in[1], batch_dims) * size_of(call.in[0].dtype);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    Tuples here = tuples;
    here.data = args.in[1].data;
    gather_rows<On>(args, here, count, 1, bytes);
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

// ---- rows grouped by where they go: group_rows, gather_grad, add_rows

/// first[row]: how many keys are of rows before it.
struct FirstOfRow {
  const uint64_t* keys;
  int32_t* first;
  int64_t count;
  SR_HOST_DEVICE void operator()(int64_t row) const {
    first[row] = static_cast<int32_t>(lower_bound(keys, count, key_of(row, 0)));
  }
};

struct NumberOfKey {
  const uint64_t* keys;
  int32_t* order;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    order[i] = static_cast<int32_t>(number_in(keys[i]));
  }
};

/// What group_rows makes (runtime/program/ops/group_rows.h).
struct Groups {
  const int32_t *first, *order;
  int64_t size;

  Groups(const int32_t* groups, int64_t size)
      : first(groups), order(groups + size + 2), size(size) {}
};

/// Makes them, with `memory` of sort_bytes(count).
template <class On>
void group(const KernelArgs& args, const Indices& numbers, int64_t count, void* memory,
           int32_t* groups) {
  const uint64_t* keys = sorted_keys<On>(args, memory, count, RowKey<Indices>{numbers, nullptr});
  On::each(args, numbers.extent + 2, FirstOfRow{keys, groups, count}, "rows");
  On::each(args, count, NumberOfKey{keys, groups + numbers.extent + 2}, "rows");
}

/// The groups that a call wants: given, or made in its workspace.
struct Grouping {
  RowGroups wanted;
  bool given;
  int64_t count;

  explicit Grouping(const KernelCall& call)
      : wanted(RowGroups::wanted_by(call.node, call.in).value()),
        given(rearranged_operands(call.node) > 0),
        count(element_count(call.in[wanted.numbers].shape)) {}
  int64_t workspace_bytes() const {
    return given ? 0 : sort_bytes(count) + 4 * RowGroups::elements(wanted.size, count);
  }
  template <class On>
  Groups of(const KernelArgs& args) const {
    if (given) return {args.in.back().as<int32_t>(), wanted.size};
    auto* groups =
        reinterpret_cast<int32_t*>(static_cast<char*>(args.workspace) + sort_bytes(count));
    group<On>(args, Indices(args.in[wanted.numbers], wanted.offset, wanted.size), count,
              args.workspace, groups);
    return {groups, wanted.size};
  }
};

/// N neighbours of a row of the result: the sum of all that goes there.
template <class T, int N>
struct SumOfRow {
  const T* dy;
  T* out;
  Groups rows;
  int64_t inner, count;
  Divisor by_parts, by_size;  // of a row, of the table

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t column = by_parts.split(i) * N, item = i, row = by_size.split(i), o = i;
    float sum[N];
    for (float& each : sum) each = 0;
    for (int32_t k = rows.first[row]; k < rows.first[row + 1]; ++k) {
      float v[N];
      read(dy + (o * count + rows.order[k]) * inner + column, v);
      for (int n = 0; n < N; ++n) sum[n] += v[n];
    }
    write(out + item * inner + column, sum);
  }
};

/// The same onto what is there, and for rows that something goes to alone: the first of a row does
/// all.
template <class T, int N>
struct AddToRow {
  const T* dy;
  T* out;
  Groups rows;
  Indices numbers;
  int64_t inner, count;
  Divisor by_parts, by_count;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t column = by_parts.split(i) * N, first = by_count.split(i), o = i,
                  row = numbers.row(rows.order[first]);
    if (row < 0 || rows.first[row] != first) return;
    float sum[N];
    for (float& each : sum) each = 0;
    for (int32_t k = rows.first[row]; k < rows.first[row + 1]; ++k) {
      float v[N];
      read(dy + (o * count + rows.order[k]) * inner + column, v);
      for (int n = 0; n < N; ++n) sum[n] += v[n];
    }
    T* to = out + (o * rows.size + row) * inner + column;
    float was[N];
    read(to, was);
    for (int n = 0; n < N; ++n) was[n] += sum[n];
    write(to, was);
  }
};

inline Refusal add_refuses(const KernelCall& call) {
  const size_t operands = (call.node.op == "add_rows" ? 3 : 2) + rearranged_operands(call.node);
  if (auto reason = refuse_more(call, operands, 1, {"axis", "offset", "size", "rearranged"}))
    return reason;
  if (auto reason = refuse_other_floats(call)) return reason;
  const Grouping grouping(call);
  return keys_refuse(grouping.wanted.size, grouping.count);
}

/// Calls f with a Width of as many neighbours as 16 bytes hold, or of one.
template <class T, class F>
void with_width(int64_t inner, F&& f) {
  if (inner % kWide<T> == 0) return f(Width<kWide<T>>{});
  f(Width<1>{});
}

template <class On>
PreparedKernel prepare_group_rows(const KernelCall& call) {
  const int64_t size = call.node.attrs.i("size"), offset = call.node.attrs.i("offset", 0);
  const int64_t count = element_count(call.in[0].shape);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    group<On>(args, Indices(args.in[0], offset, size), count, args.workspace,
              args.out[0].as<int32_t>());
  };
  prepared.workspace_bytes = sort_bytes(count);
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
PreparedKernel prepare_gather_grad(const KernelCall& call) {
  const Around g(call.out[0].shape, call.node.attrs.i("axis"));
  const Grouping grouping(call);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    const Groups rows = grouping.of<On>(args);
    with_element(args.out[0].type.dtype, [&](auto element) {
      using T = decltype(element);
      with_width<T>(g.inner, [&](auto width) {
        const int64_t parts = g.inner / width(), all = g.outer * g.extent * parts;
        const SumOfRow<T, width()> body{
            args.in[0].as<T>(),  args.out[0].as<T>(),   rows, g.inner, grouping.count,
            Divisor(parts, all), Divisor(g.extent, all)};
        On::each(args, all, body, "gather_grad");
      });
    });
  };
  prepared.workspace_bytes = grouping.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
void copy_unless_same(const KernelArgs& args) {
  BoxLoops bytes;
  bytes.add(byte_size(args.in[0].type), 1, 1);
  if (args.in[0].data != args.out[0].data)
    On::copy(args, args.out[0].data, args.in[0].data, bytes, 1);
}

template <class On>
PreparedKernel prepare_add_rows(const KernelCall& call) {
  const Around g(call.out[0].shape, call.node.attrs.i("axis"));
  const Grouping grouping(call);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    copy_unless_same<On>(args);
    if (args.out[0].count() == 0 || grouping.count == 0) return;
    const Groups rows = grouping.of<On>(args);
    const Indices numbers(args.in[2], grouping.wanted.offset, g.extent);
    with_element(args.out[0].type.dtype, [&](auto element) {
      using T = decltype(element);
      with_width<T>(g.inner, [&](auto width) {
        const int64_t parts = g.inner / width(), all = g.outer * grouping.count * parts;
        const AddToRow<T, width()> body{args.in[1].as<T>(),
                                        args.out[0].as<T>(),
                                        rows,
                                        numbers,
                                        g.inner,
                                        grouping.count,
                                        Divisor(parts, all),
                                        Divisor(grouping.count, all)};
        On::each(args, all, body, "add_rows");
      });
    });
  };
  prepared.workspace_bytes = grouping.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

// ---- gather_elements, scatter_elements ----

inline Refusal elements_refuse(const KernelCall& call) {
  if (auto reason = refuse_more(call, 3, 1, {"axis", "offset", "reduction"})) return reason;
  const Shape &data = call.in[0].shape, &indices = call.in[1].shape;
  const auto axis = static_cast<size_t>(call.node.attrs.i("axis"));
  for (size_t d = 0; d < data.size(); ++d) {
    if (d != axis && data[d] != indices[d])
      return "indices as large as data along all dims but the axis";
  }
  if (call.node.op == "gather_elements") return std::nullopt;
  if (auto reason = refuse_other_numbers(call.in[0].dtype)) return reason;
  return keys_refuse(element_count(data), element_count(indices));
}

template <class U>
struct GatherElement {
  const U* from;
  U* to;
  ElementKey indices;
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = indices.place(i);
    to[i] = at >= 0 ? from[at] : U{};
  }
};

inline ElementKey element_keys(const Around& g, const TensorView& indices, int64_t offset,
                               int64_t count) {
  return {Indices(indices, offset, g.extent), nullptr, g.outer, count, g.inner};
}

template <class On>
PreparedKernel prepare_gather_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    with_unit(size_of(args.in[0].type.dtype), [&](auto unit) {
      using U = decltype(unit);
      On::each(args, args.out[0].count(),
               GatherElement<U>{args.in[0].as<U>(), args.out[0].as<U>(),
                                element_keys(g, args.in[1], offset, count)},
               "gather_elements");
    });
  };
  prepared.impl = "cuda:elements";
  return prepared;
}

enum class Reduction { none, add, mul, max, min };

inline Reduction reduction_of(const Node& node) {
  const std::string name = node.attrs.s("reduction", "none");
  return name == "add"   ? Reduction::add
         : name == "mul" ? Reduction::mul
         : name == "max" ? Reduction::max
         : name == "min" ? Reduction::min
                         : Reduction::none;
}

/// What goes to N neighbours of a slice of the result, in order; the first key of a slice does all.
template <class T, int N>
struct ScatterToSlice {
  const T* updates;
  T* out;
  const uint64_t* keys;
  int64_t count, places, inner;
  Reduction reduction;
  Divisor parts;  // of a slice

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t column = parts.split(i) * N, place = place_in(keys[i]);
    if (place == places || (i > 0 && place_in(keys[i - 1]) == place)) return;
    T* to = out + place * inner + column;
    Number<T> value[N], x[N];
    read(to, value);
    for (int64_t k = i; k < count && place_in(keys[k]) == place; ++k) {
      read(updates + number_in(keys[k]) * inner + column, x);
      for (int n = 0; n < N; ++n) value[n] = reduced(value[n], x[n]);
    }
    write(to, value);
  }

  SR_HOST_DEVICE Number<T> reduced(Number<T> a, Number<T> b) const {
    switch (reduction) {
      case Reduction::none: return b;
      case Reduction::add: return a + b;
      case Reduction::mul: return a * b;
      case Reduction::max: return a < b ? b : a;
      default: return b < a ? b : a;
    }
  }
};

/// Keys of `count` updates to `places` slices of `inner` elements, sorted, and then done.
template <class On, class Make>
void scatter(const KernelArgs& args, int64_t count, int64_t places, int64_t inner,
             Reduction reduction, const Make& make) {
  copy_unless_same<On>(args);
  if (count * inner == 0 || places == 0) return;
  const uint64_t* keys = sorted_keys<On>(args, args.workspace, count, make);
  with_number(args.out[0].type.dtype, [&](auto element) {
    using T = decltype(element);
    with_width<T>(inner, [&](auto width) {
      const int64_t parts = inner / width(), all = count * parts;
      const ScatterToSlice<T, width()> body{
          args.in[2].as<T>(), args.out[0].as<T>(), keys, count, places, inner,
          reduction,          Divisor(parts, all)};
      On::each(args, all, body, "scatter");
    });
  });
}

template <class On>
PreparedKernel prepare_scatter_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t along = call.in[1].shape[static_cast<size_t>(axis)];
  const int64_t count = element_count(call.in[1].shape), places = element_count(call.in[0].shape);
  const Reduction reduction = reduction_of(call.node);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    scatter<On>(args, count, places, 1, reduction, element_keys(g, args.in[1], offset, along));
  };
  prepared.workspace_bytes = sort_bytes(count);
  prepared.impl = "cuda:sort";
  return prepared;
}

inline Refusal tuples_refuse(const KernelCall& call) {
  if (call.in[1].shape.back() > Tuples::kMost) return "more dims than its loops";
  if (call.node.op == "gather_nd") return refuse_more(call, 2, 1, {"batch_dims"});
  if (auto reason = refuse_more(call, 3, 1, {"batch_dims", "reduction"})) return reason;
  if (auto reason = refuse_other_numbers(call.in[0].dtype)) return reason;
  const Tuples tuples(call.in[0].shape, call.in[1], call.node.attrs.i("batch_dims", 0));
  return keys_refuse(tuples.extent, Tuples::count(call.in[1]));
}

template <class On>
PreparedKernel prepare_scatter_nd(const KernelCall& call) {
  const int64_t batch_dims = call.node.attrs.i("batch_dims", 0);
  const Tuples tuples(call.in[0].shape, call.in[1], batch_dims);
  const int64_t count = Tuples::count(call.in[1]),
                inner = Tuples::slice(call.in[0].shape, call.in[1], batch_dims);
  const Reduction reduction = reduction_of(call.node);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    RowKey<Tuples> make{tuples, nullptr};
    make.indices.data = args.in[1].data;
    scatter<On>(args, count, tuples.extent, inner, reduction, make);
  };
  prepared.workspace_bytes = sort_bytes(count);
  prepared.impl = "cuda:sort";
  return prepared;
}

inline Refusal gather_refuses(const KernelCall& call) {
  return refuse_more(call, 2, 1, {"axis", "offset", "padding"});  // padding: of its gradient
}

inline Refusal group_refuses(const KernelCall& call) {
  return keys_refuse(call.node.attrs.i("size"), element_count(call.in[0].shape));
}

template <class On>
KernelList indexing_kernels_on() {
  return {{"gather", "cuda:rows", gather_refuses, prepare_gather<On>},
          {"gather_grad", "cuda:sort", add_refuses, prepare_gather_grad<On>},
          {"add_rows", "cuda:sort", add_refuses, prepare_add_rows<On>},
          {"group_rows", "cuda:sort", group_refuses, prepare_group_rows<On>},
          {"gather_nd", "cuda:rows", tuples_refuse, prepare_gather_nd<On>},
          {"scatter_nd", "cuda:sort", tuples_refuse, prepare_scatter_nd<On>},
          {"gather_elements", "cuda:elements", elements_refuse, prepare_gather_elements<On>},
          {"scatter_elements", "cuda:sort", elements_refuse, prepare_scatter_elements<On>}};
}

}  // namespace shardrun::cuda
