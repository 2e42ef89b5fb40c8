# How this project makes its targets: one static library a folder, and tests beside the code.

# afd_library(base SOURCES a.cc b.cc DEPS afd::core PRIVATE_DEPS spdlog::spdlog)
# makes afd_base with the alias afd::base. NOT_PACKAGED: libafd.so does not have it. Includes are written from src/ ("base/fd.h") or include/
# (<afd/result.h>).
function(afd_library name)
  cmake_parse_arguments(ARG "NOT_PACKAGED" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(afd_${name} STATIC ${ARG_SOURCES})
  add_library(afd::${name} ALIAS afd_${name})
  target_include_directories(afd_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(afd_${name} SYSTEM PUBLIC "${AFD_EXPECTED_INCLUDE}")
  target_link_libraries(afd_${name} PUBLIC ${ARG_DEPS} PRIVATE afd_flags ${ARG_PRIVATE_DEPS})
  if(NOT ARG_NOT_PACKAGED)
    set_property(GLOBAL APPEND PROPERTY AFD_LIBRARIES afd_${name})
  endif()
endfunction()

# afd_connector_plugin(p2p_ucx SOURCES p2p_ucx_plugin.cc DEPS afd::connectors_p2p afd::transport_ucx)
# makes libafd_connector_p2p_ucx.so, which the factory opens when its connector is asked for. It exports one
# symbol and shares none with the program: the archives that it needs are linked into it.
function(afd_connector_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  set(target afd_connector_${name})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} afd_flags)
  target_link_options(${target} PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/afd_connector.map" -Wl,--no-undefined)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${AFD_CONNECTOR_DIR}"
                        LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/afd_connector.map")
  set_property(GLOBAL APPEND PROPERTY AFD_CONNECTOR_PLUGINS ${target})
endfunction()

# afd_test(base_fd_test SOURCES fd_test.cc DEPS afd::base [LABELS tsan] [TIMEOUT 60] [NO_MAIN])
# makes a GoogleTest program and registers it as one ctest test. The label "tsan" puts it into the
# ThreadSanitizer run; "multiprocess" marks tests that fork or start processes.
function(afd_test name)
  cmake_parse_arguments(ARG "NO_MAIN" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT AFD_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} afd_flags GTest::gtest GTest::gmock)
  if(NOT ARG_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  target_compile_definitions(${name} PRIVATE AFD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                             AFD_MODELS="${PROJECT_SOURCE_DIR}/models")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("tsan" IN_LIST ARG_LABELS)
    add_dependencies(afd_tsan_tests ${name})
  endif()
endfunction()

# What the ThreadSanitizer run needs built, and no more.
add_custom_target(afd_tsan_tests)

if(AFD_BUILD_TESTS)
  enable_testing()
endif()
