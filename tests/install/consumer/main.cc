// An example of the library's use: a program that makes its own batches, trains an image model with
// its own loop, saves what was learnt and goes on from that.
//
//   consumer FOLDER               two ranks, as threads
//   mpirun -np 3 consumer FOLDER  one rank a process, which makes only its part of each batch
//
// Prints "loss …" for each step; exit status 0 if the model learnt, and went on where it was.
#include <shardrun/trainer.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr int64_t kBatch = 12, kSize = 8, kClasses = 3;

/// Image `sample`: noise, and a bright row that says which class it is of.
void draw(int64_t sample, std::vector<float>& pixels, std::vector<int64_t>& labels) {
  const int64_t label = sample * 7 % kClasses;
  for (int64_t i = 0; i < 3 * kSize * kSize; ++i) {
    const auto noise = static_cast<float>((sample * 131 + i * 97) % 101) / 101;
    pixels.push_back(noise + (i / kSize % kSize == 2 * label ? 1.0f : 0.0f));
  }
  labels.push_back(label);
}

/// Steps `from` to `to`. Returns the last loss.
double train(shardrun::World& world, shardrun::Trainer& trainer, int64_t from, int64_t to) {
  double loss = 0;
  for (int64_t step = from; step < to; ++step) {
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    shardrun::Region x, y;  // of this rank: whole images, by how the plan cuts them
    std::string images, classes;
    for (const auto& [name, info] : trainer.inputs())
      (info.shape.size() == 4 ? images : classes) = name;
    x = trainer.region(images), y = trainer.region(classes);
    const bool own = x.begin[0] == y.begin[0] && x.shape[0] == y.shape[0] && x.shape[2] == kSize;
    const int64_t first = own ? x.begin[0] : 0, count = own ? x.shape[0] : kBatch;
    for (int64_t i = first; i < first + count; ++i) draw(step * kBatch + i, pixels, labels);
    const shardrun::ArrayView given(pixels, {count, 3, kSize, kSize});
    loss = trainer.step({{images, given}, {classes, {labels, {count}}}}, 0.05).loss;
    if (world.leader()) std::printf("loss %.6f\n", loss);
  }
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "consumer: want a folder to write to\n");
    return 2;
  }
  const std::string folder = argv[1], model_file = folder + "/images.onnx";
  const bool launched = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  shardrun::World world = launched ? shardrun::World::launched() : shardrun::World::threads(2);
  try {
    shardrun::WideResNetModel images;
    images.family = "cifar";
    images.layers = 10, images.width = 1, images.image = kSize, images.classes = kClasses;
    if (world.leader()) shardrun::write_wide_resnet(images, model_file);

    shardrun::ModelOptions options;
    options.batch = kBatch;
    options.loss = "cross-entropy";
    options.optimizer = "sgd";
    const shardrun::Model model = shardrun::load_model(world, model_file, options);
    const shardrun::TrainingPlan plan = shardrun::make_plan(world, model, {});
    if (world.leader()) std::printf("%s", plan.summary().c_str());

    shardrun::Trainer trainer(world, model, plan);
    train(world, trainer, 0, 20);
    const std::string checkpoint = trainer.save(folder + "/run");
    const double went_on = train(world, trainer, 20, 25);

    trainer.resume(checkpoint);
    const double again = train(world, trainer, 20, 25);
    if (went_on != again) std::fprintf(stderr, "consumer: a resumed step has another loss\n");
    if (again > 0.5) std::fprintf(stderr, "consumer: the loss did not fall\n");
    return went_on == again && again <= 0.5 ? 0 : 1;
  } catch (const std::exception& error) {
    return world.fail(error);
  }
}
