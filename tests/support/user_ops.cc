// Ops that a user might bring.
#include "user_ops.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace shardrun::test {
namespace {

using Infos = std::vector<TensorInfo>;

void wants(bool condition, const char* sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

Infos like_first(const Attributes&, const Infos& in) { return {in.at(0)}; }

UserOp swish() {
  UserOp op;
  op.name = "acme::Swish";
  op.shape = like_first;
  op.kernel = [](const auto& call) {
    const double beta = call.attributes().number("beta", 1.0);
    const auto x = call.in(0);
    const auto y = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (1 + std::exp(-beta * x[i]));
  };
  op.gradient = [](const auto& call) {
    const double beta = call.attributes().number("beta", 1.0);
    const auto x = call.in(0), dy = call.in(2);
    const auto dx = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) {
      const double s = 1 / (1 + std::exp(-beta * x[i]));
      dx[i] = dy[i] * s * (1 + beta * x[i] * (1 - s));
    }
  };
  return op;
}

Infos affine_shape(const Attributes&, const Infos& in) {
  wants(in.size() == 3, "wants x, w and b");
  wants(!in[0].shape.empty() && in[1].shape.size() == 2 && in[2].shape.size() == 1,
        "wants x [.., k], w [k, n] and b [n]");
  wants(in[0].shape.back() == in[1].shape[0] && in[1].shape[1] == in[2].shape[0],
        "sizes of x, w and b do not fit");
  Infos out{in[0]};
  out[0].shape.back() = in[2].shape[0];
  return out;
}

UserOp affine() {
  UserOp op;
  op.name = "acme::Affine";
  op.shape = affine_shape;
  op.kernel = [](const auto& call) {
    const auto x = call.in(0), w = call.in(1), b = call.in(2);
    const auto y = call.out(0);
    const auto k = static_cast<size_t>(call.in_shape(1)[0]);
    const size_t n = b.size();
    for (size_t i = 0; i < y.size(); ++i) {
      double sum = b[i % n];
      for (size_t j = 0; j < k; ++j) sum += x[i / n * k + j] * w[j * n + i % n];
      y[i] = sum;
    }
  };
  op.gradient_op = "acme::Affine_grad";
  op.flops = [](const Attributes&, const Infos& in, const Infos& out) {
    double count = 2.0 * static_cast<double>(in[0].shape.back());
    for (int64_t d : out[0].shape) count *= static_cast<double>(d);
    return count;
  };
  return op;
}

UserOp affine_grad() {
  UserOp op;
  op.name = "acme::Affine_grad";
  op.shape = [](const Attributes& attributes, const Infos& in) {
    wants(in.size() == 5, "wants x, w, b, y and dy");
    Infos own(in.begin(), in.begin() + 3);
    const Infos made = affine_shape(attributes, own);
    wants(in[3].shape == made[0].shape && in[4].shape == made[0].shape,
          "sizes of y and dy do not fit");
    return own;
  };
  op.kernel = [](const auto& call) {
    const auto x = call.in(0), w = call.in(1), dy = call.in(4);
    const auto dx = call.out(0), dw = call.out(1), db = call.out(2);
    const auto k = static_cast<size_t>(call.in_shape(1)[0]);
    const size_t n = db.size();
    const size_t rows = n == 0 ? 0 : dy.size() / n;
    for (size_t i = 0; i < dx.size(); ++i) {
      double sum = 0;
      for (size_t c = 0; c < n; ++c) sum += dy[i / k * n + c] * w[i % k * n + c];
      dx[i] = sum;
    }
    for (size_t i = 0; i < dw.size(); ++i) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += x[r * k + i / n] * dy[r * n + i % n];
      dw[i] = sum;
    }
    for (size_t c = 0; c < n; ++c) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += dy[r * n + c];
      db[c] = sum;
    }
  };
  return op;
}

UserOp row_max() {
  UserOp op;
  op.name = "acme::RowMax";
  op.shape = [](const Attributes&, const Infos& in) {
    wants(in.size() == 1 && !in[0].shape.empty(), "wants one operand of rank 1 or more");
    wants(in[0].shape.back() > 0, "wants rows that are not empty");
    Infos out{in[0]};
    out[0].shape.back() = 1;
    return out;
  };
  op.kernel = [](const auto& call) {
    const auto x = call.in(0);
    const auto y = call.out(0);
    const auto width = static_cast<std::ptrdiff_t>(call.in_shape(0).back());
    for (size_t r = 0; r < y.size(); ++r) {
      const auto row = x.begin() + static_cast<std::ptrdiff_t>(r) * width;
      y[r] = *std::max_element(row, row + width);
    }
  };
  op.gradient = [](const auto& call) {
    const auto x = call.in(0), y = call.in(1), dy = call.in(2);
    const auto dx = call.out(0);
    const size_t width = y.empty() ? 1 : x.size() / y.size();
    for (size_t i = 0; i < x.size(); ++i) dx[i] = x[i] == y[i / width] ? dy[i / width] : 0;
  };
  return op;
}

UserOp lookup() {
  UserOp op;
  op.name = "acme::Lookup";
  op.indices = {{.operand = 1, .of = 0, .dim = 0}};
  op.shape = [](const Attributes&, const Infos& in) {
    wants(in.size() == 2 && in[0].shape.size() == 2 && !is_floating(in[1].type),
          "wants a table [rows, width] and positions");
    Infos out{in[0]};
    out[0].shape = in[1].shape;
    out[0].shape.push_back(in[0].shape[1]);
    return out;
  };
  op.kernel = [](const auto& call) {
    const auto table = call.in(0);
    const auto rows = call.ints(1);
    const auto y = call.out(0);
    const auto width = static_cast<size_t>(call.in_shape(0)[1]);
    for (size_t i = 0; i < y.size(); ++i)
      y[i] = table[static_cast<size_t>(rows[i / width]) * width + i % width];
  };
  op.gradient = [](const auto& call) {
    const auto rows = call.ints(1);
    const auto dy = call.in(3);
    const auto dtable = call.out(0);
    const auto width = static_cast<size_t>(call.in_shape(0)[1]);
    std::fill(dtable.begin(), dtable.end(), 0);
    for (size_t i = 0; i < dy.size(); ++i)
      dtable[static_cast<size_t>(rows[i / width]) * width + i % width] += dy[i];
  };
  return op;
}

UserOp clamp10() {
  UserOp op;
  op.name = "acme::Clamp10";
  op.shape = like_first;
  op.kernel = [](const auto& call) {
    const auto x = call.in(0);
    const auto y = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] > 10 ? 10 : x[i] < -10 ? -10 : x[i];
  };
  op.gradient = [](const auto& call) {
    const auto x = call.in(0), dy = call.in(2);
    const auto dx = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) dx[i] = std::abs(x[i]) < 10 ? dy[i] : 0;
  };
  return op;
}

UserOp halves() {
  UserOp op;
  op.name = "acme::Halves";
  op.shape = [](const Attributes&, const Infos& in) {
    wants(in.size() == 1 && !in[0].shape.empty(), "wants one operand of rank 1 or more");
    wants(in[0].shape.back() % 2 == 0, "wants an even last dim");
    return in;
  };
  const auto swap = [](const OpCall<double>& call, size_t from) {
    const auto x = call.in(from);
    const auto y = call.out(0);
    const auto width = static_cast<size_t>(call.out_shape(0).back());
    for (size_t i = 0; i < y.size(); ++i)
      y[i] = x[i / width * width + (i % width + width / 2) % width];
  };
  op.kernel = [swap](const OpCall<double>& call) { swap(call, 0); };
  op.gradient = [swap](const OpCall<double>& call) { swap(call, 2); };
  return op;
}

UserOp sign() {
  UserOp op;
  op.name = "acme::Sign";
  op.shape = like_first;
  op.kernel = [](const auto& call) {
    const auto x = call.in(0);
    const auto y = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] < 0 ? -1 : 1;
  };
  return op;
}

}  // namespace

std::vector<UserOp> user_ops() {
  return {swish(), affine(), affine_grad(), row_max(), lookup(), clamp10(), halves(), sign()};
}

}  // namespace shardrun::test
