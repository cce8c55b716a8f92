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

/* float16 and bfloat16, by their bits. */
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

ON_DEVICE float widen(brain16 b) { return float_of((u32)b.bits << 16); }

/* Rounds to the nearest, ties to even; a NaN stays one, as quiet. */
ON_DEVICE brain16 to_brain(float x) {
    const u32 u = bits_of(x), rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return {(uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 & 0x8000) | 0x7FC0u : rounded)};
}

#if defined(__CUDACC__)
ON_DEVICE float widen(half16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
    return x;
}
ON_DEVICE half16 to_half(float x) {
    half16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
    return h;
}
#elif defined(__HIPCC__)
ON_DEVICE float widen(half16 h) { return (float)__builtin_bit_cast(_Float16, h.bits); }
ON_DEVICE half16 to_half(float x) { return {__builtin_bit_cast(uint16_t, (_Float16)x)}; }
#else
/* The biases of the exponents, 127 and 15, differ by 112. Numbers below 2^-14 have no leading 1: 113 << 23, which is 2^-14, adds
 * one and is subtracted again, exactly. `magnitude`: the bits without the sign, at their places in a float. */
ON_DEVICE float widen(half16 h) {
    const u32 sign = (u32)(h.bits & 0x8000) << 16, magnitude = (u32)(h.bits & 0x7FFF) << 13;
    const u32 tiny = bits_of(float_of(magnitude + (113u << 23)) - float_of(113u << 23)), normal = magnitude + (112u << 23);
    const int is_infinite = magnitude >= 0x0F800000u, is_tiny = magnitude < 0x00800000u; /* infinite, or a NaN */
    return float_of((is_infinite ? magnitude | 0x7F800000u : is_tiny ? tiny : normal) | sign);
}

/* From 65,520 (0x477FF000) on, which is rounded to 2^16, a number is infinite; below 2^-14 (0x38800000) it has no leading 1:
 * adding 0.5 rounds it to multiples of 2^-24, the least such number. */
ON_DEVICE half16 to_half(float x) {
    const u32 u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7FFFFFFFu;
    const u32 tiny = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f); /* ties to even, as the processor adds */
    const u32 normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1)) >> 13;
    const int is_nan = magnitude > 0x7F800000u, is_too_large = magnitude >= 0x477FF000u, is_tiny = magnitude < 0x38800000u;
    return {(uint16_t)((is_nan ? 0x7E00u : is_too_large ? 0x7C00u : is_tiny ? tiny : normal) | sign)};
}
#endif

/* The type in which values of T are combined (wide), and that in which those are added and multiplied (adds): unsigned for
 * integers, as overflow of signed ones is undefined in C++. */
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

/* From T to Of<T>::wide, and back. */
template <typename T> ON_DEVICE T widen(T x) { return x; }
template <typename T> ON_DEVICE void narrow(T x, T *out) { *out = x; }
ON_DEVICE void narrow(float x, half16 *out) { *out = to_half(x); }
ON_DEVICE void narrow(float x, brain16 *out) { *out = to_brain(x); }

/* The operators. W: the type of the values (wide); U: that in which they are added (adds). */
struct Sum {
    enum { NUMBER = SUM };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return (W)((U)x + (U)y); }
};
struct Prod {
    enum { NUMBER = PROD };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return (W)((U)x * (U)y); }
};
/* x != x: x is a NaN, which is the result; if y is one, the comparison is false, which selects it. */
struct Max {
    enum { NUMBER = MAX };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return ((x >= y) | (x != x)) ? x : y; }
};
struct Min {
    enum { NUMBER = MIN };
    template <typename W, typename U> static ON_MEMBER W combine_pair(W x, W y) { return ((x <= y) | (x != x)) ? x : y; }
};

/* The average of `count` numbers from their sum: integers are rounded toward zero. */
template <typename W> ON_DEVICE W divide_sum(W x, i64 count) {
    if ((W)-1 > (W)0) return (W)((u64)x / (u64)count); /* unsigned */
    return (W)((i64)x / count);
}
ON_DEVICE float divide_sum(float x, i64 count) { return x / (float)count; }
ON_DEVICE double divide_sum(double x, i64 count) { return x / (double)count; }
