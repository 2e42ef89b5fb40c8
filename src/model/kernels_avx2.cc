// The kernels for AVX2 with FMA; this file is compiled with those instructions.
#include <immintrin.h>
#include <string.h>

#include "model/kernels.h"
#include "model/kernels_table.h"

namespace afd::model {
namespace {

struct Lanes {
  __m256 low;
  __m256 high;
};

struct Words {
  __m256i low;
  __m256i high;
};

// 16 registers: 8 sums, the pair's two words, two weights, a factor and the mask.
constexpr int kRowsMax = 4;
constexpr int tile_panels(int rows) {
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

inline Lanes set(float value) {
  const __m256 all = _mm256_set1_ps(value);
  return {all, all};
}
inline Lanes load(const float* from) {
  return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}
inline Lanes load_part(const float* from, std::size_t count) {
  float part[kLanes] = {};
  memcpy(part, from, count * sizeof(float));
  return load(part);
}
inline void store(float* to, Lanes lanes) {
  _mm256_storeu_ps(to, lanes.low);
  _mm256_storeu_ps(to + 8, lanes.high);
}
inline void store_part(float* to, Lanes lanes, std::size_t count) {
  float part[kLanes];
  store(part, lanes);
  memcpy(to, part, count * sizeof(float));
}
inline Words load_words(const std::uint16_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16))};
}
inline Lanes low_bf16(Words words) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words.low, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(words.high, 16))};
}
inline Lanes high_bf16(Words words) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(words.low, mask)),
          _mm256_castsi256_ps(_mm256_and_si256(words.high, mask))};
}
inline Lanes operator+(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Lanes operator-(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes operator*(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes operator/(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes max_of(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes min_of(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Lanes zero_where_less(Lanes a, Lanes b, Lanes value) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), value.low),
          _mm256_andnot_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ), value.high)};
}
inline __m256 add_to_exponent(__m256 value, __m256 shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value),
                                              _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}
inline Lanes add_to_exponent(Lanes value, Lanes shifted) {
  return {add_to_exponent(value.low, shifted.low), add_to_exponent(value.high, shifted.high)};
}

#include "model/kernels_transpose.inc"

#include "model/kernels.inc"

}  // namespace

const Kernels kAvx2Kernels = kernels_named("avx2");

}  // namespace afd::model
