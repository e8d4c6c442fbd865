// Reading lists of hosts, and asking each of them.
#include "process/hosts.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "process/child.h"
#include "shardrun/input.h"

namespace shardrun::cli {
namespace {

using Words = std::vector<std::string>;

bool is_any(const std::string& word, std::initializer_list<const char*> of) {
  return std::any_of(of.begin(), of.end(), [&](const char* one) { return word == one; });
}
bool names_hosts(const std::string& word) { return is_any(word, {"--host", "-host", "-H"}); }
bool names_file(const std::string& word) {
  return is_any(word, {"--hostfile", "-hostfile", "--machinefile", "-machinefile"});
}
bool says_ranks(const std::string& word) {
  return is_any(word, {"-np", "--np", "-n", "--n", "-c"});
}
/// Those that say how hosts are reached, with the number of their values.
size_t values_of_reach(const std::string& word) {
  if (is_any(word, {"--mca", "-mca", "--gmca", "-gmca"})) return 2;
  return is_any(word, {"--prefix", "-prefix", "--tune", "-tune", "-am", "--am"}) ? 1 : 0;
}
/// --oversubscribe, --map-by slot:OVERSUBSCRIBE, --mca rmaps_base_oversubscribe 1
bool may_oversubscribe(const Words& words) {
  return std::any_of(words.begin(), words.end(), [](std::string word) {
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    return word.find("oversubscribe") != std::string::npos &&
           word.find("nooversubscribe") == std::string::npos;
  });
}
constexpr const char* kAsRoot = "--allow-run-as-root";

/// Of ranks or hosts; sums of them are to be numbers, too.
std::optional<int64_t> number_of(const std::string& text) {
  constexpr int64_t kMost = 1 << 30;
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < 0 || out > kMost)
    return std::nullopt;
  return out;
}

Words parts_of(const std::string& text, char at) {
  Words out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);)
    if (!part.empty()) out.push_back(part);
  return out;
}

/// "node7:4" or "node7"; in a list of words the latter is one slot.
HostEntry entry_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    if (const auto slots = number_of(text.substr(colon + 1)))
      return {text.substr(0, colon), *slots, text};
  }
  return {text, std::nullopt, text};
}

/// A hostfile's line, "node7 slots=4 max_slots=8", without its comment; blanks may be around "=".
HostEntry entry_of_line(const std::string& line) {
  std::string close;
  for (const char c : line.substr(0, line.find('#'))) {
    if (c == '=') close.erase(close.find_last_not_of(" \t\r") + 1);
    if (close.empty() || close.back() != '=' || std::strchr(" \t", c) == nullptr) close += c;
  }
  std::istringstream in(close);
  std::string name;
  if (!(in >> name)) return {};
  HostEntry out = entry_of(name);
  for (std::string word; in >> word;) {
    for (const std::string flag : {"slots=", "cpu=", "count="}) {
      if (!word.starts_with(flag)) continue;
      out.slots = number_of(word.substr(flag.size()));
    }
  }
  out.text = line;
  return out;
}

/// Slurm's "2(x3),1": 2, 2, 2, 1.
std::vector<int64_t> tasks_per_node(const std::string& text) {
  std::vector<int64_t> out;
  for (const std::string& part : parts_of(text, ',')) {
    const size_t times = part.find("(x");
    const int64_t tasks = number_of(part.substr(0, times)).value_or(0);
    const int64_t nodes =
        times == std::string::npos
            ? 1
            : number_of(part.substr(times + 2, part.size() - times - 3)).value_or(0);
    constexpr int64_t kMostNodes = 1 << 20;
    out.insert(out.end(), static_cast<size_t>(std::min(nodes, kMostNodes)), tasks);
  }
  return out;
}

}  // namespace

HostList::HostList(Words words) : words_(std::move(words)) {
  const auto is_mpirun = [](const std::string& word) {
    return is_any(std::filesystem::path(word).filename().string(),
                  {"mpirun", "mpiexec", "orterun"});
  };
  program_ =
      static_cast<size_t>(std::find_if(words_.begin(), words_.end(), is_mpirun) - words_.begin());
  if (program_ == words_.size()) return;
  for (size_t i = program_ + 1; i + 1 < words_.size(); ++i) {
    const bool here = names_hosts(words_[i]);
    if (!here && !(names_file(words_[i]) && source_ == Source::none)) continue;
    source_ = here ? Source::words : Source::file;
    named_ = i;
    if (here) break;
  }
  const char *pbs = std::getenv("PBS_NODEFILE"), *slurm = std::getenv("SLURM_JOB_NODELIST");
  if (source_ == Source::words) {
    read_list(words_[named_ + 1]);
  } else if (source_ == Source::file) {
    read_hostfile(words_[named_], words_[named_ + 1]);
  } else if (pbs != nullptr || slurm != nullptr) {
    source_ = Source::batch;
    pbs != nullptr ? read_file(pbs) : read_slurm(slurm);
  }
  const bool counts = std::any_of(entries_.begin(), entries_.end(), [](const HostEntry& entry) {
    return entry.name.starts_with('+');
  });
  if (counts || std::find(words_.begin(), words_.end(), ":") != words_.end()) entries_.clear();
}

void HostList::read_list(const std::string& list) {
  for (const std::string& part : parts_of(list, ',')) {
    entries_.push_back(entry_of(part));
    if (entries_.back().name == part) entries_.back().slots = 1;
  }
}

void HostList::read_file(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  std::istringstream in(read_input({"", path}, "a list of hosts", kMostBytes));
  for (std::string line; std::getline(in, line);) {
    const HostEntry entry = entry_of_line(line);
    if (entry.name.starts_with('^')) {
      excluded_.push_back(line);
    } else if (source_ == Source::batch && !entry.name.empty()) {  // a line for each slot
      const auto known = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const HostEntry& one) { return one.name == entry.name; });
      if (known != entries_.end()) {
        ++*known->slots;
      } else {
        entries_.push_back({entry.name, 1, entry.name});
      }
    } else if (!entry.name.empty()) {
      entries_.push_back(entry);
    }
  }
}

void HostList::read_hostfile(const std::string& flag, const std::string& path) {
  const std::string what = flag + " " + path;
  try {
    read_file(path);
  } catch (const Failure& failure) {
    throw Failure(Failure::Kind::call, flag + " " + failure.what());
  }
  if (entries_.empty() && excluded_.empty())
    throw Failure(Failure::Kind::call, what + ": it names no host");
  for (const HostEntry& entry : entries_) {
    const auto in_no_name = [](unsigned char c) { return c <= ' ' || c == 0x7f || c == '/'; };
    if (std::any_of(entry.name.begin(), entry.name.end(), in_no_name))
      throw Failure(Failure::Kind::call, what +
                                             ": names no hosts but something else, as with a "
                                             "control character or a '/' in a name");
  }
  const bool none = std::all_of(entries_.begin(), entries_.end(),
                                [](const HostEntry& entry) { return entry.slots == 0; });
  if (!entries_.empty() && none && !may_oversubscribe(words_))
    throw Failure(Failure::Kind::call, what +
                                           ": slots=0 of every host is no rank; give slots, or "
                                           "the launcher --oversubscribe");
}

void HostList::read_slurm(const std::string& nodes) {
  const char* tasks = std::getenv("SLURM_TASKS_PER_NODE");
  const std::vector<int64_t> slots = tasks_per_node(tasks == nullptr ? "" : tasks);
  const ChildResult shown = run_child({"scontrol", "show", "hostnames", nodes}, STDOUT_FILENO);
  if (shown.status != 0)
    throw Failure(Failure::Kind::run,
                  "scontrol show hostnames " + nodes + ": status " + std::to_string(shown.status));
  for (const std::string& name : parts_of(shown.said, '\n')) {
    const size_t n = entries_.size();
    const bool said = n < slots.size() && slots[n] > 0;
    entries_.push_back({name, said ? std::optional(slots[n]) : std::nullopt, name});
  }
}

Words HostList::hosts() const {
  Words out;
  std::set<std::string> seen;
  for (const HostEntry& entry : entries_)
    if (seen.insert(entry.name).second) out.push_back(entry.name);
  return out;
}

int64_t HostList::ranks() const {
  for (size_t i = program_ + 1; i + 1 < words_.size(); ++i)
    if (says_ranks(words_[i])) return number_of(words_[i + 1]).value_or(0);
  return 0;
}

/// As many each where one does not say.
int64_t HostList::slots() const {
  int64_t sum = 0;
  for (const HostEntry& entry : entries_) {
    if (!entry.slots) return static_cast<int64_t>(entries_.size());
    sum += *entry.slots;
  }
  return sum;
}

Words HostList::naming(const std::vector<HostEntry>& entries, const std::string& file) const {
  if (source_ == Source::words) {
    std::string list;
    for (const HostEntry& entry : entries) list += (list.empty() ? "" : ",") + entry.text;
    return {"--host", list};
  }
  std::ofstream out(file);
  for (const std::string& line : excluded_) out << line << '\n';
  for (const HostEntry& entry : entries) {
    out << entry.text;
    if (source_ == Source::batch && entry.slots) out << " slots=" << *entry.slots;
    out << '\n';
  }
  out.close();
  if (!out) throw Failure(Failure::Kind::run, file + ": cannot be written");
  return {"--hostfile", file};
}

Words HostList::silent(double seconds, const std::string& folder) const {
  Words ask(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(program_) + 1);
  for (size_t i = program_ + 1; i < words_.size(); ++i) {
    const size_t values = values_of_reach(words_[i]);
    if (values == 0 && words_[i] != kAsRoot) continue;
    const size_t last = std::min(i + values, words_.size() - 1);
    for (size_t at = i; at <= last; ++at) ask.push_back(words_[at]);
    i = last;
  }
  const Words names = hosts();
  std::vector<Words> commands;
  for (const std::string& name : names) {
    HostEntry entry = *std::find_if(entries_.begin(), entries_.end(),
                                    [&](const HostEntry& one) { return one.name == name; });
    if (entry.slots == 0) entry = {name, std::nullopt, name};  // no rank would start there
    Words words = ask;
    for (const std::string& word :
         naming({entry}, folder + "/host-" + std::to_string(commands.size())))
      words.push_back(word);
    for (const char* word : {"-np", "1", "true"}) words.emplace_back(word);
    commands.push_back(std::move(words));
  }
  const std::vector<int> statuses = run_children(commands, seconds);
  Words out;
  for (size_t i = 0; i < names.size(); ++i)
    if (statuses[i] != 0) out.push_back(names[i]);
  return out;
}

HostList HostList::without(const Words& silent, const std::string& folder) const {
  HostList out = *this;
  std::erase_if(out.entries_, [&](const HostEntry& entry) {
    return std::find(silent.begin(), silent.end(), entry.name) != silent.end();
  });
  if (out.entries_.size() == entries_.size()) return out;
  const Words named = naming(out.entries_, folder + "/hosts");
  if (source_ == Source::batch) {
    out.words_.insert(out.words_.begin() + static_cast<std::ptrdiff_t>(program_) + 1, named.begin(),
                      named.end());
  } else {
    out.words_[named_ + 1] = named[1];
  }
  const int64_t before = ranks();
  const bool none = slots() == 0;  // oversubscribed: as many ranks on each
  const int64_t all = none ? std::ssize(entries_) : slots();
  const int64_t left = none ? std::ssize(out.entries_) : out.slots();
  const int64_t now =
      before <= all ? std::min(before, left) : std::max<int64_t>(1, before * left / all);
  for (size_t i = program_ + 1; i + 1 < out.words_.size(); ++i)
    if (says_ranks(out.words_[i])) out.words_[i + 1] = std::to_string(now);
  return out;
}

}  // namespace shardrun::cli
