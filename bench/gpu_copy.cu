/* How fast the GPU kernel copies: as it does now (`after`: neighbouring threads move neighbouring words of 16 bytes) and as it
 * did before (`before`: each thread moves 64 bytes in a row), beside the device's own copy.
 *
 *     gpu_copy [NBYTES ...]
 *
 * Prints a line of JSON for each size, for memory of one GPU and, where it reaches a second one, for memory there. Compiled as
 * plain C++ a block is a loop. Exit code: 1 where a copy differs from its source.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vector>

#include "move.h"

#if defined(__HIPCC__)
#define cuda(NAME) hip##NAME
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define cuda(NAME) cuda##NAME
#endif

enum { CALLS = 20 };

/* As it was before: 64 bytes in a row by each thread. */
ON_DEVICE void copy_before(float *to, const float *from, i64 count, u32 block, u32 blocks) {
    enum { ROW = 4, TILE = ROW * 4 };
    const i64 first = slice_begin(count, block, blocks, TILE), end = slice_begin(count, block + 1, blocks, TILE);
    const i64 tiles = (end - first) / TILE;
    for (i64 tile = my_thread(); tile < tiles; tile += my_threads()) {
        Sixteen row[ROW];
        for (int i = 0; i < ROW; ++i) row[i] = ((const Sixteen *)(from + first + tile * TILE))[i];
        for (int i = 0; i < ROW; ++i) ((Sixteen *)(to + first + tile * TILE))[i] = row[i];
    }
    for (i64 i = first + tiles * TILE + my_thread(); i < end; i += my_threads()) to[i] = from[i];
}

ON_DEVICE void copy_after(float *to, const float *from, i64 count, u32 block, u32 blocks) {
    const i64 cuts[] = {0, count};
    copy_span<float>(Line{cuts, 1, count}, Span{0, 1}, Share{block, blocks}, to, from);
}

#ifdef cuda
static void require(cuda(Error_t) code, const char *what) {
    if (code == cuda(Success)) return;
    fprintf(stderr, "gpu_copy: %s: %s\n", what, cuda(GetErrorString)(code));
    exit(3);
}
#define DO(NAME, ...) require(cuda(NAME)(__VA_ARGS__), #NAME)

template <int AFTER> __global__ void __launch_bounds__(512) copy_kernel(float *to, const float *from, i64 count) {
    if (AFTER)
        copy_after(to, from, count, blockIdx.x, gridDim.x);
    else
        copy_before(to, from, count, blockIdx.x, gridDim.x);
}

static u32 most_blocks() {
    int processors = 0;
    DO(DeviceGetAttribute, &processors, cuda(DevAttrMultiProcessorCount), 0);
    return (u32)processors;
}

static bool reaches_second() {
    int gpus = 0, reaches = 0;
    DO(GetDeviceCount, &gpus);
    if (gpus > 1) DO(DeviceCanAccessPeer, &reaches, 0, 1);
    if (reaches) DO(DeviceEnablePeerAccess, 1, 0);
    return reaches;
}

static float *new_memory(int gpu, i64 count) {
    float *memory = nullptr;
    DO(SetDevice, gpu);
    DO(Malloc, (void **)&memory, (size_t)count * sizeof(float));
    DO(SetDevice, 0);
    return memory;
}

static void copy_now(float *to, const float *from, i64 count) {
    DO(Memcpy, to, from, (size_t)count * sizeof(float), cuda(MemcpyDefault));
}
static void free_memory(float *memory) { DO(Free, memory); }

static void enqueue(int method, u32 blocks, float *to, const float *from, i64 count) {
    if (method == 0)
        copy_kernel<0><<<blocks, 512>>>(to, from, count);
    else if (method == 1)
        copy_kernel<1><<<blocks, 512>>>(to, from, count);
    else
        DO(MemcpyAsync, to, from, (size_t)count * sizeof(float), cuda(MemcpyDefault), 0);
    require(cuda(GetLastError)(), "a copy");
}

static double seconds_of(int method, u32 blocks, float *to, const float *from, i64 count) {
    cuda(Event_t) began, ended;
    float milliseconds = 0;
    DO(EventCreate, &began);
    DO(EventCreate, &ended);
    enqueue(method, blocks, to, from, count);
    DO(EventRecord, began, 0);
    for (int call = 0; call < CALLS; ++call) enqueue(method, blocks, to, from, count);
    DO(EventRecord, ended, 0);
    DO(EventSynchronize, ended);
    DO(EventElapsedTime, &milliseconds, began, ended);
    return milliseconds * 1e-3 / CALLS;
}
#else
static thread_local u32 number_of_thread = 0;
enum { THREADS = 4 };
u32 my_thread() { return number_of_thread; }
u32 my_threads() { return THREADS; }

static u32 most_blocks() { return 4; }
static bool reaches_second() { return true; }
static float *new_memory(int, i64 count) { return (float *)malloc((size_t)count * sizeof(float)); }
static void copy_now(float *to, const float *from, i64 count) { memcpy(to, from, (size_t)count * sizeof(float)); }
static void free_memory(float *memory) { free(memory); }

static double seconds_of(int method, u32 blocks, float *to, const float *from, i64 count) {
    timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (u32 block = 0; block < blocks && method < 2; ++block)
        for (number_of_thread = 0; number_of_thread < THREADS; ++number_of_thread)
            method ? copy_after(to, from, count, block, blocks) : copy_before(to, from, count, block, blocks);
    if (method == 2) copy_now(to, from, count);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec);
}
#endif

/* Whether all copies of a size are right. */
static bool measure(i64 nbytes, int gpu) {
    const char *const names[] = {"before", "after", "device"};
    const i64 count = nbytes / (i64)sizeof(float);
    std::vector<float> source((size_t)count), copied((size_t)count);
    for (i64 i = 0; i < count; ++i) source[(size_t)i] = (float)(i % 8191);
    float *const from = new_memory(0, count), *const to = new_memory(gpu, count);
    copy_now(from, source.data(), count);
    bool right = true;
    for (u32 blocks = most_blocks(); blocks >= most_blocks() / 4 && blocks; blocks /= 2) {
        printf("{\"nbytes\": %lld, \"to\": \"%s GPU\", \"blocks\": %u", (long long)nbytes, gpu ? "another" : "the same", blocks);
        for (int method = 0; method < 3; ++method) {
            copied.assign((size_t)count, -1);
            copy_now(to, copied.data(), count);
            const double seconds = seconds_of(method, blocks, to, from, count);
            copy_now(copied.data(), to, count);
            const bool same = copied == source;
            printf(", \"%s_gb_per_second\": %.2f", names[method], same ? (double)nbytes / seconds * 1e-9 : 0.0);
            right = right && same;
        }
        printf(", \"right\": %s}\n", right ? "true" : "false");
        fflush(stdout);
    }
    return free_memory(from), free_memory(to), right;
}

int main(int count, char **arguments) {
    bool right = true;
    std::vector<i64> sizes;
    for (int i = 1; i < count; ++i) sizes.push_back(atoll(arguments[i]));
    if (sizes.empty()) sizes = {1 << 20, 1 << 24, 1 << 28};
    const int gpus = reaches_second() ? 2 : 1;
    for (int gpu = 0; gpu < gpus; ++gpu)
        for (i64 nbytes : sizes) right = measure(nbytes, gpu) && right;
    return !right;
}
