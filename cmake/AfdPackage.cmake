# libafd.so, and what `cmake --install` puts where find_package(afd) and pkg-config find it.
#
# The shared library is the contract and what lies below it, with the built-in connectors: the folders of
# AFD_PACKAGE_FOLDERS. The model, the runtime and the CLI are programs' parts and stay out. Only what
# AFD_EXPORT marks in a public header is visible (tests/tidy/exports.py checks it).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(AFD_PACKAGE_FOLDERS base core session transport connectors builtin)
get_property(all_libraries GLOBAL PROPERTY AFD_LIBRARIES)
set(package_libraries)
foreach(library IN LISTS all_libraries)
  get_target_property(folder ${library} SOURCE_DIR)
  string(REGEX REPLACE "^${PROJECT_SOURCE_DIR}/src/([a-z0-9_]+).*" "\\1" folder "${folder}")
  if(folder IN_LIST AFD_PACKAGE_FOLDERS)
    list(APPEND package_libraries ${library})
  endif()
endforeach()

# Debian's tl/expected.hpp (libexpected-dev) stands in every public header.
add_library(afd SHARED)
add_library(afd::afd ALIAS afd)
# Their objects, every one: what nobody inside calls is still the API. The archives are linked as well, for
# the libraries that they need; nothing is left to take from them.
foreach(library IN LISTS package_libraries)
  target_sources(afd PRIVATE "$<TARGET_OBJECTS:${library}>")
endforeach()
target_link_libraries(afd PRIVATE ${package_libraries} afd_flags)
target_link_options(afd PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/afd.map" -Wl,--no-undefined)
set_target_properties(afd PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/afd.map" LINKER_LANGUAGE CXX
                      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(afd INTERFACE cxx_std_20)
target_include_directories(afd INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                           "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_include_directories(afd SYSTEM INTERFACE "$<BUILD_INTERFACE:${AFD_EXPECTED_INCLUDE}>")

if(NOT AFD_INSTALL)
  return()
endif()

set(AFD_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/afd")
install(TARGETS afd EXPORT afdTargets LIBRARY NAMELINK_COMPONENT dev)
get_property(connector_plugins GLOBAL PROPERTY AFD_CONNECTOR_PLUGINS)
if(connector_plugins)
  install(TARGETS ${connector_plugins} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
# dlopen() looks where its caller says: beside libafd.so, and from bin/ in lib/.
set_target_properties(afd PROPERTIES INSTALL_RPATH "$ORIGIN")
if(TARGET afd_cli)
  file(RELATIVE_PATH lib_from_bin "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(afd_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
endif()
install(EXPORT afdTargets NAMESPACE afd:: DESTINATION "${AFD_CMAKE_DIR}" COMPONENT dev)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/afd" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT dev
        FILES_MATCHING PATTERN "*.h")
if(TARGET afd_cli)
  install(TARGETS afd_cli)
endif()
# Laid out as in the tree, so that the links lead somewhere (scripts/check-package looks).
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
        "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        PATTERN "build*" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/benchmarks/results" DESTINATION "${CMAKE_INSTALL_DOCDIR}/benchmarks")
install(FILES "${PROJECT_SOURCE_DIR}/models/austen-moe/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}/models/austen-moe")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/afdConfig.cmake.in" "${PROJECT_BINARY_DIR}/afdConfig.cmake"
                              INSTALL_DESTINATION "${AFD_CMAKE_DIR}" PATH_VARS CMAKE_INSTALL_BINDIR
                              NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor release may change the contract.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/afdConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/afdConfig.cmake" "${PROJECT_BINARY_DIR}/afdConfigVersion.cmake"
        DESTINATION "${AFD_CMAKE_DIR}" COMPONENT dev)

file(RELATIVE_PATH AFD_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" AFD_PC_PREFIX "${AFD_PC_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/afd.pc.in" "${PROJECT_BINARY_DIR}/afd.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/afd.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
