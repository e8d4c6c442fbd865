# Third-party packages. scripts/setup installs them; the versions pinned there are cached outside the tree.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(Protobuf REQUIRED)

# Debian's dnnl-config.cmake asks for OpenCL, which the CPU engine does not need.
find_library(SHARDRUN_DNNL dnnl REQUIRED)
find_path(SHARDRUN_DNNL_INCLUDE dnnl.hpp REQUIRED)
add_library(shardrun_dnnl INTERFACE)
target_link_libraries(shardrun_dnnl INTERFACE ${SHARDRUN_DNNL})
target_include_directories(shardrun_dnnl SYSTEM INTERFACE ${SHARDRUN_DNNL_INCLUDE})

find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
if(SHARDRUN_TESTS)
  find_package(GTest REQUIRED)
endif()

# HiGHS and onnx-ml.proto are built or unpacked by scripts/setup into this folder.
if(NOT DEFINED SHARDRUN_DEPS)
  if(DEFINED ENV{SHARDRUN_DEPS})
    set(SHARDRUN_DEPS $ENV{SHARDRUN_DEPS})
  else()
    set(SHARDRUN_DEPS $ENV{HOME}/.cache/shardrun)
  endif()
endif()
list(PREPEND CMAKE_PREFIX_PATH ${SHARDRUN_DEPS}/highs)
find_package(highs)
find_file(SHARDRUN_ONNX_PROTO onnx-ml.proto PATHS ${SHARDRUN_DEPS}/onnx/onnx NO_DEFAULT_PATH)
