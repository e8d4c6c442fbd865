// A two-operand einsum as a product of matrices, for any backend: its letters fall into batch, m, n
// and k. Where each group is one strided dim in every operand nothing has to be moved; else
// operands or the result are transposed, as few as can be.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "graph/ops/einsum.h"

namespace shardrun {

/// Sizes of an einsum's letters.
using LetterSizes = std::map<char, int64_t>;

/// Letters of `term` that are in (or, if !inside, not in) `other`, in the order of `term`.
std::string common_letters(const std::string& term, const std::string& other, bool inside);
Shape dims_of(const std::string& term, const LetterSizes& size);
/// Strides by letter of a dense operand.
std::map<char, int64_t> strides_of(const std::string& term, const LetterSizes& size);

struct MergedLetters {
  int64_t size = 1, stride = 1;
};
/// A group of letters as one strided dim, or nullopt: "bi" of "bij" [2,3,5] has size 6 and
/// stride 5.
std::optional<MergedLetters> merge_letters(const std::string& group,
                                           const std::map<char, int64_t>& stride,
                                           const LetterSizes& size);

/// c [batch…, m, n] = a [batch…, m, k] b [batch…, k, n], with strides in elements. Of rows and
/// columns of c the latter lie dense. A dim of 1 has the stride that makes the matrix look dense.
struct StridedProduct {
  Shape a, b, c;
  Shape a_strides, b_strides, c_strides;
};

/// "bij,jk->bik" of [2,3,5] and [5,7] is [6,5] by [5,7].
struct EinsumProduct {
  StridedProduct product;
  bool swapped = false;  // b is the left operand
  /// Transpositions of a and b before the product, and of the result behind it, as dims and their
  /// order.
  struct Transposition {
    Shape from;
    std::vector<int64_t> perm;
  };
  std::optional<Transposition> a, b, out;
};

/// The einsum without letters of size 1, which change nothing.
Einsum without_ones(const Einsum& whole, const LetterSizes& size);

/// The first form that `accepts` takes; it says why not in the string. No size may be 0. Nullopt,
/// with the last reason in *why: none, or no product at all but one of elements.
std::optional<EinsumProduct> plan_product(
    const Einsum& einsum, const LetterSizes& size,
    const std::function<bool(const StridedProduct&, std::string*)>& accepts, std::string* why);

}  // namespace shardrun
