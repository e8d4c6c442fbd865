// Writing a file at once.
#include "output_file.h"

#include <fstream>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Failure(Failure::Kind::call, path + ": cannot write the file");
}

}  // namespace shardrun::cli
