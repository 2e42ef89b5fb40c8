// The kernels in plain C++: for machines without AVX2, and what the others are compared with. On
// aarch64 the compiler turns these loops into NEON; on x86-64 without FMA they are correct and
// slow.
#include <math.h>
#include <string.h>

#include "model/kernels.h"
#include "model/kernels_table.h"

namespace afd::model {
namespace {

struct Lanes {
  float v[kLanes];
};

struct Words {
  std::uint32_t v[kLanes];
};

constexpr int kRowsMax = 4;
constexpr int tile_panels(int) {
  return 1;
}

template <typename Function>
inline Lanes each(Function function) {
  Lanes out;
  for (std::size_t i = 0; i < kLanes; ++i) {
    out.v[i] = function(i);
  }
  return out;
}

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float from_bits(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline Lanes set(float value) {
  return each([&](std::size_t) { return value; });
}
inline Lanes load(const float* from) {
  Lanes out;
  memcpy(out.v, from, sizeof out.v);
  return out;
}
inline Lanes load_part(const float* from, std::size_t count) {
  Lanes out = {};
  memcpy(out.v, from, count * sizeof(float));
  return out;
}
inline void store(float* to, const Lanes& lanes) {
  memcpy(to, lanes.v, sizeof lanes.v);
}
inline void store_part(float* to, const Lanes& lanes, std::size_t count) {
  memcpy(to, lanes.v, count * sizeof(float));
}
inline Words load_words(const std::uint16_t* from) {
  Words out;
  memcpy(out.v, from, sizeof out.v);
  return out;
}
inline Lanes low_bf16(const Words& words) {
  return each([&](std::size_t i) { return from_bits(words.v[i] << 16); });
}
inline Lanes high_bf16(const Words& words) {
  return each([&](std::size_t i) { return from_bits(words.v[i] & 0xffff0000u); });
}
inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] + b.v[i]; });
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] - b.v[i]; });
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] * b.v[i]; });
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] / b.v[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  return each([&](std::size_t i) { return ::fmaf(a.v[i], b.v[i], c.v[i]); });
}
// As maxps and minps have it: the second where either is not a number.
inline Lanes max_of(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes min_of(const Lanes& a, const Lanes& b) {
  return each([&](std::size_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes zero_where_less(const Lanes& a, const Lanes& b, const Lanes& value) {
  return each([&](std::size_t i) { return a.v[i] < b.v[i] ? 0.0f : value.v[i]; });
}
inline Lanes add_to_exponent(const Lanes& value, const Lanes& shifted) {
  return each([&](std::size_t i) {
    return from_bits(bits_of(value.v[i]) + (bits_of(shifted.v[i]) << 23));
  });
}

void transpose(const float* const rows[kLanes], std::size_t count, float* panel) {
  for (std::size_t i = 0; i < round_up_to_lanes(count); ++i) {
    for (std::size_t r = 0; r < kLanes; ++r) {
      panel[i * kLanes + r] = rows[r][i];
    }
  }
}

#include "model/kernels.inc"

}  // namespace

const Kernels kPortableKernels = kernels_named("portable");

}  // namespace afd::model
