/* The differences between CUDA, HIP and processor threads: qualifiers, loads and stores of signals, the barrier of a block.
 * The rest of the kernel is one source for all three.
 *
 * Qualifiers, inlined: ON_DEVICE (functions), ON_MEMBER (of structures; both are the same, the name says where it
 *   stands); never inlined: OUT_OF_LINE (functions; static with threads), ON_ITS_OWN (of structures).
 *   ON_BOTH: called by the host, too. AS_KERNEL: launched by the host (CUDA and HIP only). ON_TABLE: a constant table
 *   in device memory.
 * Threading: threads of a block synchronize by `sync_block`. Blocks and ranks synchronize only by `store` and `load` of a
 *   signal (release and acquire): a thread that loads the stored value sees everything written before the store.
 * Ownership: no memory.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#ifdef __HIPCC__
#include <hip/hip_runtime.h>
#endif

typedef int64_t i64;
typedef uint64_t u64;
typedef uint32_t u32;

#if defined(__CUDACC__) || defined(__HIPCC__)

#define ON_DEVICE __device__ __forceinline__
#define ON_MEMBER __device__ __forceinline__
#define ON_ITS_OWN __device__ __noinline__
#define ON_BOTH __host__ __device__ __forceinline__
#define OUT_OF_LINE __device__ __noinline__
#define AS_KERNEL extern "C" __global__
#define ON_TABLE static __device__ const

/* The stop flag lies in host memory, where loads are slow: it is polled once in this many polls of a signal or packet. */
enum { STOP_INTERVAL = 10000 };

ON_DEVICE u32 my_thread() { return threadIdx.x; }
ON_DEVICE u32 my_threads() { return blockDim.x; }
/* The barrier of a block; returns whether `failed` is nonzero in any thread. Writes before it are visible after it. */
ON_DEVICE int sync_block(int failed) { return __syncthreads_or(failed); }

#ifdef __CUDACC__
ON_DEVICE u64 load(const u64 *at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
/* One thread signals for the whole block: `sync_block` has made the others' writes visible to it, and the fence makes them
 * visible to other devices before the signal. */
ON_DEVICE void store(u64 *at, u64 value) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
/* For packets, which carry data and flag in one word, so no other memory has to be ordered. */
ON_DEVICE u64 load_relaxed(const u64 *at) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}
ON_DEVICE void store_relaxed(u64 *at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
ON_DEVICE u32 load_stop_flag(const u32 *at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
ON_DEVICE void back_off() {
#if __CUDA_ARCH__ >= 700
    __nanosleep(20); /* far less than a message takes */
#endif
}
#else
ON_DEVICE u64 load(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
ON_DEVICE void store(u64 *at, u64 value) {
    __threadfence_system();
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
ON_DEVICE u64 load_relaxed(const u64 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
ON_DEVICE void store_relaxed(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
ON_DEVICE u32 load_stop_flag(const u32 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
ON_DEVICE void back_off() { __builtin_amdgcn_s_sleep(1); }
#endif

#else /* threads */

#define ON_DEVICE inline
#define ON_MEMBER inline
#define ON_BOTH inline
#define ON_ITS_OWN __attribute__((noinline))
#define OUT_OF_LINE static __attribute__((noinline))
#define ON_TABLE static const

enum { STOP_INTERVAL = 1 }; /* loading the flag costs as little as loading a signal */

/* Defined in meeting.h; `back_off` yields between two polls. */
u32 my_thread();
u32 my_threads();
int sync_block(int failed);
void back_off();
ON_DEVICE u64 load(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
ON_DEVICE void store(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
ON_DEVICE u64 load_relaxed(const u64 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
ON_DEVICE void store_relaxed(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
ON_DEVICE u32 load_stop_flag(const u32 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

#endif
