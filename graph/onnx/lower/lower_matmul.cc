// Lowering of products: MatMul, Gemm, Einsum.
#include <algorithm>
#include <map>
#include <optional>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

void matmul(NodeContext& c) { c.out(c.b.matmul(c.in(0), c.in(1))); }

/// alpha * A' B' + beta * C; the transposes go into the equation, so that a tied weight stays one
/// value.
void gemm(NodeContext& c) {
  Builder& b = c.b;
  SR_REQUIRE(b.rank(c.in(0)) == 2 && b.rank(c.in(1)) == 2, invalid_input,
             "wants two matrices, got ", b.type(c.in(0)), " and ", b.type(c.in(1)));
  const std::string a_letters = c.attr_i("transA", 0) != 0 ? "km" : "mk";
  const std::string b_letters = c.attr_i("transB", 0) != 0 ? "nk" : "kn";
  V y = b.add("matmul", {c.in(0), c.in(1)}, {{"equation", a_letters + "," + b_letters + "->mn"}});
  const double alpha = c.attr_f("alpha", 1), beta = c.attr_f("beta", 1);
  if (alpha != 1) y = b.with("mul", y, alpha);
  if (c.has(2) && beta != 0)
    y = b.add("add", {y, beta == 1 ? c.in(2) : b.with("mul", c.in(2), beta)});
  c.out(y);
}

struct Term {
  std::string letters;
  V value;
};

/// Sums out the letters that no other term and not the result uses.
Term reduce_private(NodeContext& c, Term term, const std::string& others) {
  std::vector<int64_t> axes;
  std::string kept;
  for (size_t d = 0; d < term.letters.size(); ++d) {
    if (others.find(term.letters[d]) == std::string::npos)
      axes.push_back(static_cast<int64_t>(d));
    else
      kept += term.letters[d];
  }
  return {kept, c.b.sum(term.value, axes, false)};
}

/// The first letter that stands twice in a term's, and where; none where all are distinct.
std::optional<std::pair<size_t, size_t>> repeated(const std::string& letters) {
  for (size_t first = 0; first < letters.size(); ++first) {
    const size_t second = letters.find(letters[first], first + 1);
    if (second != std::string::npos) return {{first, second}};
  }
  return std::nullopt;
}

/// The diagonals along repeated letters, each of which stands once then.
Term diagonals(NodeContext& c, Term term) {
  Builder& b = c.b;
  while (const auto pair = repeated(term.letters)) {
    const auto [first, second] = *pair;
    const Shape& shape = b.shape(term.value);
    const int64_t n = shape[first];
    SR_REQUIRE(shape[second] == n, invalid_input, "a letter that an operand has twice, '",
               term.letters[first], "', is of the sizes ", n, " and ", shape[second]);
    std::vector<int64_t> perm;
    Shape flat;
    std::string letters;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d == first || d == second) continue;
      perm.push_back(static_cast<int64_t>(d));
      flat.push_back(shape[d]);
      letters += term.letters[d];
    }
    perm.push_back(static_cast<int64_t>(first));
    perm.push_back(static_cast<int64_t>(second));
    flat.push_back(element_count({n, n}));
    letters += term.letters[first];
    // Of a matrix's n * n elements every (n + 1)-th.
    Shape starts(flat.size(), 0), steps(flat.size(), 1);
    steps.back() = n + 1;
    const V rows = b.reshape(b.transpose(term.value, perm), flat);
    term = {letters,
            b.add("slice", {rows}, {{"starts", starts}, {"ends", flat}, {"steps", steps}})};
  }
  return term;
}

/// The product of two terms, with the letters of `kept` that are theirs, in that order.
Term product(NodeContext& c, const Term& first, const Term& second, const std::string& kept) {
  Builder& b = c.b;
  Term terms[2] = {first, second};
  // A size of 1 against a larger one broadcasts: the letter is dropped by a reshape.
  for (int i = 0; i < 2; ++i) {
    Term& mine = terms[i];
    const Term& other = terms[1 - i];
    Shape shape;
    std::string letters;
    for (size_t d = 0; d < mine.letters.size(); ++d) {
      const int64_t n = b.shape(mine.value)[d];
      const size_t at = other.letters.find(mine.letters[d]);
      if (n == 1 && at != std::string::npos && b.shape(other.value)[at] != 1) continue;
      letters += mine.letters[d];
      shape.push_back(n);
    }
    mine = {letters, b.reshape(mine.value, shape)};
  }
  terms[0] = reduce_private(c, terms[0], terms[1].letters + kept);
  terms[1] = reduce_private(c, terms[1], terms[0].letters + kept);
  const std::string equation = terms[0].letters + "," + terms[1].letters + "->" + kept;
  return {kept, b.add("matmul", {terms[0].value, terms[1].value}, {{"equation", equation}})};
}

/// Multiplies two of more than two terms with each other, always those whose product has the fewest
/// elements, until two are left.
void multiply_smallest(NodeContext& c, std::vector<Term>& terms, const std::string& out) {
  std::map<char, int64_t> sizes;
  for (const Term& term : terms) {
    for (size_t d = 0; d < term.letters.size(); ++d)
      sizes[term.letters[d]] = std::max(sizes[term.letters[d]], c.b.shape(term.value)[d]);
  }
  while (terms.size() > 2) {
    size_t first = 0, second = 1;
    std::string best;
    double least = 0;
    for (size_t i = 0; i < terms.size(); ++i) {
      for (size_t j = i + 1; j < terms.size(); ++j) {
        std::string others = out, kept;
        for (size_t k = 0; k < terms.size(); ++k) {
          if (k != i && k != j) others += terms[k].letters;
        }
        double elements = 1;
        for (char letter : terms[i].letters + terms[j].letters) {
          if (others.find(letter) == std::string::npos || kept.find(letter) != std::string::npos)
            continue;
          kept += letter;
          elements *= static_cast<double>(sizes[letter]);
        }
        if ((i > 0 || j > 1) && elements >= least) continue;
        first = i, second = j, best = kept, least = elements;
      }
    }
    terms[first] = product(c, terms[first], terms[second], best);
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(second));
  }
}

/// Ellipses are spelt out as letters, diagonals taken first.
void einsum(NodeContext& c) {
  Builder& b = c.b;
  std::string equation = c.attr_s("equation", "");
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  std::string left = equation.substr(0, arrow);
  std::string out = arrow == std::string::npos ? "" : equation.substr(arrow + 2);
  constexpr size_t kMostTerms = 32;
  std::vector<Term> terms;
  for (size_t at = 0; at <= left.size();) {
    const size_t comma = std::min(left.find(',', at), left.size());
    terms.push_back({left.substr(at, comma - at), kNone});
    at = comma + 1;
  }
  SR_REQUIRE(terms.size() <= kMostTerms, unsupported, "equation of ", terms.size(),
             " operands, wanted at most ", kMostTerms);
  SR_REQUIRE(terms.size() == c.input_count(), invalid_input, "equation '", equation, "' has ",
             terms.size(), " operands, the node ", c.input_count(), " inputs");
  // An ellipsis of n dims becomes the last n of the letters that the equation does not use, so that
  // they align from the right.
  std::string spare, widest;
  for (char letter = 'A'; letter <= 'z';
       letter = letter == 'Z' ? 'a' : static_cast<char>(letter + 1)) {
    if (equation.find(letter) == std::string::npos) spare += letter;
  }
  std::map<char, int> seen;
  for (size_t i = 0; i < terms.size(); ++i) {
    Term& term = terms[i];
    term.value = c.in(i);
    const size_t dots = term.letters.find("...");
    if (dots != std::string::npos) {
      const int64_t n = b.rank(term.value) - static_cast<int64_t>(term.letters.size()) + 3;
      SR_REQUIRE(n >= 0 && n <= static_cast<int64_t>(spare.size()), invalid_input, "equation '",
                 equation, "' does not fit ", b.type(term.value));
      const std::string some = spare.substr(spare.size() - static_cast<size_t>(n));
      term.letters.replace(dots, 3, some);
      if (some.size() > widest.size()) widest = some;
    }
    SR_REQUIRE(static_cast<int64_t>(term.letters.size()) == b.rank(term.value), invalid_input,
               "equation '", equation, "' does not fit ", b.type(term.value));
    for (char letter : term.letters) ++seen[letter];
    term = diagonals(c, term);
  }
  if (const size_t dots = out.find("..."); dots != std::string::npos) out.replace(dots, 3, widest);
  if (arrow == std::string::npos) {
    out = widest;
    for (const auto& [letter, times] : seen) {
      if (times == 1 && widest.find(letter) == std::string::npos) out += letter;
    }
  }
  if (terms.size() >= 2) {
    multiply_smallest(c, terms, out);
    return c.out(product(c, terms[0], terms[1], out).value);
  }
  const Term term = reduce_private(c, terms[0], out);
  std::vector<int64_t> perm;
  for (char letter : out) {
    const size_t at = term.letters.find(letter);
    SR_REQUIRE(at != std::string::npos, invalid_input, "equation '", equation, "': '", letter,
               "' is in no operand");
    perm.push_back(static_cast<int64_t>(at));
  }
  c.out(b.transpose(term.value, perm));
}

constexpr Lowering kMatmulLowerings[] = {
    {"MatMul", 1, matmul}, {"Gemm", 7, gemm}, {"Einsum", 12, einsum}};

}  // namespace

std::span<const Lowering> matmul_lowerings() { return kMatmulLowerings; }

}  // namespace shardrun::importer
