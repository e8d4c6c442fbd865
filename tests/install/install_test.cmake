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
file(MAKE_DIRECTORY ${WORK}/data ${WORK}/data3)
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
run(${WORK}/prefix/bin/shardrun --version)

# expect_losses(WHO COUNT MILLIONTHS): the last run has so many, no farther from those in `alone`.
function(expect_losses who wanted most)
  losses(together)
  list(LENGTH together count)
  if(NOT count EQUAL wanted)
    message(FATAL_ERROR "${who}: ${count} losses, wanted ${wanted}")
  endif()
  foreach(one many IN ZIP_LISTS alone together)
    math(EXPR difference "(${one} - ${many}) * (${one} - ${many})")
    math(EXPR allowed "${most} * ${most}")
    if(difference GREATER allowed)
      message(FATAL_ERROR "${who}: ${together}, wanted ${alone} (millionths)")
    endif()
  endforeach()
endfunction()

# Two threads with whole batches, and three processes each with its part.
run(${WORK}/build/consumer ${WORK}/data)
losses(alone)
expect_losses("consumer" 30 0)
run(${MPIEXEC} -np 3 ${WORK}/build/consumer ${WORK}/data3)
expect_losses("consumer on 3 ranks" 30 1000)

run(${WORK}/build/train_gated ${GOLDEN}/gated.onnx)
losses(alone)
expect_losses("train_gated" 10 0)
foreach(ranks 2 4)
  run(${MPIEXEC} -np ${ranks} ${WORK}/build/train_gated ${GOLDEN}/gated.onnx)
  expect_losses("${ranks} ranks" 10 5)
endforeach()

# The command, with the ops in a library.
set(shardrun ${WORK}/prefix/bin/shardrun)
set(model ${GOLDEN}/gated.onnx --ops ${WORK}/build/libgate.so --loss mse --batch 64)
run(${MPIEXEC} -np 2 ${shardrun} train ${model} --steps 10 --lr 1e-2 --metrics ${WORK}/gated.jsonl)
file(READ ${WORK}/gated.jsonl output)
string(REPLACE "\"loss\":" "loss " output "${output}")
expect_losses("the command" 10 5)
run(${shardrun} plan ${model} --ranks 4 -o ${WORK}/gated.json)
run(${shardrun} explain ${WORK}/gated.json)
if(NOT output MATCHES "acme::Gate")
  message(FATAL_ERROR "explain does not show the op")
endif()
run(${shardrun} verify ${model} --plan ${WORK}/gated.json)
