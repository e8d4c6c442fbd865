// Where a step's time goes, as a table.
#include <algorithm>
#include <map>

#include "explain/names.h"
#include "explain/text.h"
#include "profile/profile.h"

namespace shardrun {
namespace {

constexpr size_t kMostExpensive = 40;  // rows of calls

/// Sums over the recorded steps.
struct Row {
  std::string name;
  int64_t calls = 0;
  double seconds = 0, predicted = 0, bytes = 0, flops = 0;

  void add(const Row& other) {
    calls += other.calls;
    seconds += other.seconds;
    predicted += other.predicted;
    bytes += other.bytes;
    flops += other.flops;
  }
};

std::string number(double value, int digits) {
  return format(("%." + std::to_string(digits) + "f").c_str(), value);
}

class Table {
 public:
  Table(double steps, double whole) : steps_(steps), whole_(whole) {}

  void head(const std::string& what) {
    text_ += right("ms", 9) + right("predicted", 11) + right("ratio", 7) + right("MB", 10) +
             right("GFLOP/s", 9) + right("GB/s", 8) + right("fraction", 9) + " " + what + "\n";
  }

  void row(const Row& r, const std::string& name) {
    const double ms = r.seconds / steps_ * 1e3, predicted = r.predicted / steps_ * 1e3;
    const auto rate = [&](double amount, size_t width) {
      return right(amount > 0 && r.seconds > 0 ? number(amount / r.seconds / 1e9, 1) : "-", width);
    };
    std::string figures = right(number(ms, 3), 9);
    figures += right(predicted > 0 ? number(predicted, 3) : "-", 11);
    figures += right(predicted > 0 ? number(ms / predicted, 2) : "-", 7);
    figures += right(r.bytes > 0 ? number(r.bytes / steps_ / 1e6, 2) : "-", 10);
    figures += rate(r.flops, 9) + rate(r.bytes, 8);
    figures += right(percent(r.seconds, whole_), 9) + " ";
    text_ += wrapped(figures, name);
  }

  /// The most expensive first, those beyond `most` in one row.
  void rows(std::vector<Row> all, size_t most) {
    std::stable_sort(all.begin(), all.end(),
                     [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
    Row rest;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= most) {
        rest.add(all[i]);
        continue;
      }
      const double calls = static_cast<double>(all[i].calls) / steps_;
      row(all[i], str(format("%.4g", calls), " x ", all[i].name));
    }
    if (all.size() > most)
      row(rest, str(all.size() - most, all.size() - most == 1 ? " other" : " others"));
  }

  void line(const std::string& text) { text_ += text + "\n"; }
  std::string take() { return std::move(text_); }

 private:
  double steps_, whole_;
  std::string text_;
};

/// Of "f32[4, 64] [{data}, -]" only the types, which say what the call is.
std::string types(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts)
    out += (out.empty() ? "" : ", ") + part.substr(0, part.find(']') + 1);
  return out;
}

std::vector<Row> values(const std::map<std::string, Row>& rows) {
  std::vector<Row> out;
  for (const auto& [key, row] : rows) out.push_back(row);
  return out;
}

}  // namespace

std::string profile_table(const RankProfile& profile) {
  std::vector<Timeline::Run> runs = profile.steps;
  if (runs.size() > 1 && runs[0].number == 1) runs.erase(runs.begin());  // it warms up
  if (runs.empty()) return "";
  std::map<std::string, Row> ops, calls, host;
  Row whole, inside;
  for (const Timeline::Run& run : runs) {
    whole.seconds += run.end - run.begin;
    for (const Timeline::Event& e : run.events) {
      if (const std::string name = host_work(e.step); !name.empty()) {
        const Row row{name, 1, e.end - e.begin};
        host[name].name = name;
        host[name].add(row);
        inside.add(row);
        continue;
      }
      for (size_t s = e.step; s < e.step + e.count; ++s) {
        const StepFacts& f = profile.training[s];
        const double seconds = share_of(s, e, profile.training) * (e.end - e.begin);
        Row row{"", 1, seconds, f.predicted, f.bytes, f.flops};
        const std::string name =
            str(folded(f.collective ? f.source : f.name), ": ", f.op, " ", f.kernel,
                f.kernel.empty() ? "" : " ", types(f.in), " -> ", types(f.out));
        calls[name].name = name;
        calls[name].add(row);
        inside.add(row);
        if (f.collective && s > e.step) row.calls = 0;  // it is in the first one's call
        ops[f.op].name = f.op + (f.collective ? " (MB sent)" : "");
        ops[f.op].add(row);
        whole.predicted += f.predicted;
      }
    }
  }
  const auto steps = static_cast<double>(runs.size());
  Row outside{"", 1, whole.seconds - inside.seconds};
  whole.bytes = inside.bytes;
  whole.flops = inside.flops;
  Table table(steps, whole.seconds);
  table.line(str("profile of rank ", profile.rank, ", mean of ",
                 runs.size() == 1 ? str("step ", runs[0].number)
                                  : str("steps ", runs.front().number, " to ", runs.back().number),
                 ":"));
  table.head("op");
  table.rows(values(ops), ops.size());
  table.rows(values(host), host.size());
  table.row(outside, kOutside);
  table.row(whole, "the step");
  table.line("");
  table.head(str("the most expensive calls; the same in several layers on one line"));
  table.rows(values(calls), kMostExpensive);
  return table.take();
}

}  // namespace shardrun
