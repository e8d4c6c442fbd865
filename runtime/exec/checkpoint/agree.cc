// One number a rank, and the text of one of them.
#include "exec/checkpoint/agree.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

namespace shardrun {

std::optional<Error> try_together(Communicator& host, const std::function<void()>& work,
                                  Names names) {
  std::optional<Error> met;
  try {
    work();
  } catch (const Error& e) {
    met = e;
  } catch (const std::exception& e) {
    met = Error(ErrorKind::internal, e.what());
  }
  struct Met {
    int64_t kind = -1, bytes = 0;
  };
  const Met mine = met ? Met{static_cast<int64_t>(met->kind()),
                             static_cast<int64_t>(std::string_view(met->what()).size())}
                       : Met{};
  std::vector<Met> all(static_cast<size_t>(host.size()));
  host.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), sizeof mine), DType::u8);
  const auto who = std::find_if(all.begin(), all.end(), [](const Met& t) { return t.kind >= 0; });
  if (who == all.end()) return std::nullopt;
  const auto rank = static_cast<int>(who - all.begin());
  std::string text = rank == host.rank() ? met->what() : "";
  text.resize(static_cast<size_t>(who->bytes));
  host.broadcast(text.data(), who->bytes, rank);
  const bool named = rank != 0 && names == Names::rank;
  return Error(static_cast<ErrorKind>(who->kind), named ? str("rank ", rank, ": ", text) : text);
}

void together(Communicator& host, const std::function<void()>& work, Names names) {
  if (const std::optional<Error> met = try_together(host, work, names)) throw *met;
}

}  // namespace shardrun
