// Axes, ticks, lines, a legend.
#include "bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "shardrun/shardrun.h"

namespace shardrun::cli {
namespace {

constexpr double kPlotWidth = 840, kPlotHeight = 440;
constexpr double kLeft = 80, kRight = 560, kTop = 48, kBottom = 380;  // of the axes
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000"};  // Okabe and Ito's
constexpr double kCross = 5;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

/// 1, 2 or 5 times a power of ten: about five of them make `most`.
double tick_step(double most) {
  const double rough = most / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= rough) return step * power;
  }
  return 10 * power;
}

class Writer {
 public:
  explicit Writer(const Plot& plot) : plot_(plot) {
    for (const Plot::Line& line : plot.lines) {
      for (const Plot::Point& p : line.points) {
        xs_.insert(p.x);
        most_ = std::max({most_, p.y, p.high});
      }
      xs_.insert(line.missing.begin(), line.missing.end());
    }
    if (most_ <= 0) most_ = 1;
    const double step = tick_step(most_);
    for (double y = 0; y < most_ + step; y += step) ys_.push_back(y);
    most_ = ys_.back();
  }

  std::string write() {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(kPlotWidth) +
           "\" height=\"" + number(kPlotHeight) + "\" viewBox=\"0 0 " + number(kPlotWidth) + " " +
           number(kPlotHeight) +
           "\" font-family=\"sans-serif\" font-size=\"13\">\n"
           "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    text((kLeft + kRight) / 2, 26, plot_.title, "middle", "font-size=\"15\"");
    axes();
    size_t at = 0;
    for (const Plot::Line& line : plot_.lines) draw(line, at++);
    legend_of_crosses(at);
    return out_ + "</svg>\n";
  }

 private:
  double x_of(double x) const {
    const double first = std::log2(*xs_.begin()), last = std::log2(*xs_.rbegin());
    if (first == last) return (kLeft + kRight) / 2;
    const double margin = 24;
    return kLeft + margin + (std::log2(x) - first) / (last - first) * (kRight - kLeft - 2 * margin);
  }
  double y_of(double y) const { return kBottom - y / most_ * (kBottom - kTop); }

  void text(double x, double y, const std::string& what, const char* anchor,
            const std::string& more = "") {
    out_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor +
            "\" " + more + ">" + escaped(what) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, const std::string& style) {
    out_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
            "\" y2=\"" + number(y2) + "\" " + style + "/>\n";
  }
  void cross(double x, double y) {
    const std::string style = "stroke=\"#d00000\" stroke-width=\"2.5\"";
    line(x - kCross, y - kCross, x + kCross, y + kCross, style);
    line(x - kCross, y + kCross, x + kCross, y - kCross, style);
  }

  void axes() {
    for (const double y : ys_) {
      line(kLeft, y_of(y), kRight, y_of(y), y > 0 ? "stroke=\"#dddddd\"" : "stroke=\"black\"");
      text(kLeft - 8, y_of(y) + 4, number(y), "end");
    }
    line(kLeft, kTop, kLeft, kBottom, "stroke=\"black\"");
    for (const double x : xs_) {
      line(x_of(x), kBottom, x_of(x), kBottom + 5, "stroke=\"black\"");
      text(x_of(x), kBottom + 20, number(x), "middle");
    }
    text((kLeft + kRight) / 2, kBottom + 44, plot_.x_label, "middle");
    const double middle = (kTop + kBottom) / 2;
    text(22, middle, plot_.y_label, "middle",
         "transform=\"rotate(-90 22 " + number(middle) + ")\"");
  }

  void draw(const Plot::Line& l, size_t at) {
    const std::string colour = l.dashed ? "#888888" : kColours[at % std::size(kColours)];
    const std::string stroke = "stroke=\"" + colour + "\" stroke-width=\"2\"" +
                               (l.dashed ? " stroke-dasharray=\"6 5\"" : "");
    std::string points;
    for (const Plot::Point& p : l.points)
      points += number(x_of(p.x)) + "," + number(y_of(p.y)) + " ";
    if (l.points.size() > 1)
      out_ += "<polyline fill=\"none\" " + stroke + " points=\"" + points + "\"/>\n";
    for (const Plot::Point& p : l.points) {
      if (l.dashed) continue;
      out_ += "<circle cx=\"" + number(x_of(p.x)) + "\" cy=\"" + number(y_of(p.y)) +
              "\" r=\"3.5\" fill=\"" + colour + "\"/>\n";
      if (p.low < p.high)
        line(x_of(p.x), y_of(p.low), x_of(p.x), y_of(p.high), "stroke=\"" + colour + "\"");
    }
    for (const double x : l.missing) {  // side by side, in the line's place of the legend
      const double right = x_of(x) + 14 * (static_cast<double>(at) -
                                           0.5 * static_cast<double>(plot_.lines.size() - 1));
      cross(right, kBottom - 10);
      line(right, kBottom - 2, right, kBottom + 3, stroke);
      crosses_ = true;
    }
    const double y = legend_y(at);
    line(kRight + 18, y, kRight + 44, y, stroke);
    text(kRight + 50, y + 4, l.name, "start");
  }

  static double legend_y(size_t at) { return kTop + 10 + 20 * static_cast<double>(at); }
  void legend_of_crosses(size_t at) {
    if (!crosses_) return;
    cross(kRight + 31, legend_y(at));
    text(kRight + 50, legend_y(at) + 4, plot_.missing_label, "start");
  }

  const Plot& plot_;
  std::set<double> xs_;
  std::vector<double> ys_;  // ticks
  double most_ = 0;
  bool crosses_ = false;
  std::string out_;
};

}  // namespace

void check_plot(const std::string& path) {
  const std::string kind = std::filesystem::path(path).extension();
  if (!kind.empty() && kind != ".svg")
    throw Failure(Failure::Kind::call, "--plot " + path + ": the plot is an SVG; name it .svg");
}

std::string svg(const Plot& plot) { return Writer(plot).write(); }

}  // namespace shardrun::cli
