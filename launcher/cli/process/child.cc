// fork, exec, and a pipe for what it complains of.
#include "process/child.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "shardrun/shardrun.h"

namespace shardrun::cli {
namespace {

[[noreturn]] void fail_to_run(const std::string& what) {
  throw Failure(Failure::Kind::run, what + ": " + std::strerror(errno));
}

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t n = ::read(fd, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(part, static_cast<size_t>(n));
  }
}

int status_of(int waited) {
  return WIFEXITED(waited) ? WEXITSTATUS(waited) : 128 + WTERMSIG(waited);
}

/// Its stream `kept` is `to`, the others are /dev/null. Signals that wait for this process do not
/// wait for that one.
pid_t start(const std::vector<std::string>& words, int kept, int to) {
  // All that allocates is done before the fork.
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) fail_to_run("fork");
  if (child > 0) return child;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::dup2(stream == kept ? to : nothing, stream);
  ::execvp(arguments[0], arguments.data());
  _exit(127);
}

constexpr const char* kFolders = "shardrun-files-";

/// The folder's descriptor, on which its process holds a lock; -1: another one does.
int lock_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  return -1;
}

/// Removes this user's folders whose processes are no more. One made just now may have no lock yet.
void sweep(const std::filesystem::path& in) {
  constexpr time_t kYoung = 2;  // s
  std::error_code error;
  for (std::filesystem::directory_iterator it(in, error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().string().starts_with(kFolders)) continue;
    const std::string path = it->path().string();
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
        ::time(nullptr) - info.st_ctime < kYoung)
      continue;
    const int lock = lock_folder(path);
    if (lock < 0) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    ::close(lock);
  }
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& words, int kept) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) fail_to_run("pipe");
  const pid_t child = start(words, kept, pipe[1]);
  ::close(pipe[1]);
  ChildResult result;
  result.said = read_all(pipe[0]);
  ::close(pipe[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail_to_run("waitpid");
  }
  result.status = status_of(status);
  return result;
}

std::vector<int> run_children(const std::vector<std::vector<std::string>>& commands,
                              double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook{10};
  constexpr double kPatience = 1;
  std::vector<pid_t> running;
  for (const std::vector<std::string>& words : commands) running.push_back(start(words, -1, -1));
  std::vector<int> out(running.size());
  const Clock::time_point begin = Clock::now();
  const auto past = [&](double limit) {
    return std::chrono::duration<double>(Clock::now() - begin).count() > limit;
  };
  int sent = 0;
  while (true) {
    bool waits = false;
    for (size_t i = 0; i < running.size(); ++i) {
      int status = 0;
      if (running[i] == 0) continue;
      if (::waitpid(running[i], &status, WNOHANG) == running[i]) {
        out[i] = status_of(status);
        running[i] = 0;
      }
      waits = waits || running[i] != 0;
    }
    if (!waits) return out;
    const int signal = past(seconds + kPatience) ? SIGKILL : past(seconds) ? SIGTERM : 0;
    if (signal != sent) {
      for (const pid_t child : running)
        if (child != 0) ::kill(child, signal);
      sent = signal;
    }
    std::this_thread::sleep_for(kLook);
  }
}

bool program_exists(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::string sentence_of(const ChildResult& child) {
  constexpr std::string_view kOwn = "shardrun: ";
  std::istringstream lines(child.said);
  std::string first;  // paragraph: launchers break their sentences into lines
  bool open = true;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(kOwn, 0) == 0) return line.substr(kOwn.size());
    const bool blank = line.find_first_not_of("- \t") == std::string::npos;
    if (!blank && open) first += (first.empty() ? "" : " ") + line;
    open = open && (!blank || first.empty());
  }
  if (child.status > 128 && first.empty())
    return "ended by signal " + std::to_string(child.status - 128);
  return (first.empty() ? "it said nothing" : first) + " (status " + std::to_string(child.status) +
         ")";
}

std::vector<std::string> launcher_words(const std::string& command) {
  std::vector<std::string> words = shell_words(command, "--mpirun");
  if (!program_exists(words[0])) {
    throw Failure(Failure::Kind::call, "--mpirun: there is no program '" + words[0] +
                                           "'; install MPI, or name the launcher that is here");
  }
  constexpr const char* kAsRoot = "--allow-run-as-root";
  const bool allowed = std::find(words.begin(), words.end(), kAsRoot) != words.end() ||
                       (std::getenv("OMPI_ALLOW_RUN_AS_ROOT") != nullptr &&
                        std::getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") != nullptr);
  if (::geteuid() != 0 || allowed) return words;
  const bool wants_it = run_child({words[0], kAsRoot, "--version"}).status == 0;
  if (wants_it) words.insert(words.begin() + 1, kAsRoot);
  return words;
}

std::vector<std::string> launcher_of_this_rank() {
  if (const char* given = std::getenv(kRestartsMpirun); given != nullptr && *given != 0)
    return shell_words(given, "--mpirun");
  const auto command_of = [](const std::string& process) {
    std::ifstream in("/proc/" + process + "/cmdline", std::ios::binary);
    std::vector<std::string> words;
    for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
    return words;
  };
  std::vector<std::string> own = command_of("self"), above = command_of(std::to_string(getppid()));
  const std::string name = above.empty() ? "" : std::filesystem::path(above[0]).filename().string();
  const bool starts_ranks =
      name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "prterun";
  if (!starts_ranks || own.empty() || above.size() <= own.size() ||
      !std::equal(own.rbegin(), own.rend() - 1, above.rbegin()))
    return {};
  above.resize(above.size() - own.size());
  return above;
}

std::string own_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw Failure(Failure::Kind::run, "/proc/self/exe: " + error.message());
  return path.string();
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += " ";
    const bool plain =
        !word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?[]{}#~`!") == std::string::npos;
    if (plain) {
      line += word;
      continue;
    }
    line += "'";
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += "'";
  }
  return line;
}

std::vector<std::string> shell_words(const std::string& text, const std::string& flag) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  bool open = false;  // has a word begun?
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      open = true;
    } else if (c == ' ' || c == '\t') {
      if (open) words.push_back(word);
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (quote != 0)
    throw Failure(Failure::Kind::call, flag + ": '" + text + "' has a quote that does not end");
  if (open) words.push_back(word);
  if (words.empty())
    throw Failure(Failure::Kind::call, flag + ": got nothing, wanted a command such as mpirun");
  return words;
}

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* set = std::getenv("TMPDIR");
    throw Failure(Failure::Kind::run, "TMPDIR" + (set ? "=" + std::string(set) : "") + ": " +
                                          error.message() + "; name a folder for files of a run");
  }
  sweep(folder);
  std::string pattern = (folder / (std::string(kFolders) + "XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr) fail_to_run(pattern);
  path_ = pattern;
  lock_ = lock_folder(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace shardrun::cli
