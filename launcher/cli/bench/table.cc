// Padding.
#include "bench/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace shardrun::cli {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.width = std::max(column.width, column.name.size());
}

std::string Table::head() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  return row(names);
}

std::string Table::row(const std::vector<std::string>& cells) const {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) out += "  ";
    const size_t width = i < columns_.size() ? columns_[i].width : 0;
    const std::string padding(width - std::min(width, cells[i].size()), ' ');
    out += i < columns_.size() && columns_[i].left ? cells[i] + padding : padding + cells[i];
  }
  return out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
}

std::string number(double value, const char* pattern) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

}  // namespace shardrun::cli
