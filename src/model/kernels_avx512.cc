// The kernels for AVX-512; this file is compiled with those instructions.
#include <immintrin.h>
#include <string.h>

#include "model/kernels.h"
#include "model/kernels_table.h"

namespace afd::model {
namespace {

using Words = __m512i;

// A struct, because operators of the bare vector type are the compiler's own.
struct Lanes {
  __m512 v;
};

// 32 registers: at most 16 sums, and 4 + 4 words and weights.
constexpr int kRowsMax = 8;
constexpr int tile_panels(int rows) {
  return rows == 1 ? 8 : rows <= 4 ? 4 : 2;
}

inline Lanes set(float value) {
  return {_mm512_set1_ps(value)};
}
inline Lanes load(const float* from) {
  return {_mm512_loadu_ps(from)};
}
inline __mmask16 first(std::size_t count) {
  return static_cast<__mmask16>((1u << count) - 1u);
}
inline Lanes load_part(const float* from, std::size_t count) {
  return {_mm512_maskz_loadu_ps(first(count), from)};
}
inline void store(float* to, Lanes lanes) {
  _mm512_storeu_ps(to, lanes.v);
}
inline void store_part(float* to, Lanes lanes, std::size_t count) {
  _mm512_mask_storeu_ps(to, first(count), lanes.v);
}
inline Words load_words(const std::uint16_t* from) {
  return _mm512_loadu_si512(from);
}
inline Lanes low_bf16(Words words) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
}
inline Lanes high_bf16(Words words) {
  return {_mm512_castsi512_ps(
      _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline Lanes operator+(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Lanes operator-(Lanes a, Lanes b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Lanes operator*(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Lanes operator/(Lanes a, Lanes b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline Lanes max_of(Lanes a, Lanes b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Lanes min_of(Lanes a, Lanes b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Lanes zero_where_less(Lanes a, Lanes b, Lanes value) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), value.v)};
}
inline Lanes add_to_exponent(Lanes value, Lanes shifted) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(value.v), _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23)))};
}

#include "model/kernels_transpose.inc"

#include "model/kernels.inc"

}  // namespace

const Kernels kAvx512Kernels = kernels_named("avx512");

}  // namespace afd::model
