// A number out of range that a kernel finds: who hears of it, when, and in which words.
#include "device/cuda/faults.h"

#include <gtest/gtest.h>

#include "graph/op_def.h"
#include "kernels/cuda/own/softmax.h"
#include "tests/cuda/host/on_host.h"

namespace shardrun {
namespace {

cuda::Faults faults_on_host() {
  return cuda::Faults([](int64_t bytes) {
    return std::shared_ptr<char>(
        static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(bytes))),
        [](char* p) { std::free(p); });
  });
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    return e.what();
  }
  return "";
}

TEST(Faults, NameTheStepThatWasAskedForThen) {
  cuda::Faults faults = faults_on_host();
  std::vector<cuda::Fault*> all;
  for (int step = 0; step < 100; ++step) {
    faults.begins("step " + std::to_string(step));
    all.push_back(faults.of_step("label", "token", 10));
    EXPECT_EQ(faults.of_step("label", "token", 10), all.back());
    EXPECT_NE(faults.of_step("label", "token", 11), all.back());
  }
  faults.begins("");
  EXPECT_EQ(message_of([&] { faults.check(); }), "");
  cuda::report(all[42], 12, 3);
  EXPECT_EQ(message_of([&] { faults.check(); }), "step 42: label 12 of token 3 is outside [0, 10)");
  EXPECT_EQ(message_of([&] { faults.check(); }), "");  // reported once
  // Who waits within the step puts its name in front.
  faults.begins("step 7");
  cuda::report(all[7], -1, 0);
  EXPECT_EQ(message_of([&] { faults.check(); }), "label -1 of token 0 is outside [0, 10)");
  cuda::report(nullptr, 1, 2);
}

/// In the reference's words.
TEST(Faults, OfLabels) {
  const int64_t tokens = 4, classes = 5;
  Tensor logits({DType::f32, {tokens, classes}}), d({DType::f32, {tokens}});
  for (int64_t i = 0; i < logits.count(); ++i) logits.as<float>()[i] = static_cast<float>(i % 3);
  for (int64_t i = 0; i < tokens; ++i) d.as<float>()[i] = 1;
  const int here = 0;  // stands for a stream
  cuda::Faults faults = faults_on_host();
  cuda::set_faults_of(&here, &faults);
  for (const KernelImpl& impl : cuda::softmax_kernels_on<cuda::OnHost<1>>()) {
    if (!impl.op.starts_with("cross_entropy") || impl.op == "cross_entropy_grad" ||
        impl.op == "cross_entropy_join")
      continue;
    for (const DType dtype : {DType::i64, DType::i32}) {
      for (const int64_t wrong : {int64_t{-100}, int64_t{4}, int64_t{5}, int64_t{-1}}) {
        Tensor labels({dtype, {tokens}});
        for (int64_t t = 0; t < tokens; ++t) {
          const int64_t label = t == 2 ? wrong : t;
          convert(&label, DType::i64, labels.as<char>() + t * size_of(dtype), dtype, 1);
        }
        std::vector<Tensor> in = {logits, labels};
        if (impl.op == "cross_entropy_and_grad") in.insert(in.begin(), d);
        if (impl.op == "cross_entropy_sums") in.push_back(d);
        Node node;
        node.op = impl.op;
        node.attrs = {{"ignore_index", int64_t{-100}}};
        if (impl.op == "cross_entropy_sums") node.attrs.set("classes", classes);
        std::vector<TensorType> types;
        std::vector<TensorView> from, to;
        for (const Tensor& t : in) types.push_back(t.type()), from.push_back(t.view());
        const std::vector<TensorType> results = infer_types(node, types);
        std::vector<Tensor> out;
        for (const TensorType& type : results)
          out.emplace_back(type), to.push_back(out.back().view());
        const std::string want = message_of([&] { run_reference(node, in); });
        EXPECT_EQ(want.empty(), wrong == -100 || wrong == 4);
        faults.begins("a step");
        impl.prepare({node, types, results}).run({from, to, nullptr, const_cast<int*>(&here)});
        EXPECT_EQ(message_of([&] { faults.check(); }), want) << impl.op << " " << wrong;
      }
    }
  }
  cuda::set_faults_of(&here, nullptr);
  EXPECT_EQ(cuda::fault_of(&here, "label", "token", classes), nullptr);
}

}  // namespace
}  // namespace shardrun
