// Grouping an einsum's letters, and which of its operands to transpose.
#include "kernels/einsum_product.h"

#include <algorithm>

namespace shardrun {

std::string common_letters(const std::string& term, const std::string& other, bool inside) {
  std::string out;
  for (char c : term) {
    if ((other.find(c) != std::string::npos) == inside) out += c;
  }
  return out;
}

Shape dims_of(const std::string& term, const LetterSizes& size) {
  Shape out;
  for (char c : term) out.push_back(size.at(c));
  return out;
}

std::map<char, int64_t> strides_of(const std::string& term, const LetterSizes& size) {
  const Shape strides = row_major_strides(dims_of(term, size));
  std::map<char, int64_t> out;
  for (size_t i = 0; i < term.size(); ++i) out[term[i]] = strides[i];
  return out;
}

std::optional<MergedLetters> merge_letters(const std::string& group,
                                           const std::map<char, int64_t>& stride,
                                           const LetterSizes& size) {
  MergedLetters out;
  for (size_t i = group.size(); i-- > 0;) {
    const int64_t s = stride.at(group[i]), n = size.at(group[i]);
    if (i + 1 == group.size()) {
      out = {n, s};
    } else if (s == out.stride * out.size) {
      out.size *= n;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

Einsum without_ones(const Einsum& whole, const LetterSizes& size) {
  std::string ones;
  for (const auto& [letter, n] : size) {
    if (n == 1) ones += letter;
  }
  return {common_letters(whole.a, ones, false), common_letters(whole.b, ones, false),
          common_letters(whole.out, ones, false)};
}

namespace {

struct Groups {
  std::string batch, m, n, k;

  explicit Groups(const Einsum& e)
      : batch(common_letters(common_letters(e.out, e.a, true), e.b, true)),
        m(common_letters(common_letters(e.out, e.a, true), e.b, false)),
        n(common_letters(common_letters(e.out, e.b, true), e.a, false)),
        k(common_letters(common_letters(e.a, e.b, true), e.out, false)) {}
};

// The terms as strided operands without copies, or nullopt and why not.
std::optional<StridedProduct> direct(const Einsum& e, const LetterSizes& size, std::string* why) {
  const auto sa = strides_of(e.a, size), sb = strides_of(e.b, size), sc = strides_of(e.out, size);
  const Groups of(e);
  const auto am = merge_letters(of.m, sa, size), ak = merge_letters(of.k, sa, size),
             bk = merge_letters(of.k, sb, size), bn = merge_letters(of.n, sb, size),
             cm = merge_letters(of.m, sc, size), cn = merge_letters(of.n, sc, size);
  if (!am || !ak || !bk || !bn || !cm || !cn) {
    *why = "letters of one group are not adjacent";
    return std::nullopt;
  }
  StridedProduct p;
  for (size_t i = 0; i < of.batch.size(); ++i) {
    const char c = of.batch[i];
    const int64_t s = size.at(c);
    const bool joins = i > 0 && p.a_strides.back() == sa.at(c) * s &&
                       p.b_strides.back() == sb.at(c) * s && p.c_strides.back() == sc.at(c) * s;
    if (joins) {
      for (Shape* dims : {&p.a, &p.b, &p.c}) dims->back() *= s;
      p.a_strides.back() = sa.at(c), p.b_strides.back() = sb.at(c), p.c_strides.back() = sc.at(c);
    } else {
      for (Shape* dims : {&p.a, &p.b, &p.c}) dims->push_back(s);
      p.a_strides.push_back(sa.at(c)), p.b_strides.push_back(sb.at(c)),
          p.c_strides.push_back(sc.at(c));
    }
  }
  const auto append = [](Shape& dims, Shape& strides, const MergedLetters& rows,
                         const MergedLetters& cols) {
    dims.insert(dims.end(), {rows.size, cols.size});
    // A dim of 1 may have any stride; libraries recognise the layout best by a dense one.
    const int64_t row_stride =
        rows.size == 1 ? std::max(cols.size * cols.stride, int64_t{1}) : rows.stride;
    const int64_t col_stride =
        cols.size == 1 ? (rows.stride == 1 && rows.size > 1 ? rows.size : 1) : cols.stride;
    strides.insert(strides.end(), {row_stride, col_stride});
  };
  append(p.a, p.a_strides, *am, *ak);
  append(p.b, p.b_strides, *bk, *bn);
  append(p.c, p.c_strides, *cm, *cn);
  if (p.c_strides.back() != 1) {
    *why = "the result's last letter is not n";
    return std::nullopt;
  }
  return p;
}

EinsumProduct::Transposition transposition(const std::string& from, const std::string& to,
                                           const LetterSizes& size) {
  EinsumProduct::Transposition out{dims_of(from, size), {}};
  for (char c : to) out.perm.push_back(static_cast<int64_t>(from.find(c)));
  return out;
}

}  // namespace

std::optional<EinsumProduct> plan_product(
    const Einsum& e, const LetterSizes& size,
    const std::function<bool(const StridedProduct&, std::string*)>& accepts, std::string* why) {
  const Groups of(e);
  if (!of.batch.empty() && of.m.empty() && of.n.empty() && of.k.empty()) {
    *why = "is an element-wise product";
    return std::nullopt;
  }
  // As few transpositions as possible, in either order of the operands.
  for (int bits : {0, 1, 2, 4, 3, 5, 6, 7}) {
    for (bool swapped : {false, true}) {
      Einsum local = e;
      if (bits & 1) local.a = of.batch + of.m + of.k;
      if (bits & 2) local.b = of.batch + of.k + of.n;
      if (bits & 4) local.out = swapped ? of.batch + of.n + of.m : of.batch + of.m + of.n;
      const auto product = direct(swapped ? Einsum{local.b, local.a, local.out} : local, size, why);
      if (!product || !accepts(*product, why)) continue;
      EinsumProduct out{*product, swapped, std::nullopt, std::nullopt, std::nullopt};
      if (bits & 1) out.a = transposition(e.a, local.a, size);
      if (bits & 2) out.b = transposition(e.b, local.b, size);
      if (bits & 4) out.out = transposition(local.out, e.out, size);
      return out;
    }
  }
  return std::nullopt;
}

}  // namespace shardrun
