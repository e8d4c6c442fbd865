# One package for all processors of a family: libshardrun is linked once for the oldest, and once more for each level
# below, with its vector code compiled for it. The dynamic loader takes the newest that the processor has
# (lib/glibc-hwcaps/<level>/, glibc 2.33 or newer), so nothing here asks for the processor.
# A build for this machine alone has none, but for the one that tests compare with it.
option(SHARDRUN_AVX2 "Link libshardrun for AVX2, too, whose results launcher_same_bits_test then compares" OFF)
set(SHARDRUN_LEVELS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  if(SHARDRUN_PACKAGE)
    set(SHARDRUN_LEVELS x86-64-v3 x86-64-v4)  # AVX2; AVX-512
  elseif(SHARDRUN_AVX2)
    set(SHARDRUN_LEVELS x86-64-v3)
  endif()
endif()

# All libraries whose sources include base/lanes.h, base/philox_blocks.h or what includes them: functions there take
# vectors as wide as the compiler is told, so in one libshardrun all must be told the same.
set(SHARDRUN_VECTOR_LIBRARIES base collectives exec kernels_cpu)

# A source outside those libraries would call their vector functions with vectors of another width. Every build looks, for
# only packages would have two widths.
file(GLOB_RECURSE sources RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/graph/*.cc ${CMAKE_SOURCE_DIR}/kernels/*.cc
  ${CMAKE_SOURCE_DIR}/launcher/*.cc ${CMAKE_SOURCE_DIR}/models/*.cc ${CMAKE_SOURCE_DIR}/planner/*.cc
  ${CMAKE_SOURCE_DIR}/runtime/*.cc)
list(FILTER sources EXCLUDE REGEX "^(kernels/cpu|kernels/cuda|runtime/base|runtime/exec)/")
foreach(source IN LISTS sources)
  file(STRINGS ${source} includes
    REGEX "^#include \"(base/(lanes|philox_blocks)|kernels/cpu/(lanes|lane_functions|random|row_tile))\\.h\"")
  if(includes)
    message(FATAL_ERROR "${source} includes vectors (${includes}): its library belongs into SHARDRUN_VECTOR_LIBRARIES")
  endif()
endforeach()

# shardrun_at_levels(LIBRARY): LIBRARY-<level>, the objects of its sources for each level.
function(shardrun_at_levels library)
  get_target_property(sources ${library} SOURCES)
  get_target_property(united ${library} UNITY_BUILD)
  foreach(level IN LISTS SHARDRUN_LEVELS)
    set(objects ${library}-${level})
    add_library(${objects} OBJECT ${sources})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${library},INCLUDE_DIRECTORIES>)
    target_link_libraries(${objects} PRIVATE $<TARGET_PROPERTY:${library},LINK_LIBRARIES>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${library},COMPILE_OPTIONS> -march=${level})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD "${united}" UNITY_BUILD_BATCH_SIZE 8)
  endforeach()
endfunction()

# shardrun_link_levels(): libshardrun for each level, in levels/<level> of the build.
function(shardrun_link_levels)
  get_target_property(parts shardrun SOURCES)
  list(FILTER parts INCLUDE REGEX "TARGET_OBJECTS")
  foreach(level IN LISTS SHARDRUN_LEVELS)
    set(objects)
    foreach(library IN LISTS SHARDRUN_VECTOR_LIBRARIES)
      list(APPEND objects $<TARGET_OBJECTS:shardrun_${library}-${level}>)
    endforeach()
    # The linker takes from archives only what no object has, so the other processor's objects of these stay there.
    add_library(shardrun-${level} SHARED $<TARGET_OBJECTS:shardrun> ${parts} ${objects})
    target_link_libraries(shardrun-${level} PRIVATE $<TARGET_PROPERTY:shardrun,LINK_LIBRARIES>)
    set_target_properties(shardrun-${level} PROPERTIES LINKER_LANGUAGE CXX)
    shardrun_as_library(shardrun-${level} ${CMAKE_BINARY_DIR}/levels/${level} ../../shardrun)
  endforeach()
endfunction()
