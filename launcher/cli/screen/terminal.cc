// What the system says of it.
#include "screen/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace shardrun::cli {
namespace {

/// What `ask` says of the output: the launcher's under one, else this process's.
template <class Ask>
auto of_output(const Ask& ask) {
  if (!std::getenv("OMPI_COMM_WORLD_RANK")) return ask(STDOUT_FILENO);
  const std::string path = "/proc/" + std::to_string(getppid()) + "/fd/1";
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  const auto answer = ask(fd);
  if (fd >= 0) ::close(fd);
  return answer;
}

}  // namespace

bool on_terminal() {
  if (isatty(STDOUT_FILENO) != 1) return false;
  // One that takes no escape sequences, as Emacs's shell.
  const char* term = std::getenv("TERM");
  if (term != nullptr && (*term == '\0' || std::strcmp(term, "dumb") == 0)) return false;
  return of_output([](int fd) { return fd >= 0 && isatty(fd) == 1; });
}

TerminalSize terminal_size() {
  return of_output([](int fd) {
    TerminalSize out;
    winsize size{};
    if (fd < 0 || ::ioctl(fd, TIOCGWINSZ, &size) != 0) return out;
    out.rows = size.ws_row;
    if (size.ws_col > 0) out.columns = size.ws_col;
    return out;
  });
}

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace shardrun::cli
