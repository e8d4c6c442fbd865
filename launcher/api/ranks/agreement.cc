// Texts of all ranks, and who needs them.
#include "ranks/agreement.h"

#include <algorithm>
#include <vector>

namespace shardrun {
namespace {

/// By rank. Collective.
std::vector<std::string> texts_of_all(Communicator& host, const std::string& mine) {
  const auto ranks = static_cast<size_t>(host.size());
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(ranks);
  host.all_gather(&length, lengths.data(), std::vector<int64_t>(ranks, 1), DType::i64);
  int64_t bytes = 0;
  for (int64_t n : lengths) bytes += n;
  std::string all(static_cast<size_t>(bytes), '\0');
  host.all_gather(mine.data(), all.data(), lengths, DType::u8);
  std::vector<std::string> texts;
  size_t at = 0;
  for (int64_t n : lengths) {
    texts.push_back(all.substr(at, static_cast<size_t>(n)));
    at += static_cast<size_t>(n);
  }
  return texts;
}

}  // namespace

void agree(Communicator& host, const Choices& choices, const std::function<void()>& rehearse) {
  if (host.size() == 1) return;
  const std::vector<std::string> places = texts_of_all(host, choices.place);
  const bool at_one_place = std::all_of(places.begin(), places.end(), [&](const std::string& p) {
    return !p.empty() && p == places[0];
  });
  if (at_one_place) return;
  rehearse();
  choices.take(texts_of_all(host, choices.tell()));
}

}  // namespace shardrun
