// The tables that kernels_*.cc define. Only kernels.cc asks for one by name.
#pragma once

#include "model/kernels.h"

namespace afd::model {

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;    ///< Where the build has AFD_MODEL_X86.
extern const Kernels kAvx512Kernels;  ///< Where the build has AFD_MODEL_X86.

}  // namespace afd::model
