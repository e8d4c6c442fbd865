// Images: MNIST's and CIFAR's files, crops and flips that do not depend on who reads which part,
// scaling.
#include <cmath>
#include <map>
#include <set>

#include "tests/exec/data/data_support.h"

namespace shardrun {
namespace {

using namespace test;  // NOLINT: the fixture and its helpers

std::string big_endian(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
  return out;
}

std::string idx(char type, const std::vector<uint32_t>& dims, const std::string& data) {
  std::string out = {0, 0, type, static_cast<char>(dims.size())};
  for (uint32_t d : dims) out += big_endian(d);
  return out + data;
}

std::string gzip(const std::string& bytes) {
  std::string out(compressBound(bytes.size()) + 64, '\0');
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  z.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<unsigned char*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

constexpr int64_t kImages = 10, kHeight = 6, kWidth = 5, kBatch = 4;

/// Pixel (y, x) of image n, never black.
int pixel(int64_t n, int64_t y, int64_t x) {
  return static_cast<int>(1 + (n * 53 + y * 17 + x * 7) % 200);
}

std::string image_bytes() {
  std::string out;
  for (int64_t n = 0; n < kImages; ++n) {
    for (int64_t y = 0; y < kHeight; ++y) {
      for (int64_t x = 0; x < kWidth; ++x) out += static_cast<char>(pixel(n, y, x));
    }
  }
  return out;
}

std::vector<BatchField> image_fields(int64_t batch = kBatch) {
  return {field("images", DType::f32, {batch, 1, kHeight, kWidth}),
          field("target", DType::i64, {batch}, 10, BatchRole::target)};
}

class Images : public DataTest {
 protected:
  std::string images = idx(8, {kImages, kHeight, kWidth}, image_bytes());
  std::string labels = idx(8, {kImages}, std::string("\0\1\2\3\4\5\6\7\10\11", 10));
  std::string idx_spec() {
    return "idx:" + write("images", images) + "," + write("labels", labels);
  }
};

TEST_F(Images, IdxPlainAndGzippedAreTheSame) {
  const auto fields = image_fields();
  const auto plain = open_data(idx_spec(), fields, {});
  // Of several members, as pigz and bgzip write them, too.
  const std::string members = gzip(images.substr(0, 100)) + gzip(images.substr(100));
  const auto zipped =
      open_data("idx:" + write("i.gz", members) + "," + write("l.gz", gzip(labels)), fields, {});
  for (int64_t batch : {0, 1, 5}) {
    const auto x = read_all<float>(*plain, batch, fields[0]);
    EXPECT_EQ(read_all<float>(*zipped, batch, fields[0]), x);
    const auto y = read_all<int64_t>(*plain, batch, fields[1]);
    for (int64_t n = 0; n < kBatch; ++n) {  // the label is the image's number
      const int64_t image = y[static_cast<size_t>(n)];
      for (int64_t i = 0; i < kHeight * kWidth; ++i) {
        EXPECT_FLOAT_EQ(x[static_cast<size_t>(n * kHeight * kWidth + i)],
                        static_cast<float>(pixel(image, i / kWidth, i % kWidth)) / 255);
      }
    }
  }
  EXPECT_NE(plain->describe().find("10 samples, 9 to train, 1 to validate"), std::string::npos)
      << plain->describe();
  expect_boxes_cut_the_batch<float>(*plain, fields[0]);
}

TEST_F(Images, EveryHeldOutImageIsSeenOnce) {
  const auto fields = image_fields();
  DataOptions options;
  options.validation_fraction = 0.7;  // 7 of 10: a batch of 4 and one of 3
  const auto data = open_data(idx_spec(), fields, options);
  ASSERT_EQ(data->batches(Split::validation), 2);
  std::vector<int64_t> seen;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t label : read_all<int64_t>(*data, b, fields[1], Split::validation))
      seen.push_back(label);
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{3, 4, 5, 6, 7, 8, 9, -100}));
  // Limited, it is spread over the part instead.
  options.max_validation_batches = 1;
  const auto brief = open_data(idx_spec(), fields, options);
  EXPECT_EQ(read_all<int64_t>(*brief, 0, fields[1], Split::validation),
            (std::vector<int64_t>{3, 4, 6, 8}));
  // A loss that counts every target allows no padding.
  auto counting = fields;
  counting[1].ignore.reset();
  options.max_validation_batches = 50;
  EXPECT_EQ(open_data(idx_spec(), counting, options)->batches(Split::validation), 1);
}

TEST_F(Images, TestFilesAreTheTestPart) {
  const auto fields = image_fields();
  const auto data =
      open_data(idx_spec() + "," + write("ti", images) + "," + write("tl", labels), fields, {});
  EXPECT_EQ(data->batches(Split::test), 3);
  EXPECT_EQ(read_all<int64_t>(*data, 2, fields[1], Split::test),
            (std::vector<int64_t>{8, 9, -100, -100}));
  std::set<int64_t> training;
  for (int64_t b = 0; b < 9; ++b) {
    for (int64_t label : read_all<int64_t>(*data, b, fields[1])) training.insert(label);
  }
  EXPECT_EQ(training.size(), 9u);
}

TEST_F(Images, CropsAndFlipsMoveTheImage) {
  const auto fields = image_fields();
  DataOptions options;
  options.augment = "crop=2,flip";
  options.validation_fraction = 0.2;
  const auto data = open_data(idx_spec(), fields, options);
  std::map<std::pair<int64_t, int64_t>, int> shifts;
  int flips = 0, total = 0;
  for (int64_t b = 0; b < 60; ++b) {
    const auto x = read_all<float>(*data, b, fields[0]);
    const auto y = read_all<int64_t>(*data, b, fields[1]);
    for (int64_t n = 0; n < kBatch; ++n, ++total) {
      const auto at = [&](int64_t row, int64_t column) {
        return x[static_cast<size_t>((n * kHeight + row) * kWidth + column)];
      };
      // Which one of 5 x 5 x 2 is it? Exactly one fits.
      int fits = 0;
      for (int64_t down = -2; down <= 2; ++down) {
        for (int64_t right = -2; right <= 2; ++right) {
          for (const bool flip : {false, true}) {
            bool same = true;
            for (int64_t row = 0; row < kHeight && same; ++row) {
              for (int64_t column = 0; column < kWidth && same; ++column) {
                const int64_t sy = row + down;
                const int64_t sx = (flip ? kWidth - 1 - column : column) + right;
                const bool inside = sy >= 0 && sy < kHeight && sx >= 0 && sx < kWidth;
                const float want =
                    inside ? static_cast<float>(pixel(y[static_cast<size_t>(n)], sy, sx)) / 255 : 0;
                same = std::abs(at(row, column) - want) < 1e-6F;
              }
            }
            if (!same) continue;
            ++fits;
            ++shifts[{down, right}];
            flips += flip;
          }
        }
      }
      EXPECT_EQ(fits, 1);
    }
  }
  EXPECT_EQ(shifts.size(), 25u) << "all shifts come";
  EXPECT_NEAR(flips, total / 2, total / 6);
  expect_boxes_cut_the_batch<float>(*data, fields[0]);
  // Validation sees the images as they are, the next epoch others than this one.
  const auto held = read_all<float>(*data, 0, fields[0], Split::validation);
  EXPECT_FLOAT_EQ(held[0], static_cast<float>(pixel(8, 0, 0)) / 255);
  EXPECT_NE(read_all<float>(*data, 0, fields[0]), read_all<float>(*data, 2, fields[0]));
  options.seed = 1;
  EXPECT_NE(read_all<float>(*open_data(idx_spec(), fields, options), 0, fields[0]),
            read_all<float>(*data, 0, fields[0]));
}

TEST_F(Images, ScalingMakesMeanZeroAndDeviationOne) {
  const auto fields = image_fields(9);
  DataOptions options;
  options.normalise = "data";
  const auto data = open_data(idx_spec(), fields, options);
  double sum = 0, squares = 0;
  const auto x = read_all<float>(*data, 0, fields[0]);  // an epoch: all 9
  for (float v : x) sum += static_cast<double>(v), squares += static_cast<double>(v) * v;
  EXPECT_NEAR(sum / static_cast<double>(x.size()), 0, 1e-5);
  EXPECT_NEAR(squares / static_cast<double>(x.size()), 1, 1e-5);
  options.normalise = "0.5/0.25";
  const auto plain = open_data(idx_spec(), fields, {}),
             given = open_data(idx_spec(), fields, options);
  const auto want = read_all<float>(*plain, 0, fields[0]),
             got = read_all<float>(*given, 0, fields[0]);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_FLOAT_EQ(got[i], (want[i] - 0.5F) / 0.25F);
}

TEST_F(Images, CifarRecordsAreChannelsFirst) {
  std::string one;  // three records: label, then 3 x 32 x 32
  for (int n = 0; n < 3; ++n) {
    one += static_cast<char>(n + 4);
    for (int i = 0; i < 3 * 32 * 32; ++i)
      one += static_cast<char>((n * 71 + i / 1024 * 13 + i) % 251);
  }
  const std::vector<BatchField> fields{field("images", DType::f32, {2, 3, 32, 32}),
                                       field("target", DType::i64, {2}, 10, BatchRole::target)};
  DataOptions options;
  options.validation_fraction = 0;
  const auto check = [&](const DataSource& data, int64_t samples) {
    std::set<int64_t> seen;
    for (int64_t b = 0; b < samples; ++b) {
      const auto x = read_all<float>(data, b, fields[0]);
      const auto y = read_all<int64_t>(data, b, fields[1]);
      for (int n = 0; n < 2; ++n) {
        const int64_t record = y[static_cast<size_t>(n)] - 4;
        seen.insert(record);
        for (int i : {0, 1023, 1024, 3071}) {
          EXPECT_FLOAT_EQ(x[static_cast<size_t>(n * 3072 + i)],
                          static_cast<float>((record * 71 + i / 1024 * 13 + i) % 251) / 255);
        }
      }
    }
    EXPECT_EQ(seen.size(), 3u);
  };
  check(*open_data("cifar:" + write("a.bin", one), fields, options), 3);
  // A second file goes on where the first ends.
  const auto two =
      open_data("cifar:" + write("a.bin", one) + "," + write("b.bin", one), fields, {});
  EXPECT_NE(two->describe().find("6 samples"), std::string::npos) << two->describe();
  EXPECT_EQ(two->describe().find("a batch of"), std::string::npos) << two->describe();
  std::vector<BatchField> larger = fields;  // a batch that is more than there is
  for (BatchField& of : larger) of.type.shape[0] = 8;
  const auto few = open_data("cifar:" + write("a.bin", one), larger, options);
  EXPECT_NE(few->describe().find("a batch of 8 has each of the 3 several times"), std::string::npos)
      << few->describe();
  check(*two, 6);
  for (int i = 1; i <= 5; ++i) write("data_batch_" + std::to_string(i) + ".bin", one);
  write("test_batch.bin", one);
  const auto folder = open_data("cifar:" + folder_.string(), fields, options);
  EXPECT_NE(folder->describe().find("18 samples, 15 to train, 0 to validate, 3 to test"),
            std::string::npos)
      << folder->describe();
  check(*folder, 15);
  EXPECT_EQ(read_all<int64_t>(*folder, 1, fields[1], Split::test), (std::vector<int64_t>{6, -100}));
  // CIFAR-100: the fine label is the second.
  std::string hundred;
  for (int n = 0; n < 3; ++n) hundred += "\x11" + one.substr(static_cast<size_t>(n) * 3073, 3073);
  check(*open_data("cifar100:" + write("c.bin", hundred), fields, options), 3);
  EXPECT_NE(open_error("cifar:" + write("c.bin", hundred), fields).find("no whole number of 3073"),
            std::string::npos);
}

TEST_F(Images, BadFilesAreRefusedWithTheirNames) {
  const auto refused = [&](const std::string& i, const std::string& l, const std::string& why,
                           std::vector<BatchField> fields = image_fields()) {
    const std::string what =
        open_error("idx:" + write("img", i) + "," + write("lab", l), std::move(fields));
    EXPECT_NE(what.find(why), std::string::npos) << what << "\nwanted: " << why;
    EXPECT_TRUE(what.find("img") != std::string::npos || what.find("lab") != std::string::npos);
  };
  const std::string zipped = gzip(images);
  for (size_t cut = 0; cut < zipped.size(); ++cut) {
    EXPECT_THROW(
        open_data("idx:" + write("img", zipped.substr(0, cut)) + "," + write("lab", labels),
                  image_fields(), {}),
        Error)
        << "cut at " << cut;
  }
  refused(zipped.substr(0, zipped.size() / 2), labels, "the file is cut short");
  std::string flipped = zipped;
  flipped[flipped.size() - 5] = static_cast<char>(flipped[flipped.size() - 5] ^ 1);  // its checksum
  refused(flipped, labels, "the gzip stream is damaged");
  refused(zipped + zipped, labels, "has more bytes than its shape");
  refused(images.substr(0, 100), labels, "needs 300 bytes, but 84 follow the header");
  refused(images + "x", labels, "has more bytes than its shape [10, 6, 5] needs");
  refused("P5 6 5", labels, "is no IDX file");
  refused(idx(10, {3}, "abc"), labels, "IDX element type 10, wanted 8, 9");
  refused(idx(8, {0xffffffff, 0xffffffff, 0xffffffff}, ""), labels, "is too large");
  refused(gzip(idx(8, {60000, 28, 28}, "")), labels, "the file is cut short");
  refused(labels, labels, "wanted images [images, height, width]");
  for (const char type : {'\x08', '\x0d'})
    refused(idx(type, {0, kHeight, kWidth}, ""), idx(8, {0}, ""), "has no samples");
  refused(images, idx(8, {9}, std::string(9, '\0')), "is [9], but");
  refused(images, idx(8, {kImages}, std::string(kImages, '\x0b')),
          "element 0 is 11, but the model's input 'target' takes 0 to 9");
  auto other = image_fields();
  other[0].type.shape[3] = 28;
  refused(images, labels, "shape is [10, 6, 5], but the model's input 'images' is [4, 1, 6, 28]",
          other);
  EXPECT_NE(open_error(idx_spec(), {image_fields()[0]}).find("but the model takes 'images'"),
            std::string::npos);
  for (const char* augment : {"crop", "crop=0", "rotate", "crop=2,,flip", "flip=1"}) {
    DataOptions options;
    options.augment = augment;
    EXPECT_THROW(open_data(idx_spec(), image_fields(), options), Error) << augment;
  }
  for (const char* normalise : {"1", "0.1/0", "a/b", "1,2/1", "1,2/1,2", "0.5/0.5/0.5"}) {
    DataOptions options;
    options.normalise = normalise;
    EXPECT_THROW(open_data(idx_spec(), image_fields(), options), Error) << normalise;
  }
}

TEST_F(Images, RowsAreForMatrices) {
  DataOptions options;
  options.normalise = "rows";
  const std::string pixels = npy("<f4", "(2, 1, 1, 2)", bytes_of<float>({1, 2, 3, 4}));
  const std::string archive =
      "npz:" + write("i.npz", npz({{"images", pixels},
                                   {"target", npy("<i8", "(2,)", bytes_of<int64_t>({0, 1}))}}));
  const std::vector<BatchField> small{field("images", DType::f32, {1, 1, 1, 2}),
                                      field("target", DType::i64, {1}, 2, BatchRole::target)};
  for (const std::string& what :
       {open_error(idx_spec(), image_fields(), options), open_error(archive, small, options)}) {
    EXPECT_NE(what.find("normalise 'rows' is for floating matrices"), std::string::npos) << what;
    EXPECT_NE(what.find("images are normalised by data or MEAN/DEVIATION"), std::string::npos);
  }
}

/// Elements of several bytes are big-endian in the file.
TEST_F(Images, IdxOfOtherTypes) {
  const std::vector<BatchField> fields{field("images", DType::f32, {1, 1, 1, 2}),
                                       field("target", DType::i64, {1}, 300, BatchRole::target)};
  DataOptions options;
  options.validation_fraction = 0;
  const std::string floats = big_endian(0x3f800000) + big_endian(0xc0200000);  // 1, -2.5
  const auto data = open_data("idx:" + write("f", idx(0x0d, {1, 1, 2}, floats)) + "," +
                                  write("l", idx(0x0b, {1}, std::string("\x01\x02"))),
                              fields, options);
  EXPECT_EQ(read_all<float>(*data, 0, fields[0]), (std::vector<float>{1, -2.5}));
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1]), (std::vector<int64_t>{258}));
}

}  // namespace
}  // namespace shardrun
