// Tables of a report for people, and the numbers in them.
#pragma once

#include <string>
#include <vector>

namespace shardrun::cli {

/// Columns of fixed widths, so that a row can be printed when it is there.
class Table {
 public:
  struct Column {
    std::string name;
    size_t width;       // at least; a wider name counts
    bool left = false;  // text; numbers go to the right
  };
  explicit Table(std::vector<Column> columns);
  std::string head() const;
  /// A row's end; cells beyond the last column are text behind it.
  std::string row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

std::string number(double value, const char* pattern);  // number(1.25, "%.1f")

/// q = 0.5 is the median. Between two values it interpolates. `values` is not empty.
double quantile(std::vector<double> values, double q);

}  // namespace shardrun::cli
