// An imported model with what was said of it.
#pragma once

#include <algorithm>
#include <string>

#include "graph/onnx/import.h"

namespace shardrun::test {

struct Imported {
  Graph graph;
  ImportReport report;

  /// How many notes hold this text.
  int notes(const std::string& text) const {
    return static_cast<int>(std::count_if(
        report.notes.begin(), report.notes.end(),
        [&](const std::string& note) { return note.find(text) != std::string::npos; }));
  }
  /// The parameter or constant of that name; nullptr: none.
  const ImportReport::Parameter* find(const std::string& name) const {
    for (const auto* list : {&report.parameters, &report.constants}) {
      for (const ImportReport::Parameter& p : *list) {
        if (p.name == name) return &p;
      }
    }
    return nullptr;
  }
  int parameters() const { return static_cast<int>(graph.with_role(Role::parameter).size()); }
};

}  // namespace shardrun::test
