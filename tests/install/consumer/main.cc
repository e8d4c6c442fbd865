// An example of the library's use: writes a small GPT, imports it, plans for two ranks and trains
// it.
//
//   consumer FOLDER     prints one loss a line; exit status 0 if the loss fell and every byte was
//   predicted
#include <shardrun/shardrun.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "consumer: want a folder to write to\n");
    return 2;
  }
  const std::string folder = argv[1];
  shardrun::World world = shardrun::World::threads(2);
  try {
    std::ofstream text(folder + "/text");
    for (int i = 0; i < 400; ++i) text << "a shard is a part of a tensor. ";
    text.close();

    shardrun::GptModel gpt;
    gpt.layers = 1;
    gpt.hidden = 16;
    gpt.heads = 2;
    gpt.vocab = 256;
    gpt.context = 16;
    shardrun::write_gpt(gpt, folder + "/gpt.onnx");

    shardrun::ModelOptions options;
    options.batch = 4;
    const shardrun::Model model = shardrun::load_model(world, folder + "/gpt.onnx", options);
    const shardrun::TrainingPlan plan = shardrun::make_plan(world, model, {});
    std::printf("%s\n", plan.summary().c_str());

    shardrun::TrainOptions train;
    train.data = "text:" + folder + "/text";
    train.steps = 30;
    train.lr = 1e-2;
    train.on_step = [](const shardrun::StepReport& step) { std::printf("%g\n", step.loss); };
    const shardrun::TrainReport report = shardrun::train(world, model, plan, train);

    const bool fell =
        report.losses.size() == 30 && report.losses.back() < 0.8 * report.losses.front();
    if (!fell) std::fprintf(stderr, "consumer: the loss did not fall\n");
    const bool exact = report.allocated_bytes == report.predicted_bytes;
    if (!exact) std::fprintf(stderr, "consumer: allocated bytes are not those predicted\n");
    return fell && exact ? 0 : 1;
  } catch (const std::exception& error) {
    return world.fail(error);
  }
}
