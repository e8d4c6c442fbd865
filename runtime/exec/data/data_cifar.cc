// CIFAR's binary files: records of one or two label bytes and an image, 3 x 32 x 32 bytes.
#include "exec/data/data_files.h"
#include "exec/data/data_internal.h"

namespace shardrun {

CifarFile open_cifar(const std::string& path, int labels) {
  constexpr int64_t kSide = 32, kChannels = 3, kImage = kChannels * kSide * kSide;
  const int64_t record = labels + kImage;
  auto file = std::make_shared<MappedFile>(path);
  SR_REQUIRE(file->size() % record == 0, invalid_input, path, ": ", file->size(),
             " bytes are no whole number of ", record, "-byte records (",
             labels == 1 ? "a label" : "two labels",
             " and an image of 3 x 32 x 32); the file is cut short, or of the other CIFAR (cifar: "
             "and cifar100:)");
  const int64_t count = file->size() / record;
  CifarFile out;
  out.images = {path + ": images",     "|u1",  {count, kChannels, kSide, kSide},
                file->data() + labels, record, file};
  out.labels = {path + ": labels", "|u1", {count}, file->data() + labels - 1, record, file};
  return out;
}

}  // namespace shardrun
