#include "model/kernels.h"

#include "model/kernels_table.h"

namespace afd::model {

const Kernels* kernels_for(InstructionSet instruction_set) {
#ifdef AFD_MODEL_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f");
  switch (instruction_set) {
    case InstructionSet::kPortable:
      return &kPortableKernels;
    case InstructionSet::kAvx2:
      return has_avx2 ? &kAvx2Kernels : nullptr;
    case InstructionSet::kAvx512:
      return has_avx512 ? &kAvx512Kernels : nullptr;
    case InstructionSet::kBest:
      return has_avx512 ? &kAvx512Kernels : has_avx2 ? &kAvx2Kernels : &kPortableKernels;
  }
  return nullptr;
#else
  const bool has =
      instruction_set == InstructionSet::kBest || instruction_set == InstructionSet::kPortable;
  return has ? &kPortableKernels : nullptr;
#endif
}

}  // namespace afd::model
