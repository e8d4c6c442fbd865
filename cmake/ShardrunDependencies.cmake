# Third-party packages. scripts/setup installs them; the versions pinned there are cached outside the tree.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
set(MPI_CXX_SKIP_MPICXX ON)  # its C++ bindings are not used, and no longer there in Open MPI 5
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)

# found_library(NAME HEADER): a library of Debian 12's that comes without a CMake package, as shardrun_NAME.
function(found_library name header)
  string(TOUPPER SHARDRUN_${name} variable)
  find_library(${variable} ${name} REQUIRED)
  find_path(${variable}_INCLUDE ${header} REQUIRED)
  add_library(shardrun_${name} INTERFACE)
  target_link_libraries(shardrun_${name} INTERFACE ${${variable}})
  target_include_directories(shardrun_${name} SYSTEM INTERFACE ${${variable}_INCLUDE})
endfunction()
found_library(dnnl dnnl.hpp)  # its package asks for OpenCL, which the CPU engine does not need
found_library(re2 re2/re2.h)
found_library(isal isa-l/crc.h)  # checksums
# In place of the C library's malloc: planning makes and drops millions of small things, and takes up to a third less of
# the processor by it (docs/results/planning.md). A program links it first of all, so it is the command's and the tests',
# not the library's.
found_library(mimalloc mimalloc.h)
add_library(shardrun_allocator INTERFACE)
if(NOT CMAKE_CXX_FLAGS MATCHES "fsanitize")  # which brings its own
  target_link_libraries(shardrun_allocator INTERFACE -Wl,--no-as-needed shardrun_mimalloc)
endif()

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

pinned_folder(SHARDRUN_HIGHS_DIR highsbox)
pinned_folder(SHARDRUN_ONNX_DIR onnx)
# Its C interface alone: the library's C++ one has another std::string than this compiler's.
add_library(highs::highs SHARED IMPORTED)
set_target_properties(highs::highs PROPERTIES
  IMPORTED_LOCATION ${SHARDRUN_HIGHS_DIR}/lib/libhighs.so
  INTERFACE_INCLUDE_DIRECTORIES ${SHARDRUN_HIGHS_DIR}/include/highs)
# Read by graph/ (the format) and by tests/ (the node tests below onnx/backend/test/data/node).
set(SHARDRUN_ONNX_PROTO ${SHARDRUN_ONNX_DIR}/onnx/onnx-ml.proto)
