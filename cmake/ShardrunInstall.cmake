# What `make install` leaves: the command, a shared library with its headers, the part for GPUs if it was built, and a
# CMake package. launcher/ defines shardrun (SHARED, from launcher/api), shardrun_cli (the command) and shardrun_cuda.
#
#   find_package(shardrun REQUIRED)
#   target_link_libraries(mine PRIVATE shardrun::shardrun)
#
# A shared library, because a static one would ask its users to find oneDNN, protobuf and MPI themselves. HiGHS'
# library, which no Debian package has, is installed in a folder of its own below it. It exports its namespace alone, so a program's own
# protobuf types cannot clash; of that the public headers are promised, the rest is for the part for GPUs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# shardrun_as_library(TARGET FOLDER BUNDLED): how libshardrun is linked, into FOLDER, where it finds in BUNDLED (from
# where it is installed) what is installed with it. A DT_RPATH, which also counts for what those need in their turn.
function(shardrun_as_library target folder bundled)
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/exported.map -Wl,-Bsymbolic-functions
    -Wl,--as-needed -Wl,--disable-new-dtags)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exported.map)
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME shardrun
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY ${folder}
    INSTALL_RPATH $ORIGIN/${bundled})
endfunction()

if(TARGET shardrun)
  shardrun_as_library(shardrun ${CMAKE_BINARY_DIR} shardrun)
  set(SHARDRUN_BUNDLED ${CMAKE_INSTALL_LIBDIR}/shardrun)
  install(FILES ${SHARDRUN_HIGHS_DIR}/lib/libhighs.so DESTINATION ${SHARDRUN_BUNDLED})
  install(FILES ${SHARDRUN_HIGHS_DIR}/LICENSE.txt DESTINATION ${CMAKE_INSTALL_DOCDIR}/licenses RENAME HiGHS)
  install(TARGETS shardrun EXPORT shardrun LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/shardrun.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/bench.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/calibrate.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/inference.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/input.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/models.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/op.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/play.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/simulate.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/trainer.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardrun)
  install(EXPORT shardrun NAMESPACE shardrun:: FILE shardrun-config.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardrun)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/shardrun-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/shardrun-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/shardrun)
endif()

if(TARGET shardrun_cli)
  # The installed command finds its libraries by relative paths, wherever the prefix is moved.
  file(RELATIVE_PATH library_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(shardrun_cli PROPERTIES
    OUTPUT_NAME shardrun
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    INSTALL_RPATH "$ORIGIN/${library_from_bin};$ORIGIN/${library_from_bin}/shardrun")
  install(TARGETS shardrun_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The command writes its man page and its completion itself, of its options.
  set(manual ${CMAKE_BINARY_DIR}/manual)
  install(CODE "file(MAKE_DIRECTORY \"${manual}\")
    execute_process(COMMAND \"${CMAKE_BINARY_DIR}/shardrun\" manual
      OUTPUT_FILE \"${manual}/shardrun.1\" COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND \"${CMAKE_BINARY_DIR}/shardrun\" manual --bash
      OUTPUT_FILE \"${manual}/shardrun\" COMMAND_ERROR_IS_FATAL ANY)")
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/clusters DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(FILES ${manual}/shardrun.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${manual}/shardrun DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()

# A part for GPUs that another build left in the prefix is removed.
if(TARGET shardrun)
  set(cuda_part libshardrun_cuda.so)
  install(CODE "if(NOT EXISTS \"${CMAKE_BINARY_DIR}/${cuda_part}\")
    file(REMOVE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/${cuda_part}\")
  endif()")
endif()
add_custom_target(shardrun_installed)
if(TARGET shardrun_cli)
  add_dependencies(shardrun_installed shardrun_cli)
endif()
if(TARGET shardrun_cuda)
  set_target_properties(shardrun_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} INSTALL_RPATH $ORIGIN)
  install(TARGETS shardrun_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
  add_dependencies(shardrun_installed shardrun_cuda)
endif()
