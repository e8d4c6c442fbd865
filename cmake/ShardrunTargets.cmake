# shardrun_library(NAME): one static library per folder.
#
# A target sees only its own headers and those of the targets in DEPENDS: each target has a private
# include root under the build folder that holds links to just its own headers, so an include that
# the design forbids does not compile.
#
#   shardrun_library(planner HEADERS planner=planner SOURCES a.cc b.cc DEPENDS shardrun_graph LIBS highs)
#
# HEADERS: <path as included>=<folder or file below the source tree>.
function(shardrun_library name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;DEPENDS;LIBS" ${ARGN})
  add_library(shardrun_${name} STATIC ${ARG_SOURCES})
  set(root ${CMAKE_BINARY_DIR}/include/${name})
  foreach(header IN LISTS ARG_HEADERS)
    string(REGEX MATCH "^([^=]+)=(.+)$" _ ${header})
    set(link ${root}/${CMAKE_MATCH_1})
    get_filename_component(folder ${link} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${CMAKE_MATCH_2} ${link} SYMBOLIC)
  endforeach()
  target_include_directories(shardrun_${name} PUBLIC $<BUILD_INTERFACE:${root}>)
  target_link_libraries(shardrun_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_LIBS})
  shardrun_compile_options(shardrun_${name})
  list(LENGTH ARG_SOURCES sources)
  if(sources GREATER 8)
    shardrun_precompile(shardrun_${name})
  endif()
  # Not kernels: where a product and a sum become one instruction depends on what is inlined.
  if(NOT name MATCHES "^kernels")
    shardrun_unite(shardrun_${name})
  endif()
  if(SHARDRUN_LEVELS AND name IN_LIST SHARDRUN_VECTOR_LIBRARIES)
    shardrun_at_levels(shardrun_${name})
  endif()
endfunction()

# shardrun_unite(TARGET): eight sources in one go, so that headers and templates are read and compiled once for eight.
# Quicker from nothing (docs/results/tree.md); after an edit it takes longer, hence the option.
function(shardrun_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHARDRUN_UNITED} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# shardrun_precompile(TARGET): with the standard library's headers compiled once. A source with options of its own
# (set_source_files_properties) must set SKIP_PRECOMPILE_HEADERS.
function(shardrun_precompile target)
  if(SHARDRUN_PRECOMPILED)
    target_precompile_headers(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/cmake/precompiled.h>)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
  endif()
endfunction()

if(SHARDRUN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SHARDRUN_CCACHE_PROGRAM ccache)
  if(SHARDRUN_CCACHE_PROGRAM)
    # Precompiled headers are remembered by what is in them, not by their macros and times.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      ${SHARDRUN_CCACHE_PROGRAM})
  endif()
endif()

# -march=native means another thing on another machine, which neither ninja nor ccache would notice: the
# processor's features, hashed into a definition that nothing reads, make the command line say so.
if(SHARDRUN_NATIVE)
  set(SHARDRUN_NATIVE_OPTIONS -march=native)
  if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo features REGEX "^(flags|Features)" LIMIT_COUNT 1)
    string(MD5 features "${features}")
    list(APPEND SHARDRUN_NATIVE_OPTIONS -DSHARDRUN_PROCESSOR_${features})
  endif()
endif()

# GCC 12 inlines std::string and std::vector and then warns of copies that cannot happen (bugs 105651, 105329), and of
# vectors wider than the processor's (runtime/base/lanes.h) that functions would be called with otherwise by other
# compilers: ours are inlined.
set(SHARDRUN_WARNINGS -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND SHARDRUN_WARNINGS -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
       -Wno-psabi)
  # GCC says itself that a sanitizer's checks make this one guess; it did of <regex>.
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize")
    list(APPEND SHARDRUN_WARNINGS -Wno-maybe-uninitialized)
  endif()
endif()

# GCC's garbage collector starts at 500 MB in place of 128: a tenth to a sixth of the time of a large source.
set(SHARDRUN_COMPILER_MEMORY)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(SHARDRUN_COMPILER_MEMORY "SHELL:--param ggc-min-heapsize=500000")
endif()

# Clang compiles the fuzzers alone, and warns of other things than GCC.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(REMOVE_ITEM SHARDRUN_WARNINGS -Werror)
endif()

# nvcc hands the host's code to the same compiler; -Wextra would warn of code that nvcc itself writes.
set(SHARDRUN_CUDA_WARNINGS -Werror=all-warnings -Xcompiler=-Wall,-Werror --diag-suppress=177 -lineinfo
    -Wno-deprecated-gpu-targets)

function(shardrun_compile_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:${SHARDRUN_WARNINGS} ${SHARDRUN_COMPILER_MEMORY} ${SHARDRUN_NATIVE_OPTIONS}>
    $<$<COMPILE_LANGUAGE:CUDA>:${SHARDRUN_CUDA_WARNINGS}>)
endfunction()

# Open MPI as a container's root, with more ranks than cores that then do not spin. ThreadSanitizer does not see through
# its shared-memory transport's copies. Tests have threads whatever OpenMP is given as limits where they are started.
# Discovered rules are kept in the build tree, never in the user's cache: they are of these sources, and save the tests
# that plan models most of their time. Ranks are threads, more than there are cores: one that waits leaves its core to others.
set(SHARDRUN_TEST_ENVIRONMENT SHARDRUN_CACHE=${CMAKE_BINARY_DIR}/cache
  SHARDRUN_CALIBRATION=none OMP_WAIT_POLICY=passive OMP_DYNAMIC=false OMP_THREAD_LIMIT=1024 OMP_STACKSIZE=8M
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
  LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp)
if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
  list(APPEND SHARDRUN_TEST_ENVIRONMENT OMPI_MCA_btl=self,vader OMP_NUM_THREADS=1)
endif()

# shardrun_timeout(VARIABLE): the seconds that it holds (300 if none), or more for a sanitizer's build, which is slower:
# that of ThreadSanitizer most of all.
function(shardrun_timeout variable)
  set(seconds ${${variable}})
  if(NOT seconds)
    set(seconds 300)
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
    math(EXPR seconds "${seconds} * 12")
  elseif(CMAKE_CXX_FLAGS MATCHES "fsanitize")
    math(EXPR seconds "${seconds} * 6")
  endif()
  set(${variable} ${seconds} PARENT_SCOPE)
endfunction()

# Tests run briefly and are built often: hardly optimised, and linked by gold where it is, in half the time.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold SHARDRUN_GOLD)
function(shardrun_test_options name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  if(SHARDRUN_GOLD)
    target_link_options(${name} PRIVATE $<$<CONFIG:Release>:-fuse-ld=gold>)
  endif()
endfunction()

# shardrun_precompile_test(NAME LIBS): with GoogleTest's headers compiled once for all tests, and once for those with
# OpenMP, which has other options.
function(shardrun_precompile_test name libs)
  if(NOT SHARDRUN_PRECOMPILED)
    return()
  endif()
  set(header shardrun_precompiled_tests)
  set(openmp)
  if("OpenMP::OpenMP_CXX" IN_LIST libs)
    set(header shardrun_precompiled_tests_with_openmp)
    set(openmp OpenMP::OpenMP_CXX)
  endif()
  if(NOT TARGET ${header})
    add_executable(${header} ${CMAKE_SOURCE_DIR}/cmake/precompiled_tests.cc)
    target_link_libraries(${header} PRIVATE GTest::gtest ${openmp})
    shardrun_compile_options(${header})
    shardrun_test_options(${header})
    target_compile_options(${header} PRIVATE -fpch-preprocess)
    target_precompile_headers(${header} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/precompiled_tests.h)
  endif()
  target_compile_options(${name} PRIVATE -fpch-preprocess)
  target_precompile_headers(${name} REUSE_FROM ${header})
endfunction()

# shardrun_test(NAME SOURCES … [LIBS …] [LABELS …]): a GoogleTest program, one CTest entry.
function(shardrun_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shardrun_allocator ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  shardrun_compile_options(${name})
  shardrun_test_options(${name})
  shardrun_precompile_test(${name} "${ARG_LIBS}")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  shardrun_timeout(ARG_TIMEOUT)
  set(environment ${SHARDRUN_TEST_ENVIRONMENT})
  if("mpi" IN_LIST ARG_LABELS)  # starts mpirun, as SHARDRUN_MPI_ENVIRONMENT's do
    list(TRANSFORM environment REPLACE "^ASAN_OPTIONS=.*" "ASAN_OPTIONS=detect_leaks=0")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${environment}")
  if("gpu" IN_LIST ARG_LABELS)
    # GoogleTest's last words where there is no GPU; behind failures it has others.
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION
      "PASSED  \\] 0 tests\\.\n.  SKIPPED . [0-9]+ tests, listed below:\n(.  SKIPPED . [^\n]+\n)+$")
  endif()
endfunction()

# How tests call mpirun: also as root, with more ranks than cores, without binding ranks to cores.
set(SHARDRUN_MPIRUN "mpirun --oversubscribe --bind-to none")
# AddressSanitizer would see Open MPI's own leaks, of modules that are unloaded by then: no suppression can name them.
set(SHARDRUN_MPI_ENVIRONMENT SHARDRUN_CACHE=${CMAKE_BINARY_DIR}/cache OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
  OMP_STACKSIZE=8M ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp)
if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
  list(APPEND SHARDRUN_MPI_ENVIRONMENT OMPI_MCA_btl=self,vader)
endif()

# shardrun_mpi_test(NAME NP 1 2 4 SOURCES … [LIBS …] [LABELS …] [TIMEOUT s]): a GoogleTest program that
# every rank runs, one CTest entry per number of ranks (NAME_np2). Its tests reach the communicator
# through mpi_world() of tests/collectives/mpi_main.h, which also brings main.
function(shardrun_mpi_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "NP;SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE shardrun_allocator test_mpi_main ${ARG_LIBS} shardrun_collectives GTest::gtest)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  shardrun_compile_options(${name})
  shardrun_test_options(${name})
  shardrun_precompile_test(${name} "${ARG_LIBS}")
  shardrun_timeout(ARG_TIMEOUT)
  separate_arguments(mpirun UNIX_COMMAND "${SHARDRUN_MPIRUN}")
  foreach(np IN LISTS ARG_NP)
    add_test(NAME ${name}_np${np} COMMAND ${mpirun} -np ${np} $<TARGET_FILE:${name}>)
    # Without PROCESSORS: ctest would keep those that want two until all others have ended.
    set_tests_properties(${name}_np${np} PROPERTIES LABELS "mpi;${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "${SHARDRUN_MPI_ENVIRONMENT}")
  endforeach()
endfunction()
