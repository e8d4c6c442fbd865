// Planning problems of `solve`, gzipped ones too. One that is taken is written and read again,
// equal, and a solution of it can be judged.
#include "planner/contest/problem_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/problem_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardrun;
  const std::string path =
      fuzz::written("problem.json", {reinterpret_cast<const char*>(data), size});
  fuzz::expect_read_or_refused([&] {
    const std::optional<Problem> problem = read_problem(path);
    if (!problem) std::abort();  // nobody has said that it is late
    const std::string text = test::problem_json(*problem);
    if (test::problem_json(parse_problem(text)) != text) std::abort();
    evaluate(*problem, Solution(problem->nodes.size(), 0));
  });
  return 0;
}
