// The forward pass alone: what ONNX Runtime computed (tests/golden/make_outputs.py), on one rank
// and on several, by the public header and by the command.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "exec/data/array_file.h"
#include "exec/data/data_files.h"
#include "exec/data/data_internal.h"
#include "shardrun/inference.h"
#include "tests/launcher/command.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;
using test::Workspace;

const std::string kGolden = SHARDRUN_GOLDEN;

struct Array {
  Shape shape;
  std::string format;
  std::vector<char> bytes;
  std::vector<double> numbers() const {
    std::vector<double> out;
    const DType dtype = format == "<f4"   ? DType::f32
                        : format == "<i8" ? DType::i64
                                          : DType::boolean;
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(size_of(dtype))) {
      double one = 0;
      convert(bytes.data() + i, dtype, &one, DType::f64, 1);
      out.push_back(one);
    }
    return out;
  }
};

/// The arrays whose names begin so, by the rest of their names.
std::map<std::string, Array> arrays_in(const std::string& path, const std::string& prefix = "") {
  std::map<std::string, Array> out;
  const NpzArchive archive(path);
  for (const std::string& name : archive.names()) {
    if (name.rfind(prefix, 0) != 0) continue;
    const StoredArray& array = *archive.find(name);
    const auto bytes = static_cast<size_t>(element_count(array.shape) * array.element_bytes());
    const char* data = reinterpret_cast<const char*>(array.data);
    out[name.substr(prefix.size())] = {array.shape, array.format, {data, data + bytes}};
  }
  return out;
}

DType type_of(const std::string& format) {
  return format == "<f4"   ? DType::f32
         : format == "<f8" ? DType::f64
         : format == "<i8" ? DType::i64
         : format == "<i4" ? DType::i32
         : format == "|u1" ? DType::u8
                           : DType::boolean;
}

void write_arrays(const std::string& path, const std::map<std::string, Array>& arrays) {
  std::vector<ArrayFile::Array> types;
  for (const auto& [name, array] : arrays)
    types.push_back({name, {type_of(array.format), array.shape}});
  ArrayFile file(path, types);
  size_t i = 0;
  for (const auto& [name, array] : arrays)
    file.write(i++, full_box(array.shape), array.bytes.data());
  file.finish();
}

void expect_close(const Array& got, const Array& want, double tolerance) {
  ASSERT_EQ(got.shape, want.shape);
  const std::vector<double> a = got.numbers(), b = want.numbers();
  double largest = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a[i]));
    largest = std::max(largest, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  EXPECT_LE(largest, tolerance * size);
}

class RunModel : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return at_.path() + "/" + name; }

  RunModelReport run(int ranks, const std::string& model, RunModelRequest request = {}) const {
    World world = World::threads(ranks);
    request.model = model;
    if (request.input.empty()) request.input = path("x.npz");
    if (request.output.empty()) request.output = path("y.npz");
    request.plan.solve_seconds = 0.2;
    const RunModelReport report = run_model(world, request);
    EXPECT_EQ(report.allocated_bytes, report.predicted_bytes);
    return report;
  }
  std::string refusal(const std::string& model, RunModelRequest request = {}) const {
    try {
      run(1, model, std::move(request));
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call) << e.what();
      return e.what();
    }
    return "(done)";
  }
  Workspace at_;
};

TEST_F(RunModel, IsWhatOnnxRuntimeComputes) {
  const std::vector<std::string> models = {"gpt_manual.legacy",     "gpt_sdpa.dynamo23",
                                           "images_keras.jax2onnx", "weights_images.legacy_eval",
                                           "weights_tied.default",  "weights_half.legacy",
                                           "recurrent.legacy",      "encoder.legacy",
                                           "loss_nano.dynamo",      "gat_conv.legacy",
                                           "gat_conv.dynamo",       "gat_edges.dynamo",
                                           "gat_dense.dynamo"};
  for (const std::string& model : models) {
    write_arrays(path("x.npz"), arrays_in(kGolden + "/outputs.npz", model + "/in/"));
    const auto want = arrays_in(kGolden + "/outputs.npz", model + "/out/");
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(model + " on " + std::to_string(ranks));
      run(ranks, kGolden + "/" + model + ".onnx");
      const auto got = arrays_in(path("y.npz"));
      ASSERT_EQ(got.size(), want.size());
      // Parameters of 16 bits are computed with in 32.
      const double tolerance = model == "weights_half.legacy" ? 1e-2 : 1e-4;
      for (const auto& [name, array] : want) expect_close(got.at(name), array, tolerance);
    }
  }
}

/// The exporter repeats a weight's numbers in another initialiser: wrong to train, and right here.
TEST_F(RunModel, OfAnExportThatIsNotToBeTrained) {
  write_arrays(path("x.npz"), arrays_in(kGolden + "/relative.npz", "in/"));
  const Array want = arrays_in(kGolden + "/relative.npz").at("output");
  for (const int ranks : {1, 2}) {
    run(ranks, kGolden + "/relative.dynamo_default.onnx");
    const auto got = arrays_in(path("y.npz"));
    ASSERT_EQ(got.size(), 1u);
    expect_close(got.begin()->second, want, 1e-5);
  }
}

/// A symbolic batch: any number of samples, in turns of any size, on any mesh.
TEST_F(RunModel, TurnsOfAnySize) {
  const std::string model = kGolden + "/images_keras.jax2onnx.onnx";
  const auto in = arrays_in(kGolden + "/outputs.npz", "images_keras.jax2onnx/in/");
  const auto want =
      arrays_in(kGolden + "/outputs.npz", "images_keras.jax2onnx/out/").begin()->second;
  write_arrays(path("x.npz"), in);
  for (const int64_t batch : {1, 2, 4, 9, 16}) {
    for (const std::string mesh : {"1", "data=2", "3"}) {
      SCOPED_TRACE(std::to_string(batch) + " on " + mesh);
      RunModelRequest request;
      request.options.batch = batch;
      request.plan.mesh = mesh;
      const RunModelReport report = run(mesh_ranks(mesh), model, request);
      EXPECT_EQ(report.samples, 9);
      EXPECT_EQ(report.turns, (9 + batch - 1) / batch);
      expect_close(arrays_in(path("y.npz")).begin()->second, want, 1e-5);
    }
  }
  // One array without a name, one output alone, and as many samples as a turn has.
  Array first = in.begin()->second;
  first.bytes.resize(first.bytes.size() / 9 * 3);
  first.shape[0] = 3;
  write_arrays(path("x.npy"), {{"x", first}});
  RunModelRequest request;
  request.input = path("x.npy"), request.output = path("y.npy");
  EXPECT_EQ(run(1, model, request).turns, 1);
  const auto file = std::make_shared<MappedFile>(path("y.npy"));
  EXPECT_EQ(parse_npy(file->data(), file->size(), file, "y.npy").shape, (Shape{3, 3}));
}

/// It takes the memory of a forward pass, not that of a step of training.
TEST_F(RunModel, IsPlannedForTheForwardPassAlone) {
  GptModel gpt;
  gpt.layers = 4, gpt.hidden = 64, gpt.heads = 4, gpt.vocab = 256, gpt.context = 32;
  write_gpt(gpt, path("gpt.onnx"));
  Array tokens{{4, 32}, "<i8", std::vector<char>(4 * 32 * 8, 0)};
  write_arrays(path("x.npz"), {{"tokens", tokens}});
  RunModelRequest request;
  request.options.batch = 4;
  const int64_t forward = run(1, path("gpt.onnx"), request).predicted_bytes[0];
  World world = World::threads(1);
  ModelOptions options;
  options.batch = 4;
  const Model model = load_model(world, path("gpt.onnx"), options);
  PlanRequest plan;
  plan.solve_seconds = 0.2;
  EXPECT_LT(3 * forward, make_plan(world, model, plan).predicted_bytes()[0]);
}

/// Dropout is off, and running statistics are those of the checkpoint.
/// Arrays are taken as they are, bytes as the numbers that they are; where the model was trained on
/// changed ones, a note says so.
TEST_F(RunModel, TakesArraysAsTheyAre) {
  WideResNetModel images;
  images.family = "cifar";
  images.layers = 10, images.width = 1, images.image = 8, images.classes = 5;
  write_wide_resnet(images, path("images.onnx"));
  Array bytes{{8, 3, 8, 8}, "|u1", {}}, floats{{8, 3, 8, 8}, "<f4", {}}, labels{{8}, "<i8", {}};
  for (int i = 0; i < 8 * 3 * 64; ++i) {
    const auto byte = static_cast<unsigned char>(i * 37);
    const auto number = static_cast<float>(byte);
    bytes.bytes.push_back(static_cast<char>(byte));
    floats.bytes.insert(floats.bytes.end(), reinterpret_cast<const char*>(&number),
                        reinterpret_cast<const char*>(&number) + 4);
  }
  labels.bytes.resize(8 * 8);
  write_arrays(path("x.npy"), {{"x", bytes}});
  write_arrays(path("labels.npy"), {{"labels", labels}});
  const auto outcome = at_.shardrun(
      "train images.onnx --data npy:x.npy,labels.npy --loss cross-entropy --batch 4 --steps 1 "
      "--normalise 0.5,0.5,0.5/0.2,0.2,0.2 --validation 0 --checkpoint run --plan-seconds 0.2");
  ASSERT_EQ(outcome.status, 0) << describe(outcome);
  std::string notes;
  RunModelRequest request;
  request.checkpoint = path("run");
  request.input = path("x.npy");
  request.on_note = [&](const std::string& note) { notes += note + "\n"; };
  run(2, path("images.onnx"), request);
  EXPECT_NE(notes.find("the model was trained with --normalise 0.5,0.5,0.5/0.2,0.2,0.2: give"),
            std::string::npos)
      << notes;
  const auto of_bytes = arrays_in(path("y.npz"));
  write_arrays(path("x.npy"), {{"x", floats}});
  run(2, path("images.onnx"), request);
  for (const auto& [name, array] : arrays_in(path("y.npz")))
    EXPECT_EQ(array.bytes, of_bytes.at(name).bytes) << name;
}

TEST_F(RunModel, OfACheckpoint) {
  at_.write("text.txt", test::prose(3000));
  GptModel gpt;
  gpt.layers = 1, gpt.hidden = 24, gpt.heads = 3, gpt.vocab = 256, gpt.context = 10,
  gpt.dropout = 0.5;
  write_gpt(gpt, path("gpt.onnx"));
  WideResNetModel images;
  images.family = "cifar";
  images.layers = 10, images.width = 1, images.image = 8, images.classes = 5, images.dropout = 0.3;
  write_wide_resnet(images, path("images.onnx"));
  struct Case {
    std::string model, train;
    Array input;
    std::string name;
  };
  Array tokens{{5, 10}, "<i8", std::vector<char>(5 * 10 * 8, 0)};
  for (size_t i = 0; i < 50; ++i) tokens.bytes[8 * i] = static_cast<char>('a' + i % 20);
  Array pixels{{5, 3, 8, 8}, "<f4", {}};
  for (int i = 0; i < 5 * 3 * 64; ++i) {
    const float x = std::sin(static_cast<float>(i));
    pixels.bytes.insert(pixels.bytes.end(), reinterpret_cast<const char*>(&x),
                        reinterpret_cast<const char*>(&x) + 4);
  }
  const std::vector<Case> cases = {{"gpt.onnx", "--data text:text.txt --batch 4", tokens, "tokens"},
                                   {"images.onnx", "--loss cross-entropy --batch 4", pixels, ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model);
    const std::string folder = c.model + ".run";
    ASSERT_EQ(at_.shardrun("train " + c.model + " " + c.train +
                           " --steps 4 --lr 1e-2 --checkpoint " + folder + " --plan-seconds 0.2")
                  .status,
              0);
    const std::string input = c.name.empty() ? "x.npy" : "x.npz";
    write_arrays(path(input), {{c.name.empty() ? "x" : c.name, c.input}});
    std::map<std::string, Array> one;
    for (const int ranks : {1, 2, 3}) {
      RunModelRequest request;
      request.checkpoint = path(folder);
      request.input = path(input);
      run(ranks, path(c.model), request);
      const auto got = arrays_in(path("y.npz"));
      if (ranks == 1) one = got;
      for (const auto& [name, array] : one) expect_close(got.at(name), array, 1e-4);
    }
    // The same again is the same: nothing is drawn. Other parameters give other numbers.
    RunModelRequest request;
    request.checkpoint = path(folder);
    request.input = path(input);
    run(1, path(c.model), request);
    for (const auto& [name, array] : one)
      EXPECT_EQ(arrays_in(path("y.npz")).at(name).bytes, array.bytes);
    request.checkpoint.clear();
    run(1, path(c.model), request);
    for (const auto& [name, array] : one)
      EXPECT_NE(arrays_in(path("y.npz")).at(name).bytes, array.bytes);
  }
  // Of the same shapes, but for one layer.
  gpt.layers = 2;
  write_gpt(gpt, path("other.onnx"));
  write_arrays(path("x.npz"), {{"tokens", tokens}});
  RunModelRequest request;
  request.checkpoint = path("gpt.onnx.run");
  EXPECT_NE(
      refusal(path("other.onnx"), request).find("which the model has; it is of another model"),
      std::string::npos);
  gpt.layers = 1, gpt.hidden = 12;
  write_gpt(gpt, path("other.onnx"));
  EXPECT_NE(refusal(path("other.onnx"), request).find("it is of another model"), std::string::npos);
  request.checkpoint = path("none");
  EXPECT_NE(refusal(path("gpt.onnx"), request).find("none: no such folder"), std::string::npos);
}

TEST_F(RunModel, WhatIsWrongIsSaid) {
  const std::string images = kGolden + "/images_keras.jax2onnx.onnx",
                    nano = kGolden + "/loss_nano.dynamo.onnx";
  const auto all = arrays_in(kGolden + "/outputs.npz");
  const Array x = all.at("images_keras.jax2onnx/in/x");
  const Array idx = all.at("loss_nano.dynamo/in/idx"),
              targets = all.at("loss_nano.dynamo/in/targets");
  const auto says = [&](const std::string& model, const std::map<std::string, Array>& arrays,
                        const std::string& sentence, RunModelRequest request = {}) {
    write_arrays(path("x.npz"), arrays);
    const std::string got = refusal(model, std::move(request));
    EXPECT_NE(got.find(sentence), std::string::npos) << got;
    EXPECT_FALSE(at_.exists("y.npz")) << got;
  };
  says(images, {{"images", x}}, "x.npz: has 'images', the model's inputs are 'x'");
  says(nano, {{"idx", idx}},
       "x.npz: has no array for the model's input 'targets' i64[2, 6]; it has 'idx'");
  RunModelRequest four;
  four.plan.ranks = 4;
  says(images, {{"x", x}}, "run_model: the plan is for 4 ranks, there are", four);
  Array flat = x;
  flat.shape = {9, 72};
  says(images, {{"x", flat}}, "is [9, 72], the model's input 'x' has 4 dims");
  Array wide = x;
  wide.shape = {9, 6, 2, 6};
  says(images, {{"x", wide}}, "is [9, 6, 2, 6], the model's input 'x' wants [9, 6, 6, 2]");
  Array none = x;
  none.shape[0] = 0, none.bytes.clear();
  says(images, {{"x", none}}, "has no samples");
  Array whole = x;
  whole.format = "<i8", whole.bytes.resize(2 * x.bytes.size());
  says(images, {{"x", whole}}, "its elements are '<i8', the model's input 'x' is of f32");
  Array floats = idx;
  floats.format = "<f4", floats.bytes.resize(idx.bytes.size() / 2);
  says(nano, {{"idx", floats}, {"targets", targets}},
       "its elements are '<f4', the model's input 'idx'");
  Array nan = x;
  const float bad = std::nanf("");
  std::memcpy(nan.bytes.data() + nan.bytes.size() - 4, &bad, 4);
  says(images, {{"x", nan}}, "sample 8 has a NaN, which input 'x' does not take");
  Array far = idx;
  far.bytes[8] = 99;
  says(nano, {{"idx", far}, {"targets", targets}},
       "element 1 is 99, but the model's input 'idx' takes 0 to 15");
  // Two losses of three turns are none.
  Array more = idx, more_targets = targets;
  for (Array* a : {&more, &more_targets}) {
    a->shape[0] = 6;
    const std::vector<char> bytes = a->bytes;
    for (int i = 0; i < 2; ++i) a->bytes.insert(a->bytes.end(), bytes.begin(), bytes.end());
  }
  says(nano, {{"idx", more}, {"targets", more_targets}},
       "output 'cross_entropy_loss' f32[] has no dim that counts samples, so 6 of them, 2 a turn");
  RunModelRequest request;
  request.outputs = {"linear_1"};
  write_arrays(path("x.npz"), {{"idx", more}});
  EXPECT_EQ(run(2, nano, request).turns, 3);
  EXPECT_EQ(arrays_in(path("y.npz")).at("linear_1").shape, (Shape{6, 6, 16}));
  fs::remove(path("y.npz"));
  request.outputs = {"linear_9"};
  says(nano, {{"idx", idx}, {"targets", targets}},
       "no output is called 'linear_9'; the model has 'linear_1', 'cross_entropy_loss'", request);
  request = {};
  request.input = path("none.npz");
  says(images, {{"x", x}}, "none.npz", request);
  request.input = path("x.txt");
  says(images, {{"x", x}}, "x.txt: ends in neither .npy nor .npz", request);
  request = {};
  request.output = path("y.csv");
  says(images, {{"x", x}}, "y.csv: ends in neither .npz nor .npy", request);
  request.output = path("none/y.npz");
  says(images, {{"x", x}}, "none/y.npz: cannot be written", request);
  request.output = path("x.npz");
  says(images, {{"x", x}}, "x.npz is what --input is read from", request);
  request.output = path("y.npy");
  says(nano, {{"idx", idx}, {"targets", targets}}, "an .npy holds one array, there are 2", request);
}

TEST_F(RunModel, UnderMpi) {
  write_arrays(path("x.npz"), arrays_in(kGolden + "/outputs.npz", "gpt_manual.legacy/in/"));
  const test::Outcome done =
      at_.shardrun(test::mpi(2), "run " + kGolden +
                                     "/gpt_manual.legacy.onnx --input x.npz -o y.npz "
                                     "--mesh model=2 --plan-seconds 0.2");
  ASSERT_EQ(done.status, 0) << describe(done);
  EXPECT_NE(done.out.find("7 samples in 2 turns"), std::string::npos) << describe(done);
  EXPECT_NE(done.out.find("plan: mesh model=2"), std::string::npos) << describe(done);
  expect_close(arrays_in(path("y.npz")).at("256"),
               arrays_in(kGolden + "/outputs.npz", "gpt_manual.legacy/out/").at("256"), 1e-4);
  const test::Outcome wrong = at_.shardrun(
      test::mpi(2), "run " + kGolden + "/gpt_manual.legacy.onnx --input none.npz -o y.npz");
  EXPECT_EQ(wrong.status, 2) << describe(wrong);
  EXPECT_EQ(messages(wrong), 1) << describe(wrong);
}

}  // namespace
}  // namespace shardrun
