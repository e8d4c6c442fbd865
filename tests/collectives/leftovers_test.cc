// What killed jobs leave is removed; what anybody uses is not.
#include "collectives/mpi/leftovers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

namespace shardrun::mpi {
namespace {

TEST(Leftovers, OnlyThoseOfTheDead) {
  namespace fs = std::filesystem;
  const std::string root = fs::temp_directory_path() / ("leftovers_" + std::to_string(getpid()));
  const std::string user = std::to_string(geteuid());
  LeftoverPlaces places;
  places.shared = root + "/shm";
  places.temporary = root + "/tmp";
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string sessions = places.temporary + "/ompi.host." + user;
  const std::string of_dead = sessions + "/pid." + std::to_string(dead),
                    of_living = sessions + "/pid." + std::to_string(getpid());
  for (const std::string& folder : {places.shared, of_dead + "/1", of_living + "/1"})
    fs::create_directories(folder);
  const std::string unused = places.shared + "/vader_segment.host.0.aa.0",
                    used = places.shared + "/vader_segment.host.0.bb.0",
                    other = places.shared + "/somebody.else", young = unused + "1";
  for (const std::string& file : {unused, used, other})
    std::ofstream(file) << std::string(4096, 'x');
  const int fd = open(used.c_str(), O_RDWR);
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  EXPECT_TRUE(sweep_leftovers(places).empty()) << "they are too young";
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));
  std::ofstream(young) << "x";
  std::vector<std::string> removed = sweep_leftovers(places), wanted = {unused, of_dead};
  std::sort(removed.begin(), removed.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(removed, wanted);
  for (const std::string& path : {used, other, young, of_living})
    EXPECT_TRUE(fs::exists(path)) << path;
  munmap(mapped, 4096);
  fs::remove_all(root);
}

}  // namespace
}  // namespace shardrun::mpi
