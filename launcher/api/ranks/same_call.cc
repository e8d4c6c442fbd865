// Rank 0's arguments go to all; who differs says how, and all hear the first of them.
#include "ranks/same_call.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

std::string text_of(const nlohmann::json& object, const std::string& field) {
  if (!object.contains(field)) return "nothing";
  const nlohmann::json& value = object[field];
  return value.is_string() ? "'" + value.get<std::string>() + "'" : value.dump();
}

/// "" if there is none.
std::string difference(int rank, const nlohmann::json& own, const nlohmann::json& first) {
  for (const nlohmann::json* object : {&own, &first}) {
    for (const auto& [field, value] : object->items()) {
      if (own.contains(field) && first.contains(field) && own[field] == first[field]) continue;
      return str("rank ", rank, " has ", field, " ", text_of(own, field), ", rank 0 has ",
                 text_of(first, field), "; give every rank the same");
    }
  }
  return "";
}

}  // namespace

void require_same(Communicator& ranks, const std::string& call, const nlohmann::json& given) {
  if (ranks.size() == 1) return;
  std::string text = nlohmann::json{{"call", call}, {"arguments", given}}.dump();
  const nlohmann::json own = nlohmann::json::parse(text);  // numbers as the others get them
  broadcast_text(ranks, text, 0);
  const nlohmann::json first = nlohmann::json::parse(text, nullptr, false);
  if (!first.is_object()) {
    fail(ErrorKind::invalid_input, call, ": rank 0 calls something else than rank ", ranks.rank(),
         "; run the same on every rank");
  }
  std::string complaint;
  if (first["call"] == call) {
    complaint = difference(ranks.rank(), own["arguments"], first["arguments"]);
    if (!complaint.empty()) complaint = call + ": " + complaint;
  } else {
    complaint = str("rank ", ranks.rank(), " calls ", call, ", rank 0 calls ",
                    first["call"].get<std::string>(), "; run the same on every rank");
  }
  const int64_t differs = complaint.empty() ? 0 : 1;
  std::vector<int64_t> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(&differs, all.data(), std::vector<int64_t>(all.size(), 1), DType::i64);
  const auto who = std::find(all.begin(), all.end(), 1);
  if (who == all.end()) return;
  broadcast_text(ranks, complaint, static_cast<int>(who - all.begin()));
  throw Failure(Failure::Kind::call, complaint, true);
}

void require_same(World& world, const std::string& call, const nlohmann::json& given) {
  if (world.impl().mpi) at_boundary([&] { require_same(*world.impl().mpi, call, given); });
}

}  // namespace shardrun
