/* Shared by the files that do arithmetic on arrays: how they are compiled, and conversions of types. fold.c has all
 * types and operators of NCCL, as core/datatypes.py defines them (ap_fold, api.h).
 *
 * Threading: no state. Ownership: all memory is the caller's; `out` may be one of the operands exactly, but not overlap one.
 */
#pragma once

#include "api.h"

#if !defined(AP_PORTABLE) && defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && defined(__OPTIMIZE__)
/* Compiled for several vector instruction sets, of which the loader chooses: one library for all processors of a cluster. */
#define AP_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AP_VECTORS
#endif

/* For loops whose iterations are independent: the result is one of the operands exactly, or overlaps none. */
#if defined(__clang__)
#define AP_LOOP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define AP_LOOP _Pragma("GCC ivdep")
#else
#define AP_LOOP
#endif

/* out[i] = a[i] combined with b[i], for n elements. */
typedef void (*ap_combine)(void *out, const void *a, const void *b, size_t n);

/* float16, bfloat16 and float8, to float32 and back: to the nearest, ties to even. */
void ap_widen(float *out, const void *in, size_t n, int type);
void ap_narrow(void *out, const float *in, size_t n, int type);
