# Which of the installed components each of CPack's packages has; read once for each.
set(CPACK_COMPONENTS_ALL Unspecified)
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  list(APPEND CPACK_COMPONENTS_ALL bundled)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
