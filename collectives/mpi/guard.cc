// A fork that sleeps, and signals by descriptors: a number of a process may be another's by then.
#include "collectives/mpi/guard.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace shardrun::mpi {
namespace {

int open_process(pid_t process) {
  return static_cast<int>(syscall(SYS_pidfd_open, process, 0));  // Linux 5.3
}
void signal_process(int fd, int signal) { syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0); }

void sleep_for(double seconds) {
  timespec left{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  while (nanosleep(&left, &left) != 0) {
  }
}

/// In the child, where only calls that are safe in handlers of signals are.
[[noreturn]] void guard(int launcher, int self, double seconds) {
  setsid();
  // Whoever reads what the job prints waits until all have closed it.
  dup2(launcher, 0), dup2(self, 1);
  if (syscall(SYS_close_range, 2u, ~0u, 0) != 0) {
    for (int fd = 2; fd < 1024; ++fd) close(fd);
  }
  sleep_for(seconds);
  for (const int signal : {SIGTERM, SIGKILL}) {
    signal_process(0, signal);
    sleep_for(0.2);
  }
  signal_process(1, SIGKILL);
  _exit(0);
}

}  // namespace

bool is_launcher(pid_t process) {
  char path[40], name[32] = {};
  std::snprintf(path, sizeof path, "/proc/%d/comm", static_cast<int>(process));
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return false;
  const bool read = std::fgets(name, sizeof name, file) != nullptr;
  std::fclose(file);
  name[std::strcspn(name, "\n")] = '\0';
  constexpr const char* kLaunchers[] = {"mpirun", "mpiexec", "orterun", "orted"};
  return read && std::any_of(std::begin(kLaunchers), std::end(kLaunchers),
                             [&](const char* known) { return std::strcmp(name, known) == 0; });
}

double guard_seconds() {
  const char* patience = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
  return std::max(1.0, patience == nullptr ? 1.0 : std::atof(patience)) + 0.25;
}

void guard_launcher() noexcept {
  const pid_t launcher = getppid();
  if (!is_launcher(launcher)) return;
  const int there = open_process(launcher), here = open_process(getpid());
  if (there < 0 || here < 0) return;
  const double seconds = guard_seconds();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the child has no use for them
  if (fork() == 0) guard(there, here, seconds);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace shardrun::mpi
