// A job whose launcher stands still for longer than PMIx waits for it, just as rank 1 says its last
// word. Status 0 of the launcher is what is tested.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "collectives/communicator.h"

namespace {

constexpr unsigned kStillSeconds = 3;
bool stops_launcher = false;

void stop_launcher() {
  const pid_t launcher = getppid();
  kill(launcher, SIGSTOP);
  if (fork() > 0) return;
  sleep(kStillSeconds);
  kill(launcher, SIGCONT);
  _exit(0);
}

}  // namespace

// The MPI library's call comes here first, since a program's own names come before its libraries'.
extern "C" int PMIx_Finalize(const void* info, size_t count) {
  using Finalize = int (*)(const void*, size_t);
  void* library = dlopen("libpmix.so.2", RTLD_NOW);
  if (library == nullptr) {  // without it dlsym would find this very function
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  const auto finalize = reinterpret_cast<Finalize>(dlsym(library, "PMIx_Finalize"));
  if (stops_launcher) {
    stop_launcher();
    std::puts("launcher stopped");
    std::fflush(stdout);
  }
  return finalize(info, count);
}

int main() {
  auto world = shardrun::make_mpi_communicator();
  stops_launcher = world->rank() == 1;
  world.reset();
  shardrun::finalize_mpi();
  return 0;
}
