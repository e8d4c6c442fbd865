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
endfunction()

function(shardrun_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror)
  if(SHARDRUN_NATIVE)
    target_compile_options(${target} PRIVATE -march=native)
  endif()
endfunction()

# shardrun_test(NAME SOURCES … [LIBS …] [LABELS …]): a GoogleTest program, one CTest entry.
function(shardrun_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  shardrun_compile_options(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
