/* The kernel entry points for CUDA and HIP, one instance per data type: a whole call (antiphon_call), one step of a call
 * (antiphon_step), and the small kernels before and after them. Part of cuda.cu; the algorithm is in kernel.h.
 *
 * A *call* is one execution of a program (Run, kernel.h) on every rank; `sync_block` is a barrier of the threads of a
 * block, `load_stop_flag` a relaxed load (world.h).
 *
 * Threading: a grid holds the blocks of all ranks of one device; a block finds its rank by `Launch::first`.
 * Ownership: arguments are the host's and outlive the launch.
 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include "kernel.h"

/* One launch for all ranks of a device: arrays with the call of each rank, and the number of its first block. */
struct Launch {
    const Run *runs;
    const u32 *first;
    u32 ranks;
};

/* A block copies its call and the addresses of all ranks' buffers (peers) to shared memory, as every thread reads them often.
 * Blocks have at most 512 threads (__launch_bounds__): on NVIDIA's GPUs the compiler may then use 128 registers for each. */
template <typename T> __global__ void __launch_bounds__(512) antiphon_call(const Launch launch) {
    enum { MAX_PEERS = 64 }; /* with more ranks, the addresses stay in global memory */
    __shared__ Run run;
    __shared__ Peer peers[MAX_PEERS];
    u32 rank = 0;
    while (rank + 1 < launch.ranks && blockIdx.x >= launch.first[rank + 1]) ++rank;
    const Run &own_run = launch.runs[rank];
    const bool is_shared = own_run.ranks <= MAX_PEERS;
    if (!threadIdx.x) run = own_run;
    for (u32 i = threadIdx.x; is_shared && i < own_run.ranks; i += blockDim.x) peers[i] = own_run.peers[i];
    (void)sync_block(0);
    if (!threadIdx.x && is_shared) run.peers = peers;
    (void)sync_block(0);
    run_block<T>(run, blockIdx.x - launch.first[rank]);
}

/* One step of a call that the host makes step by step (by_steps.h): the blocks of the grid are its lanes. */
template <typename T> __global__ void __launch_bounds__(512) antiphon_step(const Run run, const Step *step) {
    if (!load_stop_flag(run.stop)) carry_out<T>(run, *step, Share{blockIdx.x, gridDim.x});
}

/* Calls executed step by step signal ranks of other processes, and wait for their signals, by these kernels. */
AS_KERNEL void antiphon_signal(u64 *at, u64 value) { store(at, value); }
AS_KERNEL void antiphon_await(const u64 *at, u64 value, const u32 *stop) { (void)has_come(at, value, stop); }

/* In a captured graph the device counts calls itself. Before a call, antiphon_empty clears its half of the box of packets if a flag
 * would repeat soon (packets.h); after it, antiphon_next increments the counter of calls. */
AS_KERNEL void antiphon_empty(u64 *box, const u64 *counter) {
    if (!empties(*counter)) return;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < BOX; i += gridDim.x * blockDim.x)
        store_relaxed(box + half_of(*counter) + i, 0);
}
AS_KERNEL void antiphon_next(u64 *counter) { *counter = (*counter + 1) % ((u64)1 << (64 - CALL_BITS)); }

/* Bit i: compile kernels for data type i. Fewer types compile faster. */
#ifndef TYPES_COMPILED
#define TYPES_COMPILED ~0u
#endif

struct Kernels {
    const void *call, *step;
};
/* The kernels of a data type with this number. */
template <typename T, int NUMBER> Kernels kernels_of() {
    if constexpr (TYPES_COMPILED >> NUMBER & 1)
        return {(const void *)antiphon_call<T>, (const void *)antiphon_step<T>};
    else
        return {nullptr, nullptr};
}
/* In the order of data types (numbers.h); the two without kernels are float8. */
const Kernels KERNELS[TYPES] = {
    kernels_of<int8_t, INT8>(), kernels_of<uint8_t, UINT8>(), kernels_of<int32_t, INT32>(), kernels_of<u32, UINT32>(),
    kernels_of<i64, INT64>(), kernels_of<u64, UINT64>(), kernels_of<half16, FLOAT16>(), kernels_of<float, FLOAT32>(),
    kernels_of<double, FLOAT64>(), kernels_of<brain16, BFLOAT16>(), {nullptr, nullptr}, {nullptr, nullptr},
    kernels_of<int16_t, INT16>(), kernels_of<uint16_t, UINT16>()};

#endif
