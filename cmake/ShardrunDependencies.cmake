# Third-party packages. scripts/setup installs them; the versions pinned there are cached outside the tree.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)

# Debian's dnnl-config.cmake asks for OpenCL, which the CPU engine does not need.
find_library(SHARDRUN_DNNL dnnl REQUIRED)
find_path(SHARDRUN_DNNL_INCLUDE dnnl.hpp REQUIRED)
add_library(shardrun_dnnl INTERFACE)
target_link_libraries(shardrun_dnnl INTERFACE ${SHARDRUN_DNNL})
target_include_directories(shardrun_dnnl SYSTEM INTERFACE ${SHARDRUN_DNNL_INCLUDE})

# Debian 12's RE2 comes without a CMake package.
find_library(SHARDRUN_RE2 re2 REQUIRED)
find_path(SHARDRUN_RE2_INCLUDE re2/re2.h REQUIRED)
add_library(shardrun_re2 INTERFACE)
target_link_libraries(shardrun_re2 INTERFACE ${SHARDRUN_RE2})
target_include_directories(shardrun_re2 SYSTEM INTERFACE ${SHARDRUN_RE2_INCLUDE})

find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
if(SHARDRUN_TESTS)
  find_package(GTest REQUIRED)
endif()

# scripts/setup puts HiGHS, onnx's data files and cudnn-frontend's headers into this folder, by version.
if(NOT DEFINED SHARDRUN_DEPS)
  if(DEFINED ENV{SHARDRUN_DEPS})
    set(SHARDRUN_DEPS $ENV{SHARDRUN_DEPS})
  else()
    set(SHARDRUN_DEPS $ENV{HOME}/.cache/shardrun)
  endif()
endif()

# pinned_folder(VARIABLE NAME): the folder of the version that scripts/requirements-NAME.txt pins.
function(pinned_folder variable name)
  set(file ${CMAKE_SOURCE_DIR}/scripts/requirements-${name}.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(STRINGS ${file} pin REGEX "^[a-z-]+==")
  string(REGEX MATCH "==([^ ]+)" _ "${pin}")
  set(folder ${SHARDRUN_DEPS}/${name}-${CMAKE_MATCH_1})
  if(NOT IS_DIRECTORY ${folder})
    message(FATAL_ERROR "${folder} is missing; run scripts/setup")
  endif()
  set(${variable} ${folder} PARENT_SCOPE)
endfunction()

pinned_folder(SHARDRUN_HIGHS_DIR highs)
pinned_folder(SHARDRUN_ONNX_DIR onnx)
find_package(highs REQUIRED CONFIG PATHS ${SHARDRUN_HIGHS_DIR} NO_DEFAULT_PATH)
# Read by graph/ (the format) and by tests/ (the node tests below onnx/backend/test/data/node).
set(SHARDRUN_ONNX_PROTO ${SHARDRUN_ONNX_DIR}/onnx/onnx-ml.proto)
