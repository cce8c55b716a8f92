/* Multicast memory of NVSwitches (sm_90): one load returns the combination of all ranks' values at an address, one store
 * writes a value at all ranks. The memory has the same layout on all ranks, and one multicast address besides each rank's own.
 *
 *     Switches<T, Rule>::load(const void *at, Sixteen *out)   16 bytes, combined in an order that the switch chooses
 *     switch_store(void *at, const Sixteen &value)
 *     fence_aliases()                                      orders accesses by the multicast address and by a rank's own
 *
 * Where switches do not support a type and operator (Switches<T, Rule>::supported is 0), the ranks' values are read one by one.
 *
 * Threading: by all threads of a block, each on elements of its own. Ownership: no memory; the mappings are those of
 *   cuda_joints.h and threads_joints.h.
 */
#pragma once
#include "move.h"

template <typename T, typename Rule> struct Switches {
    enum { supported = 0 };
    static ON_MEMBER void load(const void *, Sixteen *) {}
};

/* With switches: device code for sm_90 and above, and threads, which imitate them. Without: HIP, older GPUs, and the pass of
 * nvcc for the host. */
#if defined(__CUDACC__) || defined(__HIPCC__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BY_SWITCHES 1
#endif
#else
#define BY_SWITCHES 1
#endif

#ifdef BY_SWITCHES
#ifdef __CUDACC__

ON_DEVICE void fence_aliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }

/* A store of four floats: switches copy the bits, so it serves all types. */
ON_DEVICE void switch_store(void *at, const Sixteen &value) {
    const u64 low = value.half[0], high = value.half[1];
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(__uint_as_float((u32)low)),
                 "f"(__uint_as_float((u32)(low >> 32))), "f"(__uint_as_float((u32)high)), "f"(__uint_as_float((u32)(high >> 32)))
                 : "memory");
}

/* Define Switches for a type and operator. OF_VECTOR: by one load of 16 bytes; OF_WORDS: by four of 4 bytes; OF_LONGS: by two
 * of 8 bytes, as PTX has no wider ones for these types. OP: the end of the instruction's name (PTX, multimem.ld_reduce). */
#define OF_VECTOR(T, RULE, OP)                                                                                             \
    template <> struct Switches<T, RULE> {                                                                                \
        enum { supported = 1 };                                                                                           \
        static ON_MEMBER void load(const void *at, Sixteen *out) {                                                        \
            u32 w[4];                                                                                                     \
            asm volatile("multimem.ld_reduce.relaxed.sys.global." OP " {%0, %1, %2, %3}, [%4];"                           \
                         : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])                                                 \
                         : "l"(at)                                                                                        \
                         : "memory");                                                                                     \
            out->half[0] = (u64)w[1] << 32 | w[0], out->half[1] = (u64)w[3] << 32 | w[2];                                 \
        }                                                                                                                 \
    };
#define OF_WORDS(T, RULE, OP)                                                                                              \
    template <> struct Switches<T, RULE> {                                                                                \
        enum { supported = 1 };                                                                                           \
        static ON_MEMBER void load(const void *at, Sixteen *out) {                                                        \
            u32 w[4];                                                                                                     \
            for (int i = 0; i < 4; ++i)                                                                                   \
                asm volatile("multimem.ld_reduce.relaxed.sys.global." OP " %0, [%1];" : "=r"(w[i]) : "l"((const u32 *)at + i) : "memory"); \
            out->half[0] = (u64)w[1] << 32 | w[0], out->half[1] = (u64)w[3] << 32 | w[2];                                 \
        }                                                                                                                 \
    };
#define OF_LONGS(T, RULE, OP)                                                                                              \
    template <> struct Switches<T, RULE> {                                                                                \
        enum { supported = 1 };                                                                                           \
        static ON_MEMBER void load(const void *at, Sixteen *out) {                                                        \
            for (int i = 0; i < 2; ++i)                                                                                   \
                asm volatile("multimem.ld_reduce.relaxed.sys.global." OP " %0, [%1];"                                     \
                             : "=l"(out->half[i])                                                                         \
                             : "l"((const u64 *)at + i)                                                                   \
                             : "memory");                                                                                 \
        }                                                                                                                 \
    };
template <> struct Switches<float, Sum> {
    enum { supported = 1 };
    static ON_MEMBER void load(const void *at, Sixteen *out) {
        float x[4];
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "l"(at)
                     : "memory");
        for (int i = 0; i < 2; ++i)
            out->half[i] = (u64)__float_as_uint(x[2 * i + 1]) << 32 | __float_as_uint(x[2 * i]);
    }
};
template <> struct Switches<double, Sum> {
    enum { supported = 1 };
    static ON_MEMBER void load(const void *at, Sixteen *out) {
        for (int i = 0; i < 2; ++i) {
            double x;
            asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f64 %0, [%1];" : "=d"(x) : "l"((const double *)at + i) : "memory");
            out->half[i] = (u64)__double_as_longlong(x);
        }
    }
};
OF_VECTOR(half16, Sum, "add.acc::f32.v4.f16x2")
OF_VECTOR(half16, Max, "max.v4.f16x2")
OF_VECTOR(half16, Min, "min.v4.f16x2")
OF_VECTOR(brain16, Sum, "add.acc::f32.v4.bf16x2")
OF_VECTOR(brain16, Max, "max.v4.bf16x2")
OF_VECTOR(brain16, Min, "min.v4.bf16x2")
OF_WORDS(int32_t, Sum, "add.s32")
OF_WORDS(int32_t, Max, "max.s32")
OF_WORDS(int32_t, Min, "min.s32")
OF_WORDS(u32, Sum, "add.u32")
OF_WORDS(u32, Max, "max.u32")
OF_WORDS(u32, Min, "min.u32")
OF_LONGS(i64, Sum, "add.u64") /* two's complement: the same bits as a signed sum */
OF_LONGS(i64, Max, "max.s64")
OF_LONGS(i64, Min, "min.s64")
OF_LONGS(u64, Sum, "add.u64")
OF_LONGS(u64, Max, "max.u64")
OF_LONGS(u64, Min, "min.u64")

#else /* threads: threads_joints.h finds the memory of each rank for a multicast address */

i64 joined_ranks(const void *at);
char *joined_at(const void *at, i64 rank);

ON_DEVICE void fence_aliases() {}

ON_DEVICE void switch_store(void *at, const Sixteen &value) {
    for (i64 rank = 0; rank < joined_ranks(at); ++rank) *(Sixteen *)joined_at(at, rank) = value;
}

/* Combines from the last rank to the first, so that tests notice code that relies on an order: switches choose their own. */
template <typename T, typename Rule> struct Loads {
    enum { supported = 1 };
    static ON_MEMBER void load(const void *at, Sixteen *out) {
        /* wide: the type in which values of T are combined; adds: that in which they are added, unsigned for integers */
        const i64 ranks = joined_ranks(at);
        for (size_t i = 0; i < 16 / sizeof(T); ++i) {
            typename Of<T>::wide sum = widen(((const T *)joined_at(at, ranks - 1))[i]);
            for (i64 rank = ranks - 2; rank >= 0; --rank)
                sum = Rule::template combine_pair<typename Of<T>::wide, typename Of<T>::adds>(sum, widen(((const T *)joined_at(at, rank))[i]));
            T value;
            narrow(sum, &value);
            __builtin_memcpy((char *)out + i * sizeof(T), &value, sizeof(T));
        }
    }
};
#define LOADS(T, RULE) \
    template <> struct Switches<T, RULE> : Loads<T, RULE> {};
#define LOADS_BY_ALL(T) LOADS(T, Sum) LOADS(T, Max) LOADS(T, Min)
LOADS(float, Sum)
LOADS(double, Sum)
LOADS_BY_ALL(half16)
LOADS_BY_ALL(brain16)
LOADS_BY_ALL(int32_t)
LOADS_BY_ALL(u32)
LOADS_BY_ALL(i64)
LOADS_BY_ALL(u64)
#undef LOADS

#endif

/* Combines a span of all ranks' values into all ranks' results, 16 bytes at a time. `line`, `span`, `share`: which elements
 * (move.h). `from`: the multicast address of the values or, with `own`, this rank's address of values that are only copied;
 * `to`: the multicast address of the results. `rest(i)` does element i at the ends of each slice, which are not aligned to
 * 16 bytes. Wide<T>::EACH: elements per 16 bytes. */
template <typename T, typename Rule, typename Rest>
ON_DEVICE void combine_jointly(const Line &line, Span span, Share share, const T *from, bool own, T *to, Rest rest) {
    fence_aliases();
    each_slice(line, span, share, Wide<T>::EACH, [&](i64 low, i64 high) {
        /* head: elements before the first address that is a multiple of 16. Vectors of 16 bytes follow, if `to` and `from` have
         * the same remainder modulo 16 (`alike`) */
        i64 head = (i64)((16 - ((uintptr_t)(to + low) & 15)) & 15) / (i64)sizeof(T);
        const bool alike = (((uintptr_t)(to + low) ^ (uintptr_t)(from + low)) & 15) == 0 && (uintptr_t)(to + low) % sizeof(T) == 0;
        i64 vectors = alike && high - low > head ? (high - low - head) / Wide<T>::EACH : 0;
        if (!vectors) head = high - low;
        for (i64 i = my_thread(); i < vectors; i += my_threads()) {
            const i64 at = low + head + i * Wide<T>::EACH;
            Sixteen value;
            if (own)
                value = load_sixteen(from + at);
            else
                Switches<T, Rule>::load(from + at, &value);
            switch_store(to + at, value);
        }
        const i64 done = low + head + vectors * Wide<T>::EACH;
        for (i64 i = my_thread(); i < head + (vectors ? high - done : 0); i += my_threads()) rest(i < head ? low + i : done + i - head);
    });
    fence_aliases();
}
#endif /* BY_SWITCHES */
