// Data sources: what they read, that any box of a batch is a cut of the whole batch, and how bad
// files are refused.
#include "exec/data/data.h"

#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/process/process_memory.h"
#include "exec/data/data_sources.h"
#include "tests/exec/data/data_support.h"

namespace shardrun {
namespace {

using namespace test;  // NOLINT: the fixture and its helpers

std::string golden(const std::string& name) {
  // Written by numpy.savez_compressed and numpy.savez: x = arange(40, float32).reshape(10, 4) / 4,
  // y = arange(10, int64) % 3.
  return SHARDRUN_SOURCE_DIR "/tests/exec/golden/" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<BatchField> token_fields(int64_t samples, int64_t context, int64_t vocabulary) {
  return {field("ids", DType::i64, {samples, context}, vocabulary),
          field("labels", DType::i64, {samples, context}, vocabulary, BatchRole::target)};
}

TEST(DataSpec, EachKindIsParsed) {
  for (const Named<DataKind>& one : kDataKinds) {
    const std::string text = str(one.name, ":a:b,c");
    const std::optional<DataSpec> spec = parse_data(text);
    ASSERT_TRUE(spec) << text;
    EXPECT_EQ(spec->kind, one.kind) << text;
    EXPECT_EQ(name_of(kDataKinds, spec->kind), one.name);
    EXPECT_EQ(spec->text, text);
    EXPECT_EQ(spec->rest, "a:b,c");
  }
  for (const char* none : {"", "npz", "npz:", ":a", "words:a", "npz2:a"})
    EXPECT_FALSE(parse_data(none)) << none;
}

TEST_F(DataTest, TargetsAreTheInputsOneLater) {
  // Token i of this text is i % 251: the value tells the position.
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i % 251);
  const auto fields = token_fields(4, 16, 256);
  const auto data = open_data("text:" + write("a.txt", text), fields, {});
  for (Split split : {Split::training, Split::validation}) {
    const auto ids = read_all<int64_t>(*data, 0, fields[0], split);
    const auto labels = read_all<int64_t>(*data, 0, fields[1], split);
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(labels[i], (ids[i] + 1) % 251);
      if (i % 16 != 0) {
        ASSERT_EQ(ids[i], (ids[i - 1] + 1) % 251);
      }
    }
  }
  // A flat target and i32 are the same tokens.
  auto flat = fields;
  flat[1].type = {DType::i32, {64}};
  const auto flat_data = open_data("text:" + (folder_ / "a.txt").string(), flat, {});
  const auto want = read_all<int64_t>(*data, 3, fields[1]);
  const auto got = read_all<int32_t>(*flat_data, 3, flat[1]);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end()));
}

TEST_F(DataTest, AnEpochTakesEverySampleOnceAndNoneOfTheValidationPart) {
  std::vector<uint32_t> tokens(1000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i);
  const int64_t context = 10;
  const auto fields = token_fields(1, context, 1000);
  const std::string spec = "tokens:" + write_values("a.bin", tokens) + ":uint32";
  const auto data = open_data(spec, fields, {});
  // 900 to train: (900 - 1) / 10 - 1 = 88 samples.
  std::vector<std::set<int64_t>> epochs(3);
  std::vector<int64_t> order;
  for (int64_t step = 0; step < 3 * 88; ++step) {
    const int64_t start = read_all<int64_t>(*data, step, fields[0])[0];
    ASSERT_LT(start + context, 900);
    epochs[static_cast<size_t>(step / 88)].insert(start);
    order.push_back(start);
  }
  for (const auto& starts : epochs) {
    EXPECT_EQ(starts.size(), 88u);
    for (int64_t s : starts) EXPECT_EQ((s - *starts.begin()) % context, 0);
  }
  EXPECT_FALSE(std::is_sorted(order.begin(), order.begin() + 88));
  EXPECT_NE(std::vector(order.begin(), order.begin() + 88),
            std::vector(order.begin() + 88, order.begin() + 176));
  EXPECT_TRUE(*epochs[0].begin() != *epochs[1].begin() || *epochs[1].begin() != *epochs[2].begin());
  // Another seed, another order.
  DataOptions other;
  other.seed = 1;
  EXPECT_NE(read_all<int64_t>(*open_data(spec, fields, other), 0, fields[0])[0], order[0]);
  EXPECT_NE(data->describe().find("1000 tokens, 900 to train"), std::string::npos)
      << data->describe();
}

TEST_F(DataTest, ValidationCoversItsPartEvenly) {
  std::vector<uint16_t> tokens(1000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i);
  const auto fields = token_fields(3, 8, 1000);
  const std::string spec = "tokens:" + write_values("a.bin", tokens);
  DataOptions options;
  const auto data = open_data(spec, fields, options);
  ASSERT_EQ(data->batches(Split::validation), 4);  // 99 / 8 = 12 samples, 3 a batch
  std::vector<int64_t> starts;
  for (int64_t b = 0; b < 4; ++b) {
    const auto ids = read_all<int64_t>(*data, b, fields[0], Split::validation);
    for (size_t s = 0; s < 3; ++s) starts.push_back(ids[s * 8]);
    EXPECT_EQ(ids, read_all<int64_t>(*data, b, fields[0], Split::validation));
  }
  EXPECT_EQ(starts.front(), 900);
  EXPECT_EQ(starts.back(), 1000 - 9);
  for (size_t i = 1; i < starts.size(); ++i) {
    EXPECT_GE(starts[i] - starts[i - 1], 8);
    EXPECT_LE(starts[i] - starts[i - 1], 9);
  }
  options.max_validation_batches = 2;
  EXPECT_EQ(open_data(spec, fields, options)->batches(Split::validation), 2);
  options.validation_fraction = 0;
  EXPECT_EQ(open_data(spec, fields, options)->batches(Split::validation), 0);
}

TEST_F(DataTest, AnyBoxIsACutOfTheGlobalBatch) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>((i * 7919 + i / 13) % 256);
  const auto tokens = token_fields(7, 10, 256);
  const auto text_data = open_data("text:" + write("a.txt", text), tokens, {});
  for (const BatchField& f : tokens) expect_boxes_cut_the_batch<int64_t>(*text_data, f);

  const std::vector<BatchField> synthetic{
      field("x", DType::f32, {7, 5, 2}), field("n", DType::i64, {7, 5}, 50257),
      field("wide", DType::f32, {150, 3, 60}), field("m", DType::boolean, {40, 90})};
  const auto noise = open_data("", synthetic, {});
  expect_boxes_cut_the_batch<float>(*noise, synthetic[0]);
  expect_boxes_cut_the_batch<int64_t>(*noise, synthetic[1]);
  expect_boxes_cut_the_batch<float>(*noise, synthetic[2]);
  expect_boxes_cut_the_batch<uint8_t>(*noise, synthetic[3]);

  const std::vector<BatchField> arrays{field("x", DType::f32, {3, 4}),
                                       field("y", DType::i64, {3}, 3)};
  for (const char* file : {"deflated.npz", "stored.npz"}) {
    const auto npz = open_data("npz:" + golden(file), arrays, {});
    expect_boxes_cut_the_batch<float>(*npz, arrays[0]);
    expect_boxes_cut_the_batch<int64_t>(*npz, arrays[1]);
  }
}

TEST_F(DataTest, SyntheticBatchesLieInTheirRangesAndDiffer) {
  std::vector<BatchField> fields{
      field("x", DType::f32, {100, 100}), field("n", DType::i32, {1000}, 7),
      field("m", DType::boolean, {1000}), field("h", DType::bf16, {100, 100})};
  const auto data = open_data("", fields, {});
  const auto x = read_all<float>(*data, 5, fields[0]);
  double sum = 0, squares = 0, products = 0;
  for (float v : x) sum += v, squares += v * v;
  EXPECT_NEAR(sum / 1e4, 0, 0.05);
  EXPECT_NEAR(squares / 1e4, 1, 0.06);
  for (size_t i = 64; i < x.size(); ++i) products += x[i] * x[i - 64];  // made of the same word
  EXPECT_NEAR(products / 1e4, 0, 0.05);
  for (const auto& [below, fraction] : {std::pair(-2.0, 0.0228), {-1.0, 0.1587}, {0.5, 0.6915}}) {
    const auto count = std::count_if(x.begin(), x.end(), [&](float v) { return v < below; });
    EXPECT_NEAR(static_cast<double>(count) / 1e4, fraction, 0.02) << below;
  }
  std::map<int32_t, int> histogram;
  for (int32_t v : read_all<int32_t>(*data, 5, fields[1])) ++histogram[v];
  EXPECT_EQ(histogram.size(), 7u);
  EXPECT_EQ(histogram.begin()->first, 0);
  EXPECT_EQ(histogram.rbegin()->first, 6);
  std::vector<char> m(1000);
  data->read(5, Split::training, fields[2], full_box({1000}), m.data());
  EXPECT_NEAR(static_cast<double>(std::count(m.begin(), m.end(), 1)), 500, 80);
  EXPECT_NE(x, read_all<float>(*data, 6, fields[0]));
  EXPECT_NE(x, read_all<float>(*data, 5, fields[0], Split::validation));
  // bf16 rounds the same draw: another dtype is another field name, so compare with itself in f32.
  fields[3].type.dtype = DType::f32;
  const auto wide = read_all<float>(*data, 5, fields[3]);
  fields[3].type.dtype = DType::bf16;
  const auto narrow = read_all<bfloat16>(*data, 5, fields[3]);
  for (size_t i = 0; i < wide.size(); ++i)
    ASSERT_EQ(static_cast<float>(narrow[i]), static_cast<float>(bfloat16(wide[i])));
  EXPECT_EQ(open_error("", {field("n", DType::i64, {4})}),
            "synthetic batches: the range of input 'n' (i64[4]) is not known; give --data");
}

TEST_F(DataTest, NpzSamplesKeepTogetherAndComeOnceAnEpoch) {
  const std::vector<BatchField> fields{field("x", DType::f32, {3, 4}),
                                       field("y", DType::i64, {3}, 3, BatchRole::target)};
  for (const char* file : {"deflated.npz", "stored.npz"}) {
    const auto data = open_data("npz:" + golden(file), fields, {});
    std::multiset<int> seen;  // 9 to train, 1 to validate
    for (int64_t b = 0; b < 3; ++b) {
      const auto x = read_all<float>(*data, b, fields[0]);
      const auto y = read_all<int64_t>(*data, b, fields[1]);
      for (size_t s = 0; s < 3; ++s) {
        const int sample = static_cast<int>(x[s * 4]);  // x[sample][j] = sample + j / 4
        for (size_t j = 0; j < 4; ++j)
          EXPECT_EQ(x[s * 4 + j], static_cast<float>(sample) + static_cast<float>(j) / 4);
        EXPECT_EQ(y[s], sample % 3);
        seen.insert(sample);
      }
    }
    EXPECT_EQ(seen, (std::multiset<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    ASSERT_EQ(data->batches(Split::validation), 1);
    EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1], Split::validation),
              (std::vector<int64_t>{0, -100, -100}));  // sample 9, and what is left of a batch
  }
}

TEST_F(DataTest, ArraysOfExactlyTheBatchAreReadWhole) {
  const std::vector<BatchField> fields{field("x", DType::f64, {10, 4}),
                                       field("y", DType::i32, {10}, 3)};
  const auto data = open_data("npz:" + golden("stored.npz"), fields, {});
  EXPECT_EQ(data->batches(Split::validation), 0);
  for (int64_t b : {0, 5}) {
    const auto x = read_all<double>(*data, b, fields[0]);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], static_cast<double>(i) / 4);
    EXPECT_EQ(read<int32_t>(*data, b, fields[1], {{4, 3}}), (std::vector<int32_t>{1, 2, 0}));
  }
}

TEST_F(DataTest, NpyOfEveryFormatAndVersion) {
  const std::vector<BatchField> fields{field("v", DType::f64, {4})};
  const auto read_npy = [&](const std::string& bytes) {
    const auto data = open_data("npy:" + write("v.npy", bytes), fields, {});
    return read_all<double>(*data, 0, fields[0]);
  };
  const std::vector<double> want{0, 1, 2, 100};
  EXPECT_EQ(read_npy(npy("<f4", "(4,)", bytes_of<float>({0, 1, 2, 100}))), want);
  EXPECT_EQ(read_npy(npy("<f8", "(4,)", bytes_of<double>({0, 1, 2, 100}), 2)), want);
  EXPECT_EQ(read_npy(npy("<f2", "(4,)", bytes_of<uint16_t>({0, 0x3c00, 0x4000, 0x5640}), 3)), want);
  EXPECT_EQ(read_npy(npy("|i1", "(4,)", bytes_of<int8_t>({0, 1, 2, 100}))), want);
  EXPECT_EQ(read_npy(npy("|u1", "(4,)", bytes_of<uint8_t>({0, 1, 2, 200}))),
            (std::vector<double>{0, 1, 2, 200}));
  EXPECT_EQ(read_npy(npy("<i2", "(4,)", bytes_of<int16_t>({0, -1, 2, 100}))),
            (std::vector<double>{0, -1, 2, 100}));
  EXPECT_EQ(read_npy(npy("<u2", "(4,)", bytes_of<uint16_t>({0, 1, 2, 65535}))),
            (std::vector<double>{0, 1, 2, 65535}));
  EXPECT_EQ(read_npy(npy("<i4", "(4,)", bytes_of<int32_t>({0, 1, 2, 100}))), want);
  EXPECT_EQ(read_npy(npy("<u4", "(4,)", bytes_of<uint32_t>({0, 1, 2, 4000000000u}))),
            (std::vector<double>{0, 1, 2, 4e9}));
  EXPECT_EQ(read_npy(npy("<i8", "(4L,)", bytes_of<int64_t>({0, 1, 2, 100}))), want);
  EXPECT_EQ(read_npy(npy("<u8", "(4,)", bytes_of<uint64_t>({0, 1, 2, 100}))), want);
  EXPECT_EQ(read_npy(npy("|b1", "(4,)", std::string("\0\1\1\0", 4))),
            (std::vector<double>{0, 1, 1, 0}));
  // A view of bytes as booleans has any bytes: all but 0 are true, as in numpy.
  const std::string bytes = npy("|b1", "(4,)", std::string("\0\1\2\xff", 4));
  EXPECT_EQ(read_npy(bytes), (std::vector<double>{0, 1, 1, 1}));
  const std::vector<BatchField> mask{field("m", DType::boolean, {4})};
  EXPECT_EQ(read_all<uint8_t>(*open_data("npy:" + write("m.npy", bytes), mask, {}), 0, mask[0]),
            (std::vector<uint8_t>{0, 1, 1, 1}));
}

TEST_F(DataTest, NpyFilesByOrderOrByName) {
  const std::vector<BatchField> fields{field("a", DType::f32, {2}),
                                       field("b", DType::i64, {2}, 10)};
  const std::string a = write("a.npy", npy("<f4", "(2,)", bytes_of<float>({1.5, 2.5})));
  const std::string b = write("b.npy", npy("<i8", "(2,)", bytes_of<int64_t>({7, 8})));
  for (const std::string& spec : {"npy:" + a + "," + b, "npy:b=" + b + ",a=" + a}) {
    const auto data = open_data(spec, fields, {});
    EXPECT_EQ(read_all<float>(*data, 0, fields[0]), (std::vector<float>{1.5, 2.5}));
    EXPECT_EQ(read_all<int64_t>(*data, 0, fields[1]), (std::vector<int64_t>{7, 8}));
  }
  EXPECT_EQ(open_error("npy:" + a, fields),
            "--data npy:" + a + ": got 1 files, wanted one for each of 'a', 'b'");
  EXPECT_EQ(
      open_error("npy:c=" + a + ",b=" + b, fields),
      "--data npy:c=" + a + ",b=" + b + ": the model has no batch input 'c'; it has 'a', 'b'");
}

TEST_F(DataTest, BadArraysAreRefusedWithTheirNames) {
  const std::vector<BatchField> one{field("v", DType::i64, {2}, 5)};
  const auto refused = [&](const std::string& bytes) {
    const std::string path = write("v.npy", bytes);
    std::string what = open_error("npy:" + path, one);
    EXPECT_EQ(what.substr(0, path.size()), path);
    return what.substr(std::min(what.size(), path.size()));
  };
  const std::string two = bytes_of<int64_t>({1, 2});
  EXPECT_EQ(refused("hello, world"), ": is no npy file; write it with numpy's save");
  EXPECT_EQ(
      refused(npy("<i8", "(2, 3)", two + two)),
      ": shape [2, 3] of '<i8' needs 48 bytes, but 32 follow the header; the file is cut short");
  EXPECT_NE(refused(npy(">i8", "(2,)", two)).find("elements are '>i8', wanted one of <f2"),
            std::string::npos);
  EXPECT_EQ(refused(npy("<i8", "(2,)", two, 9)), ": npy version 9, wanted 1 to 3");
  EXPECT_EQ(refused(npy("<i8", "(2, -1)", two)),
            ": the npy header's shape (2, -1) is not of whole numbers");
  EXPECT_NE(refused(npy("<i8", "(99999999999, 99999999999)", two)).find("is too large"),
            std::string::npos);
  EXPECT_NE(
      refused(npy("<i8", "(0, 1099511627776, 1099511627776)", "", 1, "True")).find("is too large"),
      std::string::npos);
  std::string ones = "(";
  for (int i = 0; i < 65; ++i) ones += "1,";
  EXPECT_EQ(refused(npy("<i8", ones + ")", two)), ": the npy header's shape has more than 64 dims");
  EXPECT_NE(refused(npy("<f4", "(2,)", two))
                .find("elements are '<f4', but the model's input 'v' is i64[2]"),
            std::string::npos);
  EXPECT_NE(
      refused(npy("<i8", "(2, 1)", two)).find("shape is [2, 1], but the model's input 'v' is [2]"),
      std::string::npos);
  EXPECT_NE(refused(npy("<i8", "()", two)).find("shape is []"), std::string::npos);

  const std::string path = write("w.npy", npy("<i8", "(2,)", bytes_of<int64_t>({1, 5})));
  EXPECT_EQ(open_error("npy:" + path, one),
            path + ": element 1 is 5, but the model's input 'v' takes 0 to 4");
  std::vector<BatchField> table{field("v", DType::i64, {2, 3}, 5)};
  table[0].column_bounds = {5, 9, 0};
  const auto rows = [&](int64_t last) {
    return write("t.npy", npy("<i8", "(2, 3)", bytes_of<int64_t>({4, 8, 99, 0, last, 0})));
  };
  EXPECT_EQ(read_all<int64_t>(*open_data("npy:" + rows(7), table, {}), 0, table[0]),
            (std::vector<int64_t>{4, 8, 99, 0, 7, 0}));
  const std::string wrong = rows(9);
  EXPECT_EQ(open_error("npy:" + wrong, table),
            wrong + ": element 4 is 9, but column 1 of the model's input 'v' takes 0 to 8");
  // Not the -100 that marks a target to ignore.
  const std::string beyond =
      write("u.npy", npy("<u8", "(2,)", bytes_of<uint64_t>({1, ~uint64_t{99}})));
  EXPECT_EQ(open_error("npy:" + beyond, one),
            beyond + ": element 1 is 18446744073709551516, which does not fit i64");
  // -100 marks a target to ignore; it is no legal input.
  auto target = one;
  target[0].role = BatchRole::target;
  const std::string ignored = write("i.npy", npy("<i8", "(2,)", bytes_of<int64_t>({-100, 4})));
  EXPECT_EQ(read_all<int64_t>(*open_data("npy:" + ignored, target, {}), 0, target[0]),
            (std::vector<int64_t>{-100, 4}));
  EXPECT_THROW(open_data("npy:" + ignored, one, {}), Error);
  const auto narrow = std::vector{field("v", DType::i32, {1})};
  const std::string wide =
      write("n.npy", npy("<i8", "(1,)", bytes_of<int64_t>({int64_t{1} << 40})));
  EXPECT_THROW(open_data("npy:" + wide, narrow, {}), Error);

  const std::string npz = golden("stored.npz");
  EXPECT_EQ(
      open_error("npz:" + npz, {field("z", DType::f32, {2, 4})}),
      npz +
          ": no array 'z'; it has 'x', 'y'; name the arrays as the model's batch inputs: 'z', or "
          "say npz:FILE,z=ARRAY");
}

TEST_F(DataTest, ArraysStoredInAnotherWayAreRefusedWithWhatToDo) {
  std::vector<BatchField> fields{field("x", DType::f32, {2, 3, 4, 5}),
                                 field("target", DType::i64, {2}, 10)};
  fields[1].role = BatchField::Role::target;
  const std::string labels = npy("<i8", "(2,)", bytes_of<int64_t>({1, 2}));
  const auto refused = [&](const std::string& x, const std::string& y) {
    return open_error("npy:" + write("x.npy", x) + "," + write("y.npy", y), fields);
  };
  const auto images = [&](const std::string& shape) {
    return npy("<f4", shape, std::string(2 * 3 * 4 * 5 * sizeof(float), '\0'));
  };
  const std::string last = refused(images("(2, 4, 5, 3)"), labels);
  EXPECT_NE(last.find("; channels come first: transpose(0, 3, 1, 2)"), std::string::npos) << last;
  const std::string turned = refused(images("(2, 3, 5, 4)"), labels);
  EXPECT_NE(turned.find("wanted [samples, then the input's dims]"), std::string::npos) << turned;
  EXPECT_EQ(turned.find("transpose"), std::string::npos) << turned;

  const std::string fine = images("(2, 3, 4, 5)"), advice = "; of one-hot labels take the classes";
  for (const auto& [format, bytes] : {std::pair("<f4", 4), std::pair("<i8", 8)}) {
    const std::string one_hot =
        refused(fine, npy(format, "(2, 10)", std::string(20 * bytes, '\0')));
    EXPECT_NE(one_hot.find(advice), std::string::npos) << one_hot;
    const std::string other = refused(fine, npy(format, "(2, 9)", std::string(18 * bytes, '\0')));
    EXPECT_EQ(other.find(advice), std::string::npos) << other;
  }
}

TEST_F(DataTest, WhatIsForImagesIsRefusedByItsOption) {
  const std::string rows = write("v.npy", npy("<f4", "(4, 3)", std::string(48, '\0')));
  const std::vector<BatchField> fields{field("v", DType::f32, {2, 3})};
  const auto refused = [&](const DataOptions& options) {
    try {
      open_data("npy:" + rows, fields, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(read)");
  };
  DataOptions augment, normalise;
  augment.augment = "flip";
  normalise.normalise = "data";
  const std::string images =
      " is for floating images [samples, channels, height, width]; the model "
      "takes 'v' f32[2, 3]";
  EXPECT_EQ(refused(augment), "--data npy:" + rows + ": --augment 'flip'" + images);
  EXPECT_EQ(refused(normalise), "--data npy:" + rows + ": --normalise 'data'" + images +
                                    "; matrices are normalised by rows");
}

TEST_F(DataTest, ArchivesMayHoldWhatNobodyAsksFor) {
  const auto one = std::vector{field("v", DType::f32, {1})};
  const std::string v = npy("<f4", "(2,)", bytes_of<float>({1, 2}));
  const std::string path = write(
      "names.npz", npz({{"classes", npy("<U1", "(2,)", "a\0\0\0b\0\0\0")}, {"v", v}, {"x", "?"}}));
  EXPECT_EQ(read_all<float>(*open_data("npz:" + path, one, {}), 0, one[0]),
            (std::vector<float>{1}));
  EXPECT_NE(
      open_error("npz:" + path + ",v=classes", one).find("array 'classes': elements are '<U1'"),
      std::string::npos);
  const std::string twice = write("twice.npz", npz({{"v", v}, {"v", v}}));
  EXPECT_EQ(open_error("npz:" + twice, one),
            twice + ": has two arrays 'v', wanted one of each name");
}

/// A row of a shuffled batch is named by where it lies in the file.
TEST_F(DataTest, RowsOfABatchKnowWhereTheyComeFrom) {
  const std::vector<BatchField> fields{field("x", DType::f32, {3, 4}),
                                       field("y", DType::i64, {3}, 3, BatchRole::target)};
  const auto data = open_data("npz:" + golden("stored.npz"), fields, {});
  std::set<std::string> seen;
  for (int64_t batch = 0; batch < 3; ++batch) {
    const auto x = read_all<float>(*data, batch, fields[0]);  // x[sample][j] = sample + j / 4
    for (int64_t row = 0; row < 3; ++row) {
      const std::string from = data->origin(batch, Split::training, fields[0], row);
      const int sample = static_cast<int>(x[static_cast<size_t>(4 * row)]);
      EXPECT_EQ(from, golden("stored.npz") + ": array 'x', row " + std::to_string(sample));
      seen.insert(from);
    }
  }
  EXPECT_EQ(seen.size(), 9u);
}

/// Arrays that lie in their file as they are take no memory, so no limit is theirs.
TEST_F(DataTest, WhatDoesNotFitIntoMemoryIsNotUnpacked) {
  const std::vector<BatchField> fields{field("x", DType::f32, {3, 4}),
                                       field("y", DType::i64, {3}, 3)};
  const std::string turned =
      write("turned.npy", npy("<f4", "(4, 2)", std::string(32, '\0'), 1, "True"));
  limit_process_memory(1);
  const std::string deflated = open_error("npz:" + golden("deflated.npz"), fields);
  EXPECT_NE(deflated.find("deflated.npz: array 'x' takes 288 bytes unpacked, and this process "),
            std::string::npos)
      << deflated;
  EXPECT_NE(deflated.find("write it with numpy's savez"), std::string::npos) << deflated;
  const std::string order = open_error("npy:" + turned, {field("v", DType::f32, {2, 2})});
  EXPECT_NE(order.find("turned.npy takes 32 bytes turned round"), std::string::npos) << order;
  open_data("npz:" + golden("stored.npz"), fields, {});
  limit_process_memory(std::numeric_limits<int64_t>::max());
  open_data("npz:" + golden("deflated.npz"), fields, {});
}

TEST_F(DataTest, DamagedZipFilesAreRefusedNeverFollowed) {
  const std::vector<BatchField> fields{field("x", DType::f32, {3, 4}),
                                       field("y", DType::i64, {3}, 3)};
  for (const char* name : {"deflated.npz", "stored.npz"}) {
    const std::string good = read_file(golden(name));
    for (size_t cut = 0; cut < good.size(); ++cut) {
      const std::string path = write("cut.npz", good.substr(0, cut));
      EXPECT_THROW(open_data("npz:" + path, fields, {}), Error) << name << " cut at " << cut;
    }
    int survived = 0;
    for (size_t at = 0; at < good.size(); ++at) {
      for (unsigned char flip : {0x01, 0x80, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ flip);
        const std::string path = write("flip.npz", bad);
        try {
          const auto data = open_data("npz:" + path, fields, {});
          read_all<float>(*data, 0, fields[0]);
          read_all<int64_t>(*data, 0, fields[1]);
          ++survived;
        } catch (const Error&) {
        }
      }
    }
    // Dates, versions and attributes do not matter; names, sizes, offsets and data do.
    EXPECT_LT(survived, static_cast<int>(good.size())) << name;
  }
}

TEST_F(DataTest, BadTokenFilesAreRefused) {
  const auto fields = token_fields(2, 8, 100);
  const std::string text = write("a.txt", std::string(50, 'A') + "\xff" + std::string(49, 'A'));
  EXPECT_EQ(open_error("text:" + text, fields),
            text +
                ": token 255 at position 50 is beyond the model's vocabulary of 100; tokenise the "
                "text for this model");
  const std::string brief = write("b.txt", "12345678");
  EXPECT_EQ(open_error("text:" + brief, fields),
            brief + ": 8 tokens are too few for a context of 8, which needs 9");
  const std::string odd = write("c.bin", "123");
  EXPECT_EQ(open_error("tokens:" + odd, fields),
            odd + ": 3 bytes are no whole number of 2-byte tokens");
  const std::string empty = write("d.txt", "");
  EXPECT_EQ(open_error("text:" + empty, fields), empty + ": the file is empty");
  const std::string missing = (folder_ / "none").string();
  EXPECT_EQ(open_error("text:" + missing, fields),
            missing + ": cannot open: No such file or directory");
  EXPECT_EQ(open_error("text:" + folder_.string(), fields),
            folder_.string() + ": is not a regular file");
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* kind : {"text:", "npz:"})
    EXPECT_EQ(open_error(kind + pipe, fields), pipe + ": is not a regular file");
  EXPECT_NE(open_error("words:" + text, fields).find("wanted text:FILE"), std::string::npos);
  EXPECT_NE(open_error("text:" + text, {field("x", DType::f32, {2, 8})}).find("use npz:FILE"),
            std::string::npos);
  EXPECT_NE(
      open_error("text:" + text, {field("x", DType::i64, {2, 8, 3})}).find("[samples, context]"),
      std::string::npos);
  EXPECT_NE(
      open_error("text:" + text, {fields[0], field("t", DType::i64, {2}, 100, BatchRole::target)})
          .find("target 't' is i64[2], wanted one token for each of i64[2, 8] 'ids'"),
      std::string::npos);
}

TEST_F(DataTest, WideVocabulariesReadUint32) {
  std::vector<uint32_t> tokens(100, 70000);
  const auto fields = token_fields(1, 4, 100000);
  const auto data = open_data("tokens:" + write_values("a.bin", tokens), fields, {});
  EXPECT_EQ(read_all<int64_t>(*data, 0, fields[0]), (std::vector<int64_t>(4, 70000)));
}

TEST_F(DataTest, TheShortestFileTrainsWithoutValidation) {
  const auto fields = token_fields(2, 8, 256);
  const auto data = open_data("text:" + write("a.txt", "012345678"), fields, {});
  EXPECT_EQ(data->batches(Split::validation), 0);
  EXPECT_EQ(read_all<int64_t>(*data, 9, fields[1])[15], '8');
}

/// Models of transformers take more than tokens, and shift their labels themselves.
TEST_F(DataTest, TextFillsWhatModelsOfTokensTake) {
  std::vector<BatchField> fields = token_fields(2, 4, 256);
  fields[1].name = "labels";
  fields[1].shift = 0;
  fields.push_back(field("attention_mask", DType::f32, {2, 4}));
  fields.push_back(field("token_type_ids", DType::i64, {2, 4}, 2));
  fields.push_back(field("position_ids", DType::i64, {2, 4}, 4));
  const auto data =
      open_data("text:" + write("a.txt", std::string(80, 'a') + "bcdefgh"), fields, {});
  EXPECT_NE(data->describe().find("targets are the same tokens"), std::string::npos);
  const Box whole = {{0, 2}, {0, 4}};
  for (int64_t batch = 0; batch < 8; ++batch) {
    EXPECT_EQ(read<int64_t>(*data, batch, fields[0], whole),
              read<int64_t>(*data, batch, fields[1], whole));
  }
  EXPECT_EQ(read<float>(*data, 0, fields[2], whole), std::vector<float>(8, 1));
  EXPECT_EQ(read<int64_t>(*data, 0, fields[3], whole), std::vector<int64_t>(8, 0));
  EXPECT_EQ(read<int64_t>(*data, 0, fields[4], {{1, 1}, {1, 3}}), (std::vector<int64_t>{1, 2, 3}));
  fields.push_back(field("other", DType::i64, {2, 4}));
  EXPECT_NE(open_error("text:" + (folder_ / "a.txt").string(), fields).find("'other'"),
            std::string::npos);
}

TEST(Tokens, AreCountedOnTheFirstIntegerMatrix) {
  EXPECT_EQ(tokens_per_batch(token_fields(4, 8, 10)), 32);
  EXPECT_EQ(tokens_per_batch({field("x", DType::f32, {4, 8}),
                              field("y", DType::i64, {4}, 3, BatchRole::target)}),
            0);
}

/// Bytes of images index nothing, and columns of a table index different things; a mask before the
/// tokens is passed over.
TEST(Tokens, AreNeitherImagesNorTables) {
  const BatchField labels = field("y", DType::i64, {4}, 3, BatchRole::target);
  EXPECT_EQ(tokens_per_batch({field("x", DType::i32, {4, 3, 8, 8}), labels}), 0);
  EXPECT_EQ(tokens_per_batch({field("x", DType::i32, {4, 64}), labels}), 0);
  BatchField table = field("x", DType::i64, {4, 3}, 5);
  table.column_bounds = {5, 9, 20};
  EXPECT_EQ(tokens_per_batch({table, labels}), 0);
  EXPECT_EQ(tokens_per_batch({field("mask", DType::i64, {4, 8}),
                              field("tokens", DType::i64, {4, 8}, 10), labels}),
            32);
}

}  // namespace
}  // namespace shardrun
