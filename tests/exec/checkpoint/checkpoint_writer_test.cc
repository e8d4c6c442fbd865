// What is saved is read back bit for bit on any mesh, and a disk that fails, or a job that is
// killed at any call, leaves the checkpoints before it whole.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "exec/checkpoint/disk_memory.h"
#include "exec/checkpoint/reader.h"
#include "exec/checkpoint/writer.h"
#include "exec/safetensors.h"
#include "tests/exec/checkpoint/faulty_storage.h"
#include "tests/exec/state_program.h"
#include "tests/support/far_device.h"

namespace shardrun {
namespace {

using test::FaultyStorage;
using test::Shardings;
using test::StateValue;
using test::TemporaryFolder;

const std::vector<StateValue> kValues = {
    {"w", {DType::f32, {37, 10}}},
    {"qkv", {DType::f32, {7, 12}}, {7, 3, 4}},
    {"adam_m/qkv", {DType::f32, {7, 12}}, {7, 3, 4}, Role::state},
    {"b", {DType::f32, {10}}},
    {"scale", {DType::f64, {}}},
    {"count", {DType::i64, {}}, {}, Role::state},
    {"seen", {DType::boolean, {5}}, {}, Role::state},
    {"accumulated/w", {DType::f32, {37, 10}}, {}, Role::state, true},
    {"table", {DType::f32, {3, 3}}, {}, Role::constant},
    {"none", {DType::f32, {0, 4}}},
    {"half", {DType::bf16, {9, 2, 3}}},
};

/// Every rank holds everything.
Shardings whole_shardings() {
  Shardings out;
  for (const StateValue& value : kValues) out.emplace_back(value.shape().size());
  return out;
}

Mesh mesh_of(const std::string& text) { return text == "1" ? Mesh() : Mesh::parse(text); }

/// Of one rank, with nothing else running.
class Rank {
 public:
  Rank(const std::vector<StateValue>& values, const Mesh& mesh, const Shardings& shardings,
       Communicator& comm, bool filled, Device& device = host_device())
      : executor_(test::state_program(values, mesh, shardings, comm.rank()),
                  std::array{&reference_kernels()}, comm, 0, nullptr, filled, device) {}
  Executor& executor() { return executor_; }

 private:
  Executor executor_;
};

/// Saves on every rank of a mesh; the outcomes by rank.
std::vector<Saved> save(const std::string& folder, const Mesh& mesh, const Shardings& shardings,
                        int64_t step, bool asynchronous = true, Storage& storage = disk(),
                        int64_t keep = 0) {
  std::vector<Saved> out(static_cast<size_t>(mesh.size()));
  test::run_ranks(static_cast<int>(mesh.size()), [&](Communicator& comm) {
    Rank rank(kValues, mesh, shardings, comm, true);
    CheckpointWriter writer(rank.executor(), comm, {folder, keep, asynchronous}, storage);
    std::optional<Saved> saved = writer.save(step, {{"lr", 0.5}});
    if (!saved) saved = writer.finish();
    ASSERT_TRUE(saved);
    EXPECT_FALSE(writer.busy());
    out[static_cast<size_t>(comm.rank())] = *saved;
  });
  return out;
}

void expect_whole(const std::vector<Saved>& saved) {
  for (const Saved& of : saved) EXPECT_EQ(of.failure, "");
}

/// Reads it on every rank of a mesh and compares bit for bit. Returns the bytes read by each.
std::vector<int64_t> restore(const std::string& path, const Mesh& mesh, const Shardings& shardings,
                             const std::vector<StateValue>& values = kValues) {
  std::vector<int64_t> read(static_cast<size_t>(mesh.size()));
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_EQ(checkpoint.manifest().run, nlohmann::json({{"lr", 0.5}}));
  test::run_ranks(static_cast<int>(mesh.size()), [&](Communicator& comm) {
    Rank rank(values, mesh, shardings, comm, false);
    read[static_cast<size_t>(comm.rank())] = checkpoint.restore(rank.executor(), comm).bytes;
    for (size_t i = 0; i < values.size(); ++i) {
      const Binding& b = rank.executor().program().bindings[i];
      if (!is_kept(b.role, b.zeroed_each_step)) continue;
      EXPECT_TRUE(test::equal_bytes(rank.executor().read(b), test::expected_shard(values[i], b)))
          << "rank " << comm.rank() << " of " << mesh.to_string() << ": " << b.name;
    }
  });
  return read;
}

TEST(CheckpointWriter, AnyMeshReadsWhatAnyMeshWrote) {
  std::minstd_rand random(3);
  const std::vector<std::string> meshes = {"1",   "a=2",     "a=3", "a=4",         "a=2,b=2",
                                           "a=5", "a=2,b=3", "a=7", "a=2,b=2,c=2", "a=8"};
  for (int trial = 0; trial < 40; ++trial) {
    const TemporaryFolder folder("checkpoints");
    const Mesh from = mesh_of(meshes[random() % meshes.size()]),
               to = mesh_of(meshes[random() % meshes.size()]);
    SCOPED_TRACE(str("trial ", trial, ": ", from.to_string(), " to ", to.to_string()));
    const std::vector<Saved> saved =
        save(folder.path(), from, test::random_shardings(kValues, from, random), 5, trial % 2 == 0);
    expect_whole(saved);
    EXPECT_EQ(saved[0].path, folder / "step-00000005");
    for (const Saved& of : saved) EXPECT_EQ(of.bytes, saved[0].bytes);
    Checkpoint::open(saved[0].path).verify();
    restore(saved[0].path, to, test::random_shardings(kValues, to, random));
  }
}

/// Large enough for several blocks, reads and threads, and for rows that are no multiples of these.
TEST(CheckpointWriter, LargeTensors) {
  const std::vector<StateValue> values = {{"w", {DType::f32, {4099, 1031}}},
                                          {"v", {DType::f32, {3001, 999}}, {3001, 3, 333}}};
  for (const bool asynchronous : {true, false}) {
    const TemporaryFolder folder("checkpoints");
    const Mesh from = Mesh::parse("a=3"), to = Mesh::parse("a=2");
    test::run_ranks(3, [&](Communicator& comm) {
      Rank rank(values, from, {{{0}, {}}, {{}, {}, {0}}}, comm, true);
      CheckpointWriter writer(rank.executor(), comm, {folder.path(), 0, asynchronous});
      std::optional<Saved> saved = writer.save(1, {{"lr", 0.5}});
      if (!saved) saved = writer.finish();
      EXPECT_EQ(saved->failure, "");
    });
    restore(folder / "step-00000001", to, {{{}, {0}}, {{0}, {}, {}}}, values);
  }
}

int64_t header_bytes(const std::string& path, int64_t rank, int64_t ranks) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  int64_t out = 0;
  for (size_t f = 0; f < checkpoint.manifest().files.size(); ++f) {
    if (static_cast<int64_t>(f) % ranks == rank) out += checkpoint.manifest().files[f].header_bytes;
  }
  return out;
}

TEST(CheckpointReader, ReadsTheBytesOfItsShardsAlone) {
  // Columns of 8 KiB: runs that are further apart than a page.
  const std::vector<StateValue> values = {{"w", {DType::f32, {16, 8192}}},
                                          {"v", {DType::f32, {64, 100}}}};
  const TemporaryFolder folder("checkpoints");
  test::run_ranks(4, [&](Communicator& comm) {
    Rank rank(values, Mesh::parse("a=4"), {{{0}, {}}, {{}, {}}}, comm, true);
    CheckpointWriter writer(rank.executor(), comm, {folder.path()});
    writer.save(1, {{"lr", 0.5}});
    EXPECT_EQ(writer.finish()->failure, "");
  });
  const std::string path = folder / "step-00000001";
  const int64_t all = (16 * 8192 + 64 * 100) * 4;
  const std::vector<int64_t> alone = restore(path, Mesh(), {{{}, {}}, {{}, {}}}, values);
  EXPECT_EQ(alone[0], all + header_bytes(path, 0, 1));
  const std::vector<int64_t> columns =
      restore(path, Mesh::parse("a=4"), {{{}, {0}}, {{0}, {}}}, values);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(columns[static_cast<size_t>(rank)], all / 4 + header_bytes(path, rank, 4))
        << "rank " << rank;
  }
}

/// Where runs are short and close together, what is between them is read, too.
TEST(CheckpointReader, SkipsNoLessThanAPage) {
  const std::vector<StateValue> values = {{"w", {DType::f32, {100, 64}}}};
  const TemporaryFolder folder("checkpoints");
  test::run_ranks(1, [&](Communicator& comm) {
    Rank rank(values, Mesh(), {{{}, {}}}, comm, true);
    CheckpointWriter writer(rank.executor(), comm, {folder.path()});
    writer.save(1, {{"lr", 0.5}});
    writer.finish();
  });
  const std::vector<int64_t> read =
      restore(folder / "step-00000001", Mesh::parse("a=2"), {{{}, {0}}}, values);
  const int64_t header = header_bytes(folder / "step-00000001", 0, 2);
  EXPECT_EQ(read[0], 100 * 64 * 4 - 32 * 4 + header);
}

TEST(CheckpointWriter, EveryRanksFileIsSafetensors) {
  const TemporaryFolder folder("checkpoints");
  const Mesh mesh = Mesh::parse("a=2");
  const Shardings shardings = {{{0}, {}}, {{}, {}, {0}}, {{}, {}, {0}}, {{}},     {},           {},
                               {{}},      {{}, {}},      {{}, {}},      {{}, {}}, {{0}, {}, {}}};
  expect_whole(save(folder.path(), mesh, shardings, 1));
  const std::string path = folder / "step-00000001";
  const SafetensorsHeader header =
      read_safetensors_header(path + "/shard-00002-model-00001-of-00001.safetensors");
  EXPECT_EQ(header.find("w")->type(), (TensorType{DType::f32, {18, 10}}));
  EXPECT_EQ(header.find("qkv")->type(), (TensorType{DType::f32, {7, 2}}));
  EXPECT_EQ(header.find("qkv#3")->type(), (TensorType{DType::f32, {7, 2}}));
  const auto places = nlohmann::json::parse(header.metadata.at("DCP_SHARDING_INFO"));
  EXPECT_EQ(places["w"]["saved_offsets"], nlohmann::json({19, 0}));
  EXPECT_EQ(places["qkv#2"]["saved_offsets"], nlohmann::json({0, 6}));
  std::vector<char> half(9 * 2 * 3 * 2);
  Checkpoint::open(path).read("half", full_box({9, 2, 3}), half.data());
  const Source wanted = test::numbered(kValues.back());
  EXPECT_EQ(std::memcmp(half.data(), wanted.data.data(), half.size()), 0);
}

/// Training changes the state as soon as save returns.
TEST(CheckpointWriter, SavesTheStateOfTheMoment) {
  const TemporaryFolder folder("checkpoints");
  const Mesh mesh = Mesh::parse("a=2");
  const Shardings whole = whole_shardings();
  test::run_ranks(2, [&](Communicator& comm) {
    Rank rank(kValues, mesh, whole, comm, true);
    CheckpointWriter writer(rank.executor(), comm, {folder.path(), 0, true});
    EXPECT_FALSE(writer.save(1, {{"lr", 0.5}}));
    EXPECT_TRUE(writer.busy());
    for (const Binding& b : rank.executor().program().bindings)
      rank.executor().write(b.name, Tensor(rank.executor().read(b).type()));
    EXPECT_EQ(writer.finish()->failure, "");
    EXPECT_FALSE(writer.finish());
    EXPECT_FALSE(writer.poll());
  });
  restore(folder / "step-00000001", mesh, whole);
}

/// While kernels run: where the arena is a device's, its bytes come by way of the host.
TEST(CheckpointWriter, OfADevice) {
  const Mesh mesh = Mesh::parse("a=2");
  std::minstd_rand random(9);
  for (int trial = 0; trial < 6; ++trial) {
    const TemporaryFolder folder("checkpoints");
    const Shardings shardings = test::random_shardings(kValues, mesh, random);
    const auto far = [&](const std::function<void(Executor&, Communicator&)>& body, bool filled) {
      test::run_ranks(2, [&](Communicator& host) {
        test::FarDevice device, at_once;
        const std::unique_ptr<Communicator> peers =
            make_peer_communicator(host, std::make_shared<test::FarAccess>(at_once));
        Rank rank(kValues, mesh, shardings, *peers, filled, device);
        body(rank.executor(), host);
      });
    };
    far(
        [&](Executor& executor, Communicator& host) {
          CheckpointWriter writer(executor, host, {folder.path(), 0, trial % 2 == 0});
          std::optional<Saved> saved = writer.save(1, {{"lr", 0.5}});
          if (!saved) saved = writer.finish();
          EXPECT_EQ(saved->failure, "");
        },
        true);
    restore(folder / "step-00000001", Mesh(), test::random_shardings(kValues, Mesh(), random));
    far(
        [&](Executor& executor, Communicator& host) {
          Checkpoint::open(folder / "step-00000001").restore(executor, host);
          for (size_t i = 0; i < kValues.size(); ++i) {
            const Binding& b = executor.program().bindings[i];
            if (!is_kept(b.role, b.zeroed_each_step)) continue;
            EXPECT_TRUE(test::equal_bytes(executor.read(b), test::expected_shard(kValues[i], b)))
                << b.name;
          }
        },
        false);
  }
}

TEST(CheckpointWriter, TakesTheMemoryThatIsCounted) {
  const Mesh mesh = Mesh::parse("a=2");
  const Program program =
      test::state_program({{"w", {DType::f32, {4096, 4096}}}}, mesh, {{{}, {}}}, 0);
  const int64_t file = file_of_rank(program.bindings, mesh, 0).bytes;
  EXPECT_NEAR(static_cast<double>(file), 32 << 20, 1000);
  EXPECT_EQ(CheckpointWriter::memory_bytes(program.bindings, mesh, 0, true),
            (file + 4095) / 4096 * 4096);
  EXPECT_EQ(CheckpointWriter::memory_bytes(program.bindings, mesh, 0, false), 0);
}

/// Blocks from several threads, in any order, on boundaries of the disk and off them.
TEST(Disk, WritesBlocksOfSeveralThreads) {
  const TemporaryFolder folder("blocks");
  const std::string path = folder.path() + "/file";
  constexpr int64_t kBytes = 100 * kStorageBlock + 77, kBlock = 4 * kStorageBlock;
  const std::shared_ptr<char> memory = disk_memory(kBytes);
  for (int64_t i = 0; i < kBytes; ++i) memory.get()[i] = static_cast<char>(i * 37 % 251);
  for (const int64_t shift : {int64_t{0}, int64_t{100}}) {
    SCOPED_TRACE(shift);
    const int64_t bytes = kBytes - shift;
    const std::unique_ptr<StorageFile> file = disk().create(path);
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t at = t * kBlock; at < bytes; at += 2 * kBlock)
          file->write(at, memory.get() + shift + at, std::min(kBlock, bytes - at));
      });
    }
    for (std::thread& thread : threads) thread.join();
    file->finish();
    std::ifstream in(path, std::ios::binary);
    const std::string got{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(got, std::string(memory.get() + shift, static_cast<size_t>(bytes)));
  }
}

/// A whole one is on the disk before its name is, and its name before an older one goes.
TEST(CheckpointWriter, InThisOrder) {
  const TemporaryFolder folder("order");
  const Shardings whole = whole_shardings();
  save(folder.path(), Mesh(), whole, 1);
  FaultyStorage storage;
  expect_whole(save(folder.path(), Mesh(), whole, 2, true, storage, 1));
  const std::string root = std::filesystem::path(folder.path()).filename().string();
  const std::string shard = "step-00000002.partial/shard-00001-model-00001-of-00001.safetensors",
                    manifest = "step-00000002.partial/manifest.json";
  EXPECT_EQ(storage.log(),
            (std::vector<std::string>{
                "mkdir " + root, "remove step-00000002.partial", "mkdir step-00000002.partial",
                "create " + shard, "write " + shard, "sync " + shard, "create " + manifest,
                "write " + manifest, "sync " + manifest, "sync folder step-00000002.partial",
                "rename step-00000002.partial step-00000002", "sync folder " + root,
                "rename step-00000001 step-00000001.removed", "remove step-00000001.removed"}));
}

/// Makes a folder only once it may.
class LateStorage final : public FaultyStorage {
 public:
  LateStorage(std::string path, std::function<bool()> may)
      : path_(std::move(path)), may_(std::move(may)) {}
  void make_folder(const std::string& path) override {
    while (path == path_ && !may_()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    FaultyStorage::make_folder(path);
  }

 private:
  std::string path_;
  std::function<bool()> may_;
};

int count_in(const std::string& folder) {
  std::filesystem::directory_iterator at(folder), end;
  return static_cast<int>(std::distance(at, end));
}

/// At every call on the way.
TEST(CheckpointWriter, AFailureLeavesWhatWasThere) {
  const Mesh mesh = Mesh::parse("a=3");
  const Shardings whole = whole_shardings();
  for (const bool asynchronous : {true, false}) {
    for (int call = 0;; ++call) {
      SCOPED_TRACE(str("call ", call));
      const TemporaryFolder folder("failing");
      save(folder.path(), mesh, whole, 1);
      FaultyStorage storage;
      storage.fails = call;
      const std::vector<Saved> saved =
          save(folder.path(), mesh, whole, 2, asynchronous, storage, 1);
      if (storage.calls() <= call) break;
      for (const Saved& of : saved) EXPECT_EQ(of.failure, saved[0].failure);
      const std::string log = storage.log()[static_cast<size_t>(call)];
      SCOPED_TRACE(log);
      const bool older = log.find(".removed") != std::string::npos;
      if (older) {
        EXPECT_EQ(saved[0].failure, "");
        EXPECT_NE(saved[0].left.find("No space left"), std::string::npos) << saved[0].left;
      } else {
        EXPECT_NE(saved[0].failure.find("cannot write: No space left on device"), std::string::npos)
            << saved[0].failure;
        restore(folder / "step-00000001", mesh, whole);
        EXPECT_EQ(count_in(folder.path()), 1);
      }
      sweep(folder.path());
      expect_whole(save(folder.path(), mesh, whole, 3, asynchronous));
      restore(folder / "step-00000003", mesh, whole);
    }
  }
}

TEST(CheckpointWriter, AKilledJobLeavesTheNewestWhole) {
  const Mesh mesh = Mesh::parse("a=2");
  const Shardings whole = whole_shardings();
  int killed = 0;
  for (int call = 0;; ++call) {
    SCOPED_TRACE(str("call ", call));
    const TemporaryFolder folder("killed");
    save(folder.path(), mesh, whole, 1);
    FaultyStorage storage;
    storage.dies = call;
    save(folder.path(), mesh, whole, 2, true, storage, 1);
    if (!storage.dead()) break;
    ++killed;
    const std::vector<FoundCheckpoint> found = checkpoints_in(folder.path());
    ASSERT_FALSE(found.empty());
    for (const FoundCheckpoint& one : found) Checkpoint::open(one.path).verify();
    restore(found.back().path, mesh, whole);
    sweep(folder.path());
    EXPECT_EQ(count_in(folder.path()), static_cast<int>(found.size()));
    expect_whole(save(folder.path(), mesh, whole, found.back().step + 1));
  }
  EXPECT_GE(killed, 16);
}

/// A rank that waits for the others' disks is not hung by one that failed.
TEST(CheckpointWriter, OneFullDiskEndsTheAttemptOfAll) {
  const TemporaryFolder folder("full");
  const Mesh mesh = Mesh::parse("a=4");
  const Shardings whole = whole_shardings();
  test::run_ranks(4, [&](Communicator& comm) {
    Rank rank(kValues, mesh, whole, comm, true);
    FaultyStorage full;
    full.fails = comm.rank() == 2 ? 1 : -1;  // its first write
    CheckpointWriter writer(rank.executor(), comm, {folder.path()}, full);
    writer.save(1, {});
    int polls = 0;
    std::optional<Saved> saved;
    for (; !saved; ++polls) saved = writer.poll();
    EXPECT_EQ(saved->failure, str("rank 2: ", folder / "step-00000001.partial/",
                                  "shard-00003-model-00001-of-00001.safetensors: cannot write: No "
                                  "space left on device"));
    EXPECT_EQ(count_in(folder.path()), 0);
    comm.barrier();  // all have looked
    writer.save(2, {{"lr", 0.5}});
    EXPECT_EQ(writer.finish()->failure, "");
  });
  restore(folder / "step-00000002", mesh, whole);
}

/// Rank 0 is still at the first call of step 2 when the others' time is up: that is no failed
/// checkpoint, with which they would go on.
TEST(CheckpointWriter, ARankThatDoesNotComeEndsTheRun) {
  const TemporaryFolder folder("late");
  const Mesh mesh = Mesh::parse("a=3");
  const Shardings whole = whole_shardings();
  std::atomic<int> thrown = 0;
  test::run_ranks(3, [&](Communicator& comm) {
    Rank rank(kValues, mesh, whole, comm, true);
    LateStorage storage(folder / "step-00000002.partial", [&] { return thrown == 2; });
    CheckpointWriter writer(rank.executor(), comm, {folder.path()}, storage);
    writer.save(1, {{"lr", 0.5}});
    EXPECT_EQ(writer.finish()->failure, "");
    comm.set_timeout(0.5);
    std::string said;
    try {
      writer.save(2, {});
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::comm);
      said = e.what();
    }
    ++thrown;
    EXPECT_EQ(said.rfind("the checkpoint of step 2: all_gather of ", 0), 0u) << said;
    const bool first = said.find("waited 0.5 s for rank") != std::string::npos,
               peer = said.find("another rank ended the job") != std::string::npos;
    EXPECT_TRUE(peer || (first && comm.rank() > 0)) << "rank " << comm.rank() << ": " << said;
  });
  restore(folder / "step-00000001", mesh, whole);
}

TEST(CheckpointWriter, KeepsSoMany) {
  const TemporaryFolder folder("keep");
  const Shardings whole = whole_shardings();
  for (int64_t step : {10, 20, 30, 40}) save(folder.path(), Mesh(), whole, step, true, disk(), 2);
  const std::vector<FoundCheckpoint> found = checkpoints_in(folder.path());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 30);
  EXPECT_EQ(found[1].step, 40);
}

TEST(CheckpointWriter, ADiskThatIsNotThere) {
  const Shardings whole = whole_shardings();
  const std::vector<Saved> saved = save("/proc/none", Mesh::parse("a=2"), whole, 1);
  for (const Saved& of : saved)
    EXPECT_EQ(of.failure, "/proc/none: cannot create the folder: No such file or directory");
}

TEST(CheckpointFolder, SweepsWhatIsItsOwn) {
  const TemporaryFolder folder("sweep");
  for (const char* name : {"step-00000001", "step-00000002.partial", "step-00000003.removed",
                           "step-4.partial", "step-00000005.set-aside", "notes", "step-0000000x"})
    std::filesystem::create_directories(folder / name);
  std::ofstream(folder / "step-00000002.partial/shard") << "x";
  EXPECT_EQ(sweep(folder.path()), 2);
  EXPECT_EQ(sweep(folder / "missing"), 0);
  EXPECT_EQ(count_in(folder.path()), 5);
  EXPECT_EQ(checkpoints_in(folder.path()).size(), 1u);
}

TEST(CheckpointFolder, PutsLaterOnesAside) {
  const TemporaryFolder folder("aside");
  for (const char* name :
       {"step-00000001", "step-00000002", "step-00000003", "step-00000003.set-aside"})
    std::filesystem::create_directories(folder / name);
  EXPECT_EQ(set_aside_later(folder.path(), 1),
            (std::vector<std::string>{folder / "step-00000002.set-aside",
                                      folder / "step-00000003.set-aside-2"}));
  EXPECT_EQ(checkpoints_in(folder.path()).size(), 1u);
}

TEST(CheckpointFolder, IsOfOneRunAtATime) {
  const TemporaryFolder folder("lock");
  const std::string inside = folder / "new/folder";
  std::string who;
  {
    const FolderLock lock(inside);
    who = lock.mark();
    try {
      const FolderLock other(inside, 0.2);
      FAIL() << "two have the lock";
    } catch (const Error& e) {
      EXPECT_EQ(e.what(), str(inside, ": another run writes its checkpoints there (", who,
                              "); wait for its end, or name another folder"));
    }
  }
  const FolderLock again(inside, 0);
}

}  // namespace
}  // namespace shardrun
