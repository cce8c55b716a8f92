/* Data types and operators, numbered as in NCCL, with the semantics of docs/program.md: integers wrap around, float16 and
 * bfloat16 are combined in float32 and rounded once, max and min with a NaN are NaN.
 *
 * Threading: pure functions. Ownership: no memory.
 */
#pragma once
#include "world.h"

enum { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16,
       FLOAT8_E4M3, FLOAT8_E5M2, INT16, UINT16, TYPES }; /* the first twelve are numbered as in NCCL; float8 is not supported */
enum { SUM = 0, PROD, MAX, MIN, AVG, OPERATORS };

struct half16 {
    uint16_t bits;
};
struct brain16 {
    uint16_t bits;
};
ON_DEVICE u32 bits_of(float x) {
    u32 u;
    return __builtin_memcpy(&u, &x, 4), u;
}
ON_DEVICE float float_of(u32 u) {
    float x;
    return __builtin_memcpy(&x, &u, 4), x;
}

ON_DEVICE float widened(brain16 b) { return float_of((u32)b.bits << 16); }

ON_DEVICE brain16 as_brain(float x) {
    const u32 u = bits_of(x), rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return {(uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 & 0x8000) | 0x7FC0u : rounded)};
}

#if defined(__CUDACC__)
ON_DEVICE float widened(half16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
    return x;
}
ON_DEVICE half16 as_half(float x) {
    half16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}
#elif defined(__HIPCC__)
ON_DEVICE float widened(half16 h) { return (float)__builtin_bit_cast(_Float16, h.bits); }
ON_DEVICE half16 as_half(float x) { return {__builtin_bit_cast(uint16_t, (_Float16)x)}; }
#else
/* The exponent moves by 112; numbers below 2^-14 are made exact by one subtraction. */
ON_DEVICE float widened(half16 h) {
    const u32 sign = (u32)(h.bits & 0x8000) << 16, rest = (u32)(h.bits & 0x7FFF) << 13;
    const u32 tiny = bits_of(float_of(rest + (113u << 23)) - float_of(113u << 23));
    return float_of((rest >= 0x0F800000u ? rest | 0x7F800000u : rest < 0x00800000u ? tiny : rest + (112u << 23)) | sign);
}

ON_DEVICE half16 as_half(float x) {
    const u32 u = bits_of(x), sign = u >> 16 & 0x8000, rest = u & 0x7FFFFFFFu;
    const u32 tiny = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f); /* rounded to even, as the processor adds */
    const u32 usual = (rest - (112u << 23) + 0xFFFu + (rest >> 13 & 1)) >> 13;
    return {(uint16_t)((rest > 0x7F800000u ? 0x7E00u : rest >= 0x477FF000u ? 0x7C00u : rest < 0x38800000u ? tiny : usual) |
                       sign)};
}
#endif

/* What a type is combined in, and as what it is added: signed numbers without overflow. */
template <typename T> struct Of {
    typedef T wide;
    typedef T adds;
};
#define COMBINED_IN(T, WIDE, ADDS) \
    template <> struct Of<T> {     \
        typedef WIDE wide;         \
        typedef ADDS adds;         \
    };
COMBINED_IN(int8_t, int8_t, u32)
COMBINED_IN(uint8_t, uint8_t, u32)
COMBINED_IN(int16_t, int16_t, u32)
COMBINED_IN(uint16_t, uint16_t, u32)
COMBINED_IN(int32_t, int32_t, u32)
COMBINED_IN(int64_t, int64_t, u64)
COMBINED_IN(half16, float, float)
COMBINED_IN(brain16, float, float)

template <typename T> ON_DEVICE T widened(T x) { return x; }
template <typename T> ON_DEVICE void narrowed(T x, T *out) { *out = x; }
ON_DEVICE void narrowed(float x, half16 *out) { *out = as_half(x); }
ON_DEVICE void narrowed(float x, brain16 *out) { *out = as_brain(x); }

struct Sum {
    enum { NUMBER = SUM };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return (W)((U)x + (U)y); }
};
struct Prod {
    enum { NUMBER = PROD };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return (W)((U)x * (U)y); }
};
/* The comparison with itself lets what is not a number through. */
struct Max {
    enum { NUMBER = MAX };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return ((x >= y) | (x != x)) ? x : y; }
};
struct Min {
    enum { NUMBER = MIN };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return ((x <= y) | (x != x)) ? x : y; }
};

/* A sum of `count` numbers as their average: whole numbers are cut toward zero. */
template <typename W> ON_DEVICE W shared_by(W x, i64 count) {
    if ((W)-1 > (W)0) return (W)((u64)x / (u64)count);
    return (W)((i64)x / count);
}
ON_DEVICE float shared_by(float x, i64 count) { return x / (float)count; }
ON_DEVICE double shared_by(double x, i64 count) { return x / (double)count; }
