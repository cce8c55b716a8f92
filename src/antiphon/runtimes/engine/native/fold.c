/* Combining values (ap_fold) and dividing sums (ap_divide), in loops that compilers vectorise. The engine calls them for the
 * folds and averages of a program.
 *
 * Whole numbers wrap around (signed ones are added as unsigned). float16, bfloat16 and float8 are combined in float32 and
 * rounded once. min and max with a NaN are NaN; of equal numbers (0 and -0) the first is taken, while NumPy's choice depends on
 * the processor. No sum is reordered.
 *
 * Threading: no state. Ownership: all memory is the caller's.
 */
#include "fold.h"

#include <string.h>

#include "copy.h"

/* How two values x and y combine. T: the type of an element; U: the type in which sums and products are computed. */
#define ADD(T, U) (T)((U)x + (U)y)
#define MULTIPLY(T, U) (T)((U)x * (U)y)
#define LARGER(T, U) (x >= y ? x : y)
#define SMALLER(T, U) (x <= y ? x : y)
/* x != x holds for NaN only, which is the result then; if y is NaN, x >= y is false. */
#define LARGER_FLOAT(T, U) (((x >= y) | (x != x)) ? x : y)
#define SMALLER_FLOAT(T, U) (((x <= y) | (x != x)) ? x : y)

/* Define an ap_combine (fold.h). AP_VECTORS and AP_LOOP, also of fold.h, may expand to nothing: they let compilers use
 * vector instructions and do not change results. */
#define COMBINE(NAME, T, U, RULE)                                                     \
    AP_VECTORS static void NAME(void *out, const void *a, const void *b, size_t n) { \
        T *o = out;                                                                   \
        const T *p = a, *q = b;                                                       \
        AP_LOOP for (size_t i = 0; i < n; i++) {                                      \
            T x = p[i], y = q[i];                                                     \
            o[i] = RULE(T, U);                                                        \
        }                                                                             \
    }

/* Define the four of a type: NAME_sum, NAME_prod, NAME_max by the rule MAX, and NAME_min by MIN. */
#define COMBINES(NAME, T, U, MAX, MIN)    \
    COMBINE(NAME##_sum, T, U, ADD)        \
    COMBINE(NAME##_prod, T, U, MULTIPLY)  \
    COMBINE(NAME##_max, T, U, MAX)        \
    COMBINE(NAME##_min, T, U, MIN)

/* Narrow types are promoted to int, where a product of two uint16 could overflow: hence at least `unsigned`. */
COMBINES(i8, int8_t, unsigned, LARGER, SMALLER)
COMBINES(u8, uint8_t, unsigned, LARGER, SMALLER)
COMBINES(i16, int16_t, unsigned, LARGER, SMALLER)
COMBINES(u16, uint16_t, unsigned, LARGER, SMALLER)
COMBINES(i32, int32_t, uint32_t, LARGER, SMALLER)
COMBINES(u32, uint32_t, uint32_t, LARGER, SMALLER)
COMBINES(i64, int64_t, uint64_t, LARGER, SMALLER)
COMBINES(u64, uint64_t, uint64_t, LARGER, SMALLER)
COMBINES(f32, float, float, LARGER_FLOAT, SMALLER_FLOAT)
COMBINES(f64, double, double, LARGER_FLOAT, SMALLER_FLOAT)

#define ROW(NAME) {NAME##_sum, NAME##_prod, NAME##_max, NAME##_min, NAME##_sum}
/* By type and operator. Narrow floats are combined as float32; an average is a sum, divided at the end. */
static const ap_combine combines[AP_TYPES][AP_OPERATORS] = {
    [AP_INT8] = ROW(i8),     [AP_UINT8] = ROW(u8),     [AP_INT16] = ROW(i16),   [AP_UINT16] = ROW(u16),
    [AP_INT32] = ROW(i32),   [AP_UINT32] = ROW(u32),   [AP_INT64] = ROW(i64),   [AP_UINT64] = ROW(u64),
    [AP_FLOAT32] = ROW(f32), [AP_FLOAT64] = ROW(f64), [AP_FLOAT16] = ROW(f32), [AP_BFLOAT16] = ROW(f32),
    [AP_FLOAT8_E4M3] = ROW(f32), [AP_FLOAT8_E5M2] = ROW(f32),
};

/* Whether values of a type are combined in float32. */
static int is_narrow(int type) {
    return type == AP_FLOAT16 || type == AP_BFLOAT16 || type == AP_FLOAT8_E4M3 || type == AP_FLOAT8_E5M2;
}

size_t ap_type_size(int type) {
    static const unsigned char sizes[AP_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 2, 2}; /* by number, see api.h */
    return type >= 0 && type < AP_TYPES ? sizes[type] : 0;
}

enum { BLOCK = 1024 }; /* elements that stay in the L1 cache while all operands are combined */

/* ap_fold by `combine` in float32. */
static void fold_narrow(char *result, const void *const *operands, size_t count, size_t n, int type, ap_combine combine) {
    float sum[BLOCK], next[BLOCK];
    const size_t size = ap_type_size(type);
    for (size_t low = 0; low < n; low += BLOCK) {
        size_t m = n - low < BLOCK ? n - low : BLOCK;
        ap_widen(sum, (const char *)operands[0] + low * size, m, type);
        for (size_t k = 1; k < count; k++) {
            ap_widen(next, (const char *)operands[k] + low * size, m, type);
            combine(sum, sum, next, m);
        }
        ap_narrow(result + low * size, sum, m, type);
    }
}

/* Copies bytes between areas that may overlap. */
static void copy_or_move(void *to, const void *from, size_t bytes) {
    uintptr_t t = (uintptr_t)to, f = (uintptr_t)from;
    if (t + bytes <= f || f + bytes <= t)
        ap_copy(to, from, bytes);
    else if (t != f)
        memmove(to, from, bytes);
}

/* result = ((operand 0 + operand 1) + operand 2) + ..., with the operator for +. `count`: operands; `n`: elements of
 * each. */
void ap_fold(void *result, const void *const *operands, size_t count, size_t n, int type, int operation) {
    size_t size = ap_type_size(type);
    if (!n || !count) return;
    if (count == 1) {
        copy_or_move(result, operands[0], n * size);
        return;
    }
    ap_combine combine = combines[type][operation];
    if (is_narrow(type)) {
        fold_narrow(result, operands, count, n, type, combine);
        return;
    }
    if (count == 2) {
        combine(result, operands[0], operands[1], n);
        return;
    }
    double sum[BLOCK]; /* of any type, up to 8 bytes. Not in the result, which may be the memory of a later operand */
    for (size_t low = 0; low < n; low += BLOCK) {
        size_t m = n - low < BLOCK ? n - low : BLOCK, at = low * size;
        combine(sum, (const char *)operands[0] + at, (const char *)operands[1] + at, m);
        for (size_t k = 2; k + 1 < count; k++) combine(sum, sum, (const char *)operands[k] + at, m);
        combine((char *)result + at, sum, (const char *)operands[count - 1] + at, m);
    }
}

/* Divide `n` values of type T by `count`, in WIDE; ends the case of the switch that it is in. */
#define DIVIDE_VALUES(T, WIDE)                                                           \
    {                                                                                    \
        T *v = values;                                                                   \
        for (size_t i = 0; i < n; i++) v[i] = (T)((WIDE)v[i] / (WIDE)count);             \
        break;                                                                           \
    }

/* The same for narrow floats, in float32. */
static void divide_narrow(char *v, size_t n, float count, int type) {
    float wide[BLOCK];
    const size_t size = ap_type_size(type);
    for (size_t low = 0; low < n; low += BLOCK) {
        size_t m = n - low < BLOCK ? n - low : BLOCK;
        ap_widen(wide, v + low * size, m, type);
        for (size_t i = 0; i < m; i++) wide[i] /= count;
        ap_narrow(v + low * size, wide, m, type);
    }
}

void ap_divide(void *values, size_t n, uint64_t count, int type) {
    if (count < 2) return; /* nothing changes. (Counts are positive, so that -2^63 / -1 cannot arise.) */
    if (count > INT64_MAX) count = INT64_MAX; /* so that it stays positive as int64_t */
    switch (type) {
    case AP_INT8: DIVIDE_VALUES(int8_t, int64_t)
    case AP_UINT8: DIVIDE_VALUES(uint8_t, uint64_t)
    case AP_INT16: DIVIDE_VALUES(int16_t, int64_t)
    case AP_UINT16: DIVIDE_VALUES(uint16_t, uint64_t)
    case AP_INT32: DIVIDE_VALUES(int32_t, int64_t)
    case AP_UINT32: DIVIDE_VALUES(uint32_t, uint64_t)
    case AP_INT64: DIVIDE_VALUES(int64_t, int64_t)
    case AP_UINT64: DIVIDE_VALUES(uint64_t, uint64_t)
    case AP_FLOAT32: DIVIDE_VALUES(float, float)
    case AP_FLOAT64: DIVIDE_VALUES(double, double)
    default: divide_narrow(values, n, (float)count, type);
    }
}
