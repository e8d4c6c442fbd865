// FactoredProblem: a Problem whose edges look at few properties of their nodes' strategies.
#pragma once

#include <memory>

#include "planner/solver/problem.h"

namespace shardrun {

/// A product may have hundreds of strategies, but an edge sees of them only the Sharding of one
/// operand or result, and hundreds of edges carry values of the same type. So an edge names a row
/// for each strategy of one node and a column for each of the other, in a matrix that edges share.
/// With every strategy on three mesh axes the dense Problem of a GPT's step is a gigabyte, this one
/// a few megabytes.
struct FactoredProblem {
  struct Matrix {
    size_t rows = 0, columns = 0;
    std::vector<float> cost, transposed;  // row-major and column-major; infinity forbids
    bool forbids = true;                  // may a row that an edge names hold an infinity?
    Matrix(size_t r, size_t c)
        : rows(r),
          columns(c),
          cost(r * c, std::numeric_limits<float>::infinity()),
          transposed(cost) {}
    void set(size_t row, size_t column, double value) {
      cost[row * columns + column] = transposed[column * rows + row] = static_cast<float>(value);
    }
  };
  struct Node {
    std::string name;
    std::vector<double> cost;  // per strategy, as Problem::Node
    std::vector<Problem::Claim> claims;
    double place = 0;  // where it stands in the graph; message passing goes in this order
  };
  struct Edge {
    int from = 0, to = 0;
    double scale = 1;  // times the matrix
    std::shared_ptr<const Matrix> matrix;
    std::vector<uint16_t> row, column;  // by from's and to's strategy
    double cost(size_t a, size_t b) const {
      return scale * static_cast<double>(matrix->cost[row[a] * matrix->columns + column[b]]);
    }
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

/// The summed costs of the choices, memory aside.
double raw_cost(const FactoredProblem& problem, const Solution& solution);

/// Bytes that the claims hold, per time up to the last one.
std::vector<int64_t> bytes_over_time(const FactoredProblem& problem, const Solution& solution);
/// The most of them at one time.
int64_t peak_bytes(const FactoredProblem& problem, const Solution& solution);
/// No solution has a lower peak: each claim alone has the fewest bytes that it can have.
int64_t least_peak_bytes(const FactoredProblem& problem);

Kept all_kept(const FactoredProblem& problem);
/// Removes strategies that are forbidden, or that all of some neighbour's forbid. False if a node
/// has none left.
bool prune_impossible(const FactoredProblem& problem, Kept& kept);
/// As of a Problem (planner/solver/problem.h); edges go on sharing matrices.
FactoredProblem restricted(const FactoredProblem& problem, const Kept& kept);
/// The same with edges written out, parallel ones added up, without a memory limit.
Problem dense(const FactoredProblem& problem);

}  // namespace shardrun
