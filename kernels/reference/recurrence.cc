// Reference kernels of LSTM, step by step in f64.
#include <cmath>

#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Sizes and places of [steps, samples, 4, hidden] and [steps, samples, hidden].
struct Steps {
  int64_t steps, samples, hidden;
  bool reverse;

  Steps(const Node& node, const Shape& gates)
      : steps(gates[0]),
        samples(gates[1]),
        hidden(gates[3]),
        reverse(node.attrs.i("reverse", 0) != 0) {}

  /// The n-th step that is taken, and the one before it (-1: the first state).
  int64_t step(int64_t n) const { return reverse ? steps - 1 - n : n; }
  int64_t before(int64_t n) const { return n == 0 ? -1 : step(n - 1); }
  size_t state(int64_t step, int64_t b, int64_t h) const {
    return static_cast<size_t>((step * samples + b) * hidden + h);
  }
  size_t gate(int64_t step, int64_t b, int64_t k, int64_t h) const {
    return static_cast<size_t>(((step * samples + b) * 4 + k) * hidden + h);
  }
  size_t weight(int64_t k, int64_t h, int64_t i) const {
    return static_cast<size_t>((k * hidden + h) * hidden + i);
  }
};

void lstm(const Node& node, const KernelArgs& args) {
  const Steps at(node, args.in[0].type.shape);
  Doubles gates = load(args.in[0]);
  const Doubles r = load(args.in[1]), h0 = load(args.in[2]), c0 = load(args.in[3]);
  Doubles h(static_cast<size_t>(args.out[0].count())), c = h;
  for (int64_t n = 0; n < at.steps; ++n) {
    const int64_t t = at.step(n), before = at.before(n);
    for (int64_t b = 0; b < at.samples; ++b) {
      const double* last =
          before < 0 ? h0.data() + at.state(0, b, 0) : h.data() + at.state(before, b, 0);
      for (int64_t k = 0; k < 4; ++k) {
        for (int64_t j = 0; j < at.hidden; ++j) {
          double& z = gates[at.gate(t, b, k, j)];
          for (int64_t i = 0; i < at.hidden; ++i) z += r[at.weight(k, j, i)] * last[i];
          z = k < 3 ? sigmoid(z) : std::tanh(z);
        }
      }
      for (int64_t j = 0; j < at.hidden; ++j) {
        const double held = before < 0 ? c0[at.state(0, b, j)] : c[at.state(before, b, j)];
        const auto gate = [&](int64_t k) { return gates[at.gate(t, b, k, j)]; };
        const double cell = gate(2) * held + gate(0) * gate(3);
        c[at.state(t, b, j)] = cell;
        h[at.state(t, b, j)] = gate(1) * std::tanh(cell);
      }
    }
  }
  store(h, args.out[0]);
  store(c, args.out[1]);
  store(gates, args.out[2]);
}

/// From the last step that was taken to the first.
void lstm_grad(const Node& node, const KernelArgs& args) {
  const Steps at(node, args.in[2].type.shape);
  const Doubles dh = load(args.in[0]), dc = load(args.in[1]), gates = load(args.in[2]),
                c = load(args.in[3]), r = load(args.in[4]), c0 = load(args.in[5]);
  Doubles dx(gates.size());
  Doubles to_h(static_cast<size_t>(args.out[1].count())), to_c = to_h;  // from the step behind
  for (int64_t n = at.steps - 1; n >= 0; --n) {
    const int64_t t = at.step(n), before = at.before(n);
    for (int64_t b = 0; b < at.samples; ++b) {
      for (int64_t j = 0; j < at.hidden; ++j) {
        const size_t here = at.state(t, b, j), one = at.state(0, b, j);
        const auto gate = [&](int64_t k) { return gates[at.gate(t, b, k, j)]; };
        const double i = gate(0), o = gate(1), f = gate(2), g = gate(3), cell = std::tanh(c[here]);
        const double held = before < 0 ? c0[one] : c[at.state(before, b, j)];
        const double d_h = dh[here] + to_h[one];
        const double d_c = dc[here] + to_c[one] + d_h * o * (1 - cell * cell);
        dx[at.gate(t, b, 0, j)] = d_c * g * i * (1 - i);
        dx[at.gate(t, b, 1, j)] = d_h * cell * o * (1 - o);
        dx[at.gate(t, b, 2, j)] = d_c * held * f * (1 - f);
        dx[at.gate(t, b, 3, j)] = d_c * i * (1 - g * g);
        to_c[one] = d_c * f;
      }
      for (int64_t i = 0; i < at.hidden; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < 4; ++k) {
          for (int64_t j = 0; j < at.hidden; ++j)
            sum += dx[at.gate(t, b, k, j)] * r[at.weight(k, j, i)];
        }
        to_h[at.state(0, b, i)] = sum;
      }
    }
  }
  store(dx, args.out[0]);
  store(to_h, args.out[1]);
  store(to_c, args.out[2]);
}

}  // namespace

KernelList recurrence_kernels() { return {plain("lstm", lstm), plain("lstm_grad", lstm_grad)}; }

}  // namespace shardrun::reference
