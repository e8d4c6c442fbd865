// Curves and grids as lists of numbers.
#include "planner/cost/measured_file.h"

#include <algorithm>

namespace shardrun {
namespace {

/// "all_gather, reduce_scatter, all_reduce or all_to_all".
std::string measured_kinds() {
  std::vector<std::string_view> names;
  for (const CollectiveTraits& kind : kCollectives) {
    if (kind.is_measured()) names.push_back(kind.name);
  }
  std::string out;
  for (size_t i = 0; i < names.size(); ++i)
    out += str(i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  return out;
}

std::vector<double> ascending(Fields& fields, const std::string& name) {
  std::vector<double> list = fields.numbers(name);
  if (std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) != list.end())
    fields.wrong(name, fields.get(name), "an ascending list");
  return list;
}

Curve read_curve(Fields& fields) {
  const std::vector<double> sizes = ascending(fields, "sizes"), seconds = fields.numbers("seconds");
  if (sizes.size() != seconds.size())
    fields.wrong("seconds", fields.get("seconds"), "as many numbers as there are sizes");
  Curve curve;
  for (size_t i = 0; i < sizes.size(); ++i) curve.points.emplace_back(sizes[i], seconds[i]);
  return curve;
}

void write_curve(const Curve& curve, Json& out) {
  Json sizes = Json::array(), seconds = Json::array();
  for (const auto& [size, s] : curve.points) {
    sizes.push_back(size);
    seconds.push_back(s);
  }
  out["sizes"] = sizes;
  out["seconds"] = seconds;
}

MeasuredKernels::Key key_of(Fields& fields) {
  DType dtype = DType::f32;
  try {
    dtype = parse_dtype(fields.text("dtype"));
  } catch (const Error& e) {
    fields.wrong("dtype", fields.get("dtype"), e.what());
  }
  return {fields.text("op"), fields.text("variant"), dtype};
}

Json key_json(const MeasuredKernels::Key& key) {
  return {{"op", std::get<0>(key)},
          {"variant", std::get<1>(key)},
          {"dtype", to_string(std::get<2>(key))}};
}

MeasuredKernels read_kernels(Fields fields) {
  MeasuredKernels out;
  fields.get("ranks");
  out.ranks = fields.count("ranks", 1);
  out.threads = fields.count("threads", 1);
  for (Fields grid : fields.objects("grids")) {
    Grid& g = out.grids[key_of(grid)];
    g = {{ascending(grid, "first"), ascending(grid, "second"), ascending(grid, "third")},
         grid.numbers("seconds")};
    if (g.seconds.size() != g.sizes[0].size() * g.sizes[1].size() * g.sizes[2].size())
      grid.wrong("seconds", grid.get("seconds"), "a number for every point of the grid");
    grid.finish();
  }
  for (Fields op : fields.objects("ops")) {
    const MeasuredKernels::Key key = key_of(op);
    const std::string by = op.text("by");
    if (by != "bytes" && by != "flops") op.wrong("by", by, "bytes or flops");
    out.ops[key] = {by == "flops", read_curve(op)};
    op.finish();
  }
  fields.finish();
  return out;
}

MeasuredCollective read_collective(Fields fields) {
  MeasuredCollective out;
  out.backend = fields.text("backend");
  fields.get("ranks");
  out.ranks = fields.count("ranks", 1);
  fields.get("group");
  out.group = fields.count("group", 1);
  if (out.group < 2 || out.group > out.ranks)
    fields.wrong("group", fields.get("group"), "2 or more and at most 'ranks'");
  const std::string kind = fields.text("kind");
  const auto found =
      std::find_if(kCollectives.begin(), kCollectives.end(),
                   [&](const CollectiveTraits& k) { return k.is_measured() && k.name == kind; });
  if (found == kCollectives.end()) fields.wrong("kind", kind, measured_kinds().c_str());
  out.kind = found->kind;
  out.curve = read_curve(fields);
  fields.finish();
  return out;
}

}  // namespace

Measured read_measured(Fields fields) {
  Measured out;
  for (const Fields& kernels : fields.objects("kernels")) {
    out.kernels.push_back(read_kernels(kernels));
    const size_t last = out.kernels.size() - 1;
    const auto order = [&](size_t i) {
      return std::pair(out.kernels[i].ranks, out.kernels[i].threads);
    };
    if (last > 0 && order(last) <= order(last - 1))
      fields.wrong("kernels", fields.get("kernels"), "a list by ascending 'ranks' and 'threads'");
  }
  for (const Fields& collective : fields.objects("collectives"))
    out.collectives.push_back(read_collective(collective));
  fields.finish();
  return out;
}

Json measured_json(const Measured& measured) {
  Json kernels = Json::array(), collectives = Json::array();
  for (const MeasuredKernels& k : measured.kernels) {
    Json grids = Json::array(), ops = Json::array();
    for (const auto& [key, grid] : k.grids) {
      Json line = key_json(key);
      line["first"] = grid.sizes[0];
      line["second"] = grid.sizes[1];
      line["third"] = grid.sizes[2];
      line["seconds"] = grid.seconds;
      grids.push_back(line);
    }
    for (const auto& [key, op] : k.ops) {
      Json line = key_json(key);
      line["by"] = op.by_flops ? "flops" : "bytes";
      write_curve(op.curve, line);
      ops.push_back(line);
    }
    kernels.push_back({{"ranks", k.ranks}, {"threads", k.threads}, {"grids", grids}, {"ops", ops}});
  }
  for (const MeasuredCollective& c : measured.collectives) {
    Json line = {{"backend", c.backend},
                 {"ranks", c.ranks},
                 {"group", c.group},
                 {"kind", to_string(c.kind)}};
    write_curve(c.curve, line);
    collectives.push_back(line);
  }
  return {{"kernels", kernels}, {"collectives", collectives}};
}

}  // namespace shardrun
