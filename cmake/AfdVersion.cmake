# AFD_VERSION, from the header that says it to those who have no CMake: one place, so that the two agree.

set(version_header "${CMAKE_CURRENT_SOURCE_DIR}/include/afd/version.h")
file(STRINGS "${version_header}" version_line REGEX "^#define AFD_VERSION ")
if(NOT version_line MATCHES "^#define AFD_VERSION \"([0-9]+\\.[0-9]+\\.[0-9]+)\"$")
  message(FATAL_ERROR "${version_header} has no line like: #define AFD_VERSION \"1.2.3\"")
endif()
set(AFD_VERSION "${CMAKE_MATCH_1}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${version_header}")
