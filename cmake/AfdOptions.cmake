# Options, the language level and the flags that every target of this project gets.

option(AFD_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
set(AFD_BUILD_CONFORMANCE AUTO CACHE STRING
    "afd_conformance, which judges connectors: ON, OFF, or AUTO: where GoogleTest is found and this is the top project")
option(AFD_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(AFD_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
option(AFD_INSTALL "Make the install targets" ${PROJECT_IS_TOP_LEVEL})
option(AFD_WERROR "Warnings are errors" OFF)
set(AFD_SANITIZE "" CACHE STRING "Sanitizers: empty, address (with UBSan) or thread")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Where programs of this build, and of an installed one, find the connectors that they open at run time.
set(AFD_CONNECTOR_DIR "${PROJECT_BINARY_DIR}/lib")
list(APPEND CMAKE_BUILD_RPATH "${AFD_CONNECTOR_DIR}")

find_program(AFD_CCACHE ccache)
if(AFD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${AFD_CCACHE}")
endif()

add_library(afd_flags INTERFACE)
target_compile_options(afd_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast
                       -Woverloaded-virtual -Wcast-qual -Wno-missing-field-initializers)
# Layout invariance is bitwise (docs/architecture.md): the compiler contracts nothing on its own, so
# that a product is fused exactly where the source says std::fma.
target_compile_options(afd_flags INTERFACE -ffp-contract=off)
# GCC 12 at -O3 takes `"text" + std::string` for an overlapping copy.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(afd_flags INTERFACE $<$<CONFIG:Release>:-Wno-restrict>)
endif()
if(AFD_WERROR)
  target_compile_options(afd_flags INTERFACE -Werror)
endif()
if(AFD_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  # The sanitizer's dlopen() stands in front of the loader's, which then takes it for the caller: only the
  # older tag, which goes for every caller, leads to the connectors.
  add_link_options(-Wl,--disable-new-dtags)
elseif(AFD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(AFD_SANITIZE)
  message(FATAL_ERROR "AFD_SANITIZE is '${AFD_SANITIZE}', expected empty, 'address' or 'thread'")
endif()
