# Every dependency is a Debian 12 package (docs/decisions/0001-dependencies.md). A missing one ends the
# configuration with the line to type.

find_package(Threads REQUIRED)
set(AFD_APT "sudo apt-get install -y g++ ninja-build pkg-config libexpected-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libasio-dev libssl-dev libpcre2-dev libgtest-dev libgmock-dev libbenchmark-dev")

find_path(AFD_EXPECTED_INCLUDE tl/expected.hpp)
find_path(AFD_ASIO_INCLUDE asio.hpp)
find_package(nlohmann_json 3.11 QUIET)
find_package(CLI11 QUIET)
find_package(spdlog QUIET)
find_package(OpenSSL QUIET)
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(PCRE2 QUIET IMPORTED_TARGET libpcre2-8)
endif()
foreach(pair "AFD_EXPECTED_INCLUDE:libexpected-dev" "AFD_ASIO_INCLUDE:libasio-dev"
        "nlohmann_json_FOUND:nlohmann-json3-dev" "CLI11_FOUND:libcli11-dev" "spdlog_FOUND:libspdlog-dev"
        "OPENSSL_FOUND:libssl-dev" "PkgConfig_FOUND:pkg-config" "PCRE2_FOUND:libpcre2-dev")
  string(REPLACE ":" ";" pair "${pair}")
  list(GET pair 0 found)
  list(GET pair 1 package)
  if(NOT ${found})
    message(FATAL_ERROR "${package} is missing. Install what this project needs:\n  ${AFD_APT}")
  endif()
endforeach()
if(AFD_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(AFD_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

add_library(afd_asio INTERFACE)
target_include_directories(afd_asio SYSTEM INTERFACE "${AFD_ASIO_INCLUDE}")
target_compile_definitions(afd_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
target_link_libraries(afd_asio INTERFACE Threads::Threads)
