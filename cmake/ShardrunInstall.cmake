# What `make install` leaves: the command, one shared library with its headers, and a CMake package.
# launcher/CMakeLists.txt defines both: shardrun (SHARED, from launcher/api) and shardrun_cli (the command).
#
#   find_package(shardrun REQUIRED)
#   target_link_libraries(mine PRIVATE shardrun::shardrun)
#
# A shared library, because a static one would ask its users to find oneDNN, protobuf and MPI themselves. HiGHS'
# library, which no Debian package has, is installed beside it. Everything that comes from the folders' static libraries is hidden in it: only the public header's
# symbols, compiled into the library itself, can be linked against, and a program's own protobuf types cannot clash.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET shardrun)
  target_link_options(shardrun PRIVATE -Wl,--exclude-libs,ALL)
  set_target_properties(shardrun PROPERTIES
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  set_target_properties(shardrun PROPERTIES INSTALL_RPATH $ORIGIN)
  install(FILES ${SHARDRUN_HIGHS_DIR}/lib/libhighs.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS shardrun EXPORT shardrun LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/shardrun.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/bench.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/inference.h
    ${CMAKE_SOURCE_DIR}/launcher/api/include/shardrun/op.h
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
  # The installed command finds its library beside it, wherever the prefix is moved.
  file(RELATIVE_PATH library_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(shardrun_cli PROPERTIES
    OUTPUT_NAME shardrun
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    INSTALL_RPATH $ORIGIN/${library_from_bin})
  install(TARGETS shardrun_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
