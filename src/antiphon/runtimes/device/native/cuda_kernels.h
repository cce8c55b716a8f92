/* The kernel entry points for CUDA and HIP, one instance per data type: a whole call (antiphon_*), one step of a call
 * (antiphon_step_*), and the small kernels before and after them. Part of cuda.cu; the algorithm is in kernel.h.
 *
 * Threading: a grid holds the blocks of all ranks of one device; a block finds its rank by `Launch::first`.
 * Ownership: arguments are the host's and outlive the launch.
 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include "kernel.h"

/* What ranks of this device begin together: of each its call, and its first block. */
struct Launch {
    const Run *runs;
    const u32 *first;
    u32 ranks;
};

#define KERNEL(NAME, T)                                                              \
    AS_KERNEL void __launch_bounds__(512) antiphon_##NAME(const Launch launch) {     \
        u32 rank = 0;                                                                \
        while (rank + 1 < launch.ranks && blockIdx.x >= launch.first[rank + 1]) ++rank; \
        run_block<T>(launch.runs[rank], blockIdx.x - launch.first[rank]);            \
    }                                                                                \
    AS_KERNEL void __launch_bounds__(512) antiphon_step_##NAME(const Run run, const Step *step) { \
        if (!glance(run.stop)) carry_out<T>(run, *step, Share{blockIdx.x, gridDim.x}); \
    }

/* Of calls by steps: signals to and from ranks of other processes. */
AS_KERNEL void antiphon_tell(u64 *at, u64 value) { store(at, value); }
AS_KERNEL void antiphon_await(const u64 *at, u64 value, const u32 *stop) { (void)has_come(at, value, stop); }

/* Of calls that a device makes again by itself: before and behind each. */
AS_KERNEL void antiphon_empty(u64 *box, const u64 *counter) {
    if (!empties(*counter)) return;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < BOX; i += gridDim.x * blockDim.x) post(box + half_of(*counter) + i, 0);
}
AS_KERNEL void antiphon_next(u64 *counter) { *counter = (*counter + 1) % ((u64)1 << (64 - CALL_BITS)); }

#ifdef SAMPLE /* of what it compiles: one type for all */
KERNEL(float16, half16)
#define antiphon_int8 antiphon_float16
#define antiphon_uint8 antiphon_float16
#define antiphon_int16 antiphon_float16
#define antiphon_uint16 antiphon_float16
#define antiphon_int32 antiphon_float16
#define antiphon_uint32 antiphon_float16
#define antiphon_int64 antiphon_float16
#define antiphon_uint64 antiphon_float16
#define antiphon_bfloat16 antiphon_float16
#define antiphon_float32 antiphon_float16
#define antiphon_float64 antiphon_float16
#define antiphon_step_int8 antiphon_step_float16
#define antiphon_step_uint8 antiphon_step_float16
#define antiphon_step_int16 antiphon_step_float16
#define antiphon_step_uint16 antiphon_step_float16
#define antiphon_step_int32 antiphon_step_float16
#define antiphon_step_uint32 antiphon_step_float16
#define antiphon_step_int64 antiphon_step_float16
#define antiphon_step_uint64 antiphon_step_float16
#define antiphon_step_bfloat16 antiphon_step_float16
#define antiphon_step_float32 antiphon_step_float16
#define antiphon_step_float64 antiphon_step_float16
#else
KERNEL(int8, int8_t)
KERNEL(uint8, uint8_t)
KERNEL(int16, int16_t)
KERNEL(uint16, uint16_t)
KERNEL(int32, int32_t)
KERNEL(uint32, u32)
KERNEL(int64, i64)
KERNEL(uint64, u64)
KERNEL(float16, half16)
KERNEL(bfloat16, brain16)
KERNEL(float32, float)
KERNEL(float64, double)
#endif

#endif
