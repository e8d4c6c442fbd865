# Installs the build into an empty prefix, builds the example programs against that copy, moved
# somewhere else, and runs them and the installed command.
#
#   cmake -D BUILD=… -D SOURCE=… -D WORK=… -D DOCS=… -D GOLDEN=… -D MPIEXEC=… -P install_test.cmake
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output)
  message("${output}")
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "exit status ${status}: ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# losses(VARIABLE): those that the last run printed, in millionths.
function(losses variable)
  string(REGEX MATCHALL "loss [0-9.]+" lines "${output}")
  set(millionths)
  foreach(line IN LISTS lines)
    string(REGEX MATCH "loss ([0-9]+)\\.?([0-9]*)" _ "${line}")
    string(SUBSTRING "${CMAKE_MATCH_2}000000" 0 6 decimals)
    math(EXPR value "${CMAKE_MATCH_1} * 1000000 + 1${decimals} - 1000000")
    list(APPEND millionths ${value})
  endforeach()
  set(${variable} "${millionths}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/data)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)

# The program of docs/ops.md, as it stands there.
file(READ ${DOCS}/ops.md page)
string(REGEX MATCH "\n```cpp\n(#include.*return world.fail[^`]*)```" _ "${page}")
if(NOT CMAKE_MATCH_1)
  message(FATAL_ERROR "docs/ops.md holds no program")
endif()
file(WRITE ${WORK}/train_gated.cc "${CMAKE_MATCH_1}")

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_CXX_FLAGS=${FLAGS} -DTRAIN_GATED=${WORK}/train_gated.cc)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer ${WORK}/data)
run(${WORK}/prefix/bin/shardrun --version)

run(${WORK}/build/train_gated ${GOLDEN}/gated.onnx)
losses(alone)
list(LENGTH alone count)
if(NOT count EQUAL 10)
  message(FATAL_ERROR "train_gated: ${count} losses, wanted 10")
endif()
foreach(ranks 2 4)
  run(${MPIEXEC} -np ${ranks} ${WORK}/build/train_gated ${GOLDEN}/gated.onnx)
  losses(together)
  foreach(one many IN ZIP_LISTS alone together)
    math(EXPR difference "(${one} - ${many}) * (${one} - ${many})")
    if(difference GREATER 25)
      message(FATAL_ERROR "train_gated: ${ranks} ranks have ${together}, one ${alone} (millionths)")
    endif()
  endforeach()
endforeach()
