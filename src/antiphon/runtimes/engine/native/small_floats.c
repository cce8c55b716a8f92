/* Convert float16, bfloat16 and float8 to float32 and back, rounded to nearest, ties to even, in integer arithmetic that
 * compilers vectorise; float16 by the processor's instructions if it has any. NaN stays NaN, its payload may change.
 *
 * bits_of and float_of reinterpret a float32 (8 exponent bits of bias 127, 23 of mantissa). Names: half is float16 (5 exponent
 * bits of bias 15, 10 of mantissa), brain is bfloat16 (the upper half of a float32), e4m3 and e5m2 are float8. To drop k bits,
 * rounded to even, first add 2^(k-1) - 1 plus the lowest bit that stays.
 *
 * Threading: no state. Ownership: all memory is the caller's.
 */
#include <string.h>

#include "fold.h"

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define HAS_F16C 1
#endif

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* `bits`: all but the sign. The bias of the exponent differs by 112 = 127 - 15. Subnormal numbers (below 2^-14, in float32
 * 113 << 23) have no leading 1: adding 2^-14 to the bits gives them one, and subtracting it as a float32 is exact. */
static inline float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, bits = (uint32_t)(h & 0x7FFF) << 13;
    uint32_t normal = bits + (112u << 23), infinite = bits | 0x7F800000u;
    uint32_t subnormal = bits_of(float_of(bits + (113u << 23)) - float_of(113u << 23));
    uint32_t magnitude = bits >= 0x0F800000u ? infinite : bits < 0x00800000u ? subnormal : normal;
    return float_of(magnitude | sign);
}

static inline uint16_t to_half(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, bits = u & 0x7FFFFFFFu;
    /* Subnormal: adding 2^23 times the type's smallest number (float16: 2^-1, e4m3: 2^14, e5m2: 2^7) makes the processor round
     * at that number, to even. From the largest number on, rounding carries into infinity by itself (e4m3: into NaN); the
     * thresholds (65520; 480; 65536) catch what is beyond the exponents of the type. 0x7E00: NaN, 0x7C00: infinity */
    uint32_t subnormal = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    uint32_t normal = (bits - (112u << 23) + 0xFFFu + (bits >> 13 & 1)) >> 13;
    uint32_t magnitude = bits > 0x7F800000u ? 0x7E00u : bits >= 0x477FF000u ? 0x7C00u : bits < 0x38800000u ? subnormal : normal;
    return (uint16_t)(magnitude | sign);
}

static inline uint16_t to_brain(float x) {
    uint32_t u = bits_of(x), rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 & 0x8000) | 0x7FC0u : rounded);
}

/* The bias differs by 120 = 127 - 7. There is no infinity: 448 is the largest number, and the code beyond it is NaN. */
static inline float from_e4m3(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24, bits = (uint32_t)(b & 0x7F) << 20;
    uint32_t subnormal = bits_of(float_of(bits + (121u << 23)) - float_of(121u << 23));
    uint32_t magnitude = bits == 0x07F00000u ? 0x7FC00000u : bits < 0x00800000u ? subnormal : bits + (120u << 23);
    return float_of(magnitude | sign);
}

static inline uint8_t to_e4m3(float x) {
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80, bits = u & 0x7FFFFFFFu;
    uint32_t subnormal = bits_of(float_of(bits) + 16384.0f) - bits_of(16384.0f);
    uint32_t normal = (bits - (120u << 23) + 0x7FFFFu + (bits >> 20 & 1)) >> 20;
    return (uint8_t)((bits >= 0x43F00000u ? 0x7Fu : bits < 0x3C800000u ? subnormal : normal) | sign);
}

/* A float8 E5M2 is the upper half of a float16. */
static inline float from_e5m2(uint8_t b) { return from_half((uint16_t)(b << 8)); }

static inline uint8_t to_e5m2(float x) {
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80, bits = u & 0x7FFFFFFFu;
    uint32_t subnormal = bits_of(float_of(bits) + 128.0f) - bits_of(128.0f);
    uint32_t normal = (bits - (112u << 23) + 0xFFFFFu + (bits >> 21 & 1)) >> 21;
    uint32_t magnitude = bits > 0x7F800000u ? 0x7Eu : bits >= 0x47800000u ? 0x7Cu : bits < 0x38800000u ? subnormal : normal;
    return (uint8_t)(magnitude | sign);
}

AP_VECTORS static void widen_e4m3(float *out, const uint8_t *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = from_e4m3(in[i]);
}

AP_VECTORS static void narrow_e4m3(uint8_t *out, const float *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = to_e4m3(in[i]);
}

AP_VECTORS static void widen_e5m2(float *out, const uint8_t *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = from_e5m2(in[i]);
}

AP_VECTORS static void narrow_e5m2(uint8_t *out, const float *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = to_e5m2(in[i]);
}

AP_VECTORS static void widen_halves(float *out, const uint16_t *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = from_half(in[i]);
}

AP_VECTORS static void narrow_halves(uint16_t *out, const float *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = to_half(in[i]);
}

AP_VECTORS static void widen_brains(float *out, const uint16_t *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = float_of((uint32_t)in[i] << 16);
}

AP_VECTORS static void narrow_brains(uint16_t *out, const float *in, size_t n) {
    AP_LOOP for (size_t i = 0; i < n; i++) out[i] = to_brain(in[i]);
}

#ifdef HAS_F16C
__attribute__((target("avx,f16c"))) static size_t widen_f16c(float *out, const uint16_t *in, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    return i;
}

__attribute__((target("avx,f16c"))) static size_t narrow_f16c(uint16_t *out, const float *in, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return i;
}

/* Every processor with AVX2 has F16C, which older compilers cannot ask for by name. */
static int has_f16c(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx"); }
#endif

static void widen_float16(float *out, const uint16_t *in, size_t n) {
    size_t done = 0;
#ifdef HAS_F16C
    if (has_f16c()) done = widen_f16c(out, in, n);
#endif
    widen_halves(out + done, in + done, n - done);
}

static void narrow_float16(uint16_t *out, const float *in, size_t n) {
    size_t done = 0;
#ifdef HAS_F16C
    if (has_f16c()) done = narrow_f16c(out, in, n);
#endif
    narrow_halves(out + done, in + done, n - done);
}

void ap_widen(float *out, const void *in, size_t n, int type) {
    switch (type) {
    case AP_BFLOAT16: widen_brains(out, in, n); break;
    case AP_FLOAT8_E4M3: widen_e4m3(out, in, n); break;
    case AP_FLOAT8_E5M2: widen_e5m2(out, in, n); break;
    default: widen_float16(out, in, n);
    }
}

void ap_narrow(void *out, const float *in, size_t n, int type) {
    switch (type) {
    case AP_BFLOAT16: narrow_brains(out, in, n); break;
    case AP_FLOAT8_E4M3: narrow_e4m3(out, in, n); break;
    case AP_FLOAT8_E5M2: narrow_e5m2(out, in, n); break;
    default: narrow_float16(out, in, n);
    }
}
