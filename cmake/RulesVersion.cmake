# Writes OUTPUT, a header with one hash of all SOURCES. A header that is right already keeps its date.
set(hashes "")
foreach(source IN LISTS SOURCES)
  file(SHA256 ${source} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 all "${hashes}")
string(SUBSTRING ${all} 0 32 version)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"// Made by cmake/RulesVersion.cmake.
#pragma once

namespace shardrun {

constexpr char kRulesVersion[] = \"@version@\";

}  // namespace shardrun
")
