# What `make package` packs, beyond what `make install` installs: libshardrun for newer processors, and two packages.
#
#   shardrun_<version>_<architecture>.deb         needs Debian's packages, Open MPI among them
#   shardrun-<version>-Linux-<processor>.tar.gz   a folder that may lie anywhere, with all it needs but Open MPI
foreach(level IN LISTS SHARDRUN_LEVELS)
  install(TARGETS shardrun-${level} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/glibc-hwcaps/${level} NAMELINK_SKIP)
  add_dependencies(shardrun_installed shardrun-${level})
endforeach()

# For the tarball alone, the libraries that are Debian packages to the other. C's and C++'s own and zlib are everywhere;
# MPI is the cluster's.
install(CODE "
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES \"$<TARGET_FILE:shardrun_cli>\" LIBRARIES \"$<TARGET_FILE:shardrun>\"
    RESOLVED_DEPENDENCIES_VAR libraries
    PRE_EXCLUDE_REGEXES \"^(ld-linux|libc|libm|libdl|libpthread|librt|libstdc..|libgcc_s|libz|libhighs|libmpi|libshardrun)[-.].*\")
  file(INSTALL DESTINATION \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${SHARDRUN_BUNDLED}\" TYPE SHARED_LIBRARY
    FOLLOW_SYMLINK_CHAIN FILES \${libraries})" COMPONENT bundled)
# Terms of what is inside: as headers in both, as libraries in the tarball.
foreach(package nlohmann-json3-dev libcli11-dev)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licenses RENAME ${package})
endforeach()
foreach(package libdnnl2 libprotobuf32 libre2-9 libisal2 libmimalloc2.0 libgomp1 ocl-icd-libopencl1)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licenses RENAME ${package}
    COMPONENT bundled OPTIONAL)
endforeach()

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME shardrun)
set(CPACK_PACKAGE_VENDOR "the authors of shardrun")
set(CPACK_PACKAGE_CONTACT "The authors of shardrun <shardrun@localhost>" CACHE STRING "The .deb's maintainer")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains ONNX models on many processes, which it shards by itself")
set(CPACK_PACKAGE_FILE_NAME ${CPACK_PACKAGE_NAME}-${PROJECT_VERSION}-Linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "mpirun -np 8 shardrun model.onnx imports an ONNX model, differentiates it, decides how \
every tensor of a training step is sharded over the ranks, and trains. The command, a shared library with its headers and a \
CMake package.")
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${SHARDRUN_HIGHS_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # and so tells ldconfig of them
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/package_parts.cmake)
include(CPack)
