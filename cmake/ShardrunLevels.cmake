# One package for all processors of a family: libshardrun is linked once for the oldest, and once more for each level
# below, with its vector code compiled for it. The dynamic loader takes the newest that the processor has
# (lib/glibc-hwcaps/<level>/, glibc 2.33 or newer), so nothing here asks for the processor.
set(SHARDRUN_LEVELS)
if(SHARDRUN_PACKAGE AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(SHARDRUN_LEVELS x86-64-v3 x86-64-v4)  # AVX2; AVX-512
endif()

# All libraries whose sources include base/lanes.h, base/philox_blocks.h or what includes them: functions there take
# vectors as wide as the compiler is told, so in one libshardrun all must be told the same (ShardrunPackage.cmake checks).
set(SHARDRUN_VECTOR_LIBRARIES base collectives exec kernels_cpu)

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
