// A line chart as SVG.
#pragma once

#include <string>
#include <vector>

namespace shardrun::cli {

struct Plot {
  struct Point {
    double x = 0, y = 0;
    double low = 0, high = 0;  // a bar from one to the other, if they differ
  };
  struct Line {
    std::string name;
    std::vector<Point> points;    // by x
    std::vector<double> missing;  // x of what could not be: a red cross at the bottom
    bool dashed = false;          // of what was not measured
  };
  std::string title, x_label, y_label;  // labels with their units
  std::string missing_label;            // what a cross says, in the legend
  std::vector<Line> lines;
};

/// Throws Failure(call) unless a file of that name, if any, may be an SVG.
void check_plot(const std::string& path);

/// x is on a scale of twos, y from 0. Each x that occurs is a tick.
std::string svg(const Plot& plot);

}  // namespace shardrun::cli
