// The release, and the tag that says with what it was compiled.
#pragma once

#define AFD_VERSION "0.1.0"

// Text, since it has to be the same constant in both binaries and comparable without calling
// either.
#define AFD_STRINGIFY_DETAIL(x) #x
#define AFD_STRINGIFY(x) AFD_STRINGIFY_DETAIL(x)
#if defined(__clang__)
#define AFD_COMPILER_TAG "clang" AFD_STRINGIFY(__clang_major__)
#else
#define AFD_COMPILER_TAG "gcc" AFD_STRINGIFY(__GNUC__)
#endif
#include <string>  // defines __GLIBCXX__ and _GLIBCXX_USE_CXX11_ABI
// Its debug mode has other containers.
#if defined(_GLIBCXX_DEBUG)
#define AFD_CONTAINERS_TAG "/debug"
#else
#define AFD_CONTAINERS_TAG ""
#endif
#define AFD_BUILD_TAG                                                                   \
  "afd-" AFD_VERSION "/" AFD_COMPILER_TAG                                               \
  "/libstdc++-" AFD_STRINGIFY(__GLIBCXX__) "/abi" AFD_STRINGIFY(_GLIBCXX_USE_CXX11_ABI) \
      AFD_CONTAINERS_TAG
