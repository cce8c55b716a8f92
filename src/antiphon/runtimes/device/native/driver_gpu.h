/* All ranks go round the GPUs of this machine; those of one GPU are one cooperative launch. */
#pragma once
#if defined(__HIPCC__)
#define cuda(NAME) hip##NAME
#define hipHostAlloc hipHostMalloc
#define hipHostAllocPortable hipHostMallocPortable
#define hipHostAllocMapped hipHostMallocMapped
#define hipFreeHost hipHostFree
#define DEVICE_UNITS hipDeviceAttributeMultiprocessorCount
typedef hipDeviceProp_t Properties;
#else
#include <cuda_runtime.h>
#define cuda(NAME) cuda##NAME
#define DEVICE_UNITS cudaDevAttrMultiProcessorCount
typedef cudaDeviceProp Properties;
#endif

enum { THREADS = 512 };
const char *const DEVICE_NOTE = "";

static void checked(cuda(Error_t) code, const char *what) {
    if (code == cuda(Success)) return;
    fprintf(stderr, "%s: %s\n", what, cuda(GetErrorString)(code));
    exit(3);
}
#define DO(NAME, ...) checked(cuda(NAME)(__VA_ARGS__), #NAME)

AS_KERNEL void __launch_bounds__(THREADS) antiphon_plan(const Call call, u32 device, u32 devices) {
    const u32 blocks = STREAMS * call.lanes;
    run_block(call, device + devices * (blockIdx.x / blocks), blockIdx.x % blocks);
}

AS_KERNEL void __launch_bounds__(THREADS) antiphon_rows(i64 rank, T *buffer, i64 unit, bool fills, unsigned long long *wrong) {
    const u64 found = fills ? each_row(HELD, HELD_ROWS, NAMES, rank, buffer, unit, blockIdx.x, gridDim.x, true)
                            : each_row(WANTED, WANTED_ROWS, NAMES, rank, buffer, unit, blockIdx.x, gridDim.x, false);
    if (found) atomicAdd(wrong, (unsigned long long)found);
}

static int device_count = 0;

static void begin_devices() {
    DO(GetDeviceCount, &device_count);
    if (device_count > RANKS) device_count = (int)RANKS;
    for (int device = 0; device < device_count; ++device) {
        DO(SetDevice, device);
        for (int other = 0; other < device_count; ++other)
            if (other != device) DO(DeviceEnablePeerAccess, other, 0);
    }
}

static i64 most_threads() { return THREADS; }

static const char *device_name() {
    static Properties properties;
    DO(GetDeviceProperties, &properties, 0);
    return properties.name;
}

static i64 ranks_on(int device) { return (RANKS - device + device_count - 1) / device_count; }

/* All blocks of a device must be there at once. */
static i64 most_lanes(i64 threads) {
    int each = 0, units = 0;
    DO(OccupancyMaxActiveBlocksPerMultiprocessor, &each, antiphon_plan, (int)threads, 0);
    DO(DeviceGetAttribute, &units, DEVICE_UNITS, 0);
    const i64 room = (i64)each * units / (ranks_on(0) * STREAMS);
    return room < 1 ? 1 : room;
}

class Devices {
    const std::vector<Size> &sizes;
    std::vector<Memory> of;
    std::vector<std::vector<Call>> calls; /* of each device, each way */
    Boxes boxes;
    std::vector<cuda(Stream_t)> streams;
    std::vector<void *> memory;
    unsigned long long *found;
    u32 *stop;

    void *room(size_t bytes, const void *values = NULL) {
        void *made = NULL;
        DO(Malloc, &made, bytes + 16);
        DO(Memset, made, 0x55, bytes + 16);
        if (values) DO(Memcpy, made, values, bytes, cuda(MemcpyHostToDevice));
        memory.push_back(made);
        return made;
    }

  public:
    Devices(const std::vector<Size> &sizes, const std::vector<Call> &like) : sizes(sizes) {
        DO(HostAlloc, (void **)&stop, sizeof(u32) + sizeof *found, cuda(HostAllocMapped) | cuda(HostAllocPortable));
        *stop = 0;
        DO(HostAlloc, (void **)&found, sizeof *found, cuda(HostAllocMapped) | cuda(HostAllocPortable));
        for (i64 rank = 0; rank < RANKS; ++rank) {
            DO(SetDevice, (int)(rank % device_count));
            const auto elements = [&](i64 count) { return (T *)room((size_t)count * sizeof(T)); };
            const auto none = [&](i64 count) {
                const std::vector<u64> zeros((size_t)count);
                return (u64 *)room(zeros.size() * sizeof(u64), zeros.data());
            };
            T *const input = elements(sizes[0].unit * INPUTS[rank]), *const output = elements(sizes[0].unit * OUTPUTS[rank]);
            T *const scratch = elements(most_scratch(sizes, rank));
            u64 *const signals = none(most_blocks(like) * RANKS);
            of.push_back({input, output, scratch, signals, sizes.size() > 1 ? none(2 * BOX) : nullptr});
        }
        for (int device = 0; device < device_count; ++device) {
            DO(SetDevice, device);
            cuda(Stream_t) stream;
            DO(StreamCreateWithFlags, &stream, cuda(StreamNonBlocking));
            streams.push_back(stream);
            calls.push_back(like);
            const Memory *const everywhere = (const Memory *)room(of.size() * sizeof(Memory), of.data());
            for (size_t way = 0; way < sizes.size(); ++way) {
                const Size &size = sizes[way];
                Call &call = calls.back()[way];
                call.of = everywhere;
                call.line.cuts = (const i64 *)room(size.cuts.size() * sizeof(i64), size.cuts.data());
                call.strides = (const i64 *)room(size.strides.size() * sizeof(i64), size.strides.data());
                DO(HostGetDevicePointer, (void **)&call.stop, stop, 0);
            }
        }
    }
    ~Devices() {
        for (void *one : memory) (void)cuda(Free)(one);
        for (cuda(Stream_t) one : streams) (void)cuda(StreamDestroy)(one);
        (void)cuda(FreeHost)(stop), (void)cuda(FreeHost)(found);
    }

    void rows(bool fills) {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            const int device = (int)(rank % device_count);
            DO(SetDevice, device);
            unsigned long long *there;
            DO(HostGetDevicePointer, (void **)&there, found, 0);
            antiphon_rows<<<64, THREADS, 0, streams[(size_t)device]>>>(
                rank, fills && !IN_PLACE ? of[(size_t)rank].input : of[(size_t)rank].output, sizes[0].unit, fills, there);
            checked(cuda(GetLastError)(), "rows");
            DO(StreamSynchronize, streams[(size_t)device]);
        }
    }
    void fill() {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            DO(SetDevice, (int)(rank % device_count));
            DO(MemsetAsync, of[(size_t)rank].output, 0x55, (size_t)(sizes[0].unit * OUTPUTS[rank]) * sizeof(T),
               streams[(size_t)(rank % device_count)]);
        }
        rows(true);
    }
    u64 wrong() {
        *found = 0;
        rows(false);
        return *found;
    }

    void begin(u64 number, i64 threads, u32 way) {
        const u32 opens = boxes.opens(number, way > 0, sizes[way].layout->hears && sizes[way].unit > 0);
        for (i64 rank = 0; rank < RANKS && sizes.size() > 1 && empties(number); ++rank) {
            DO(SetDevice, (int)(rank % device_count));
            DO(MemsetAsync, of[(size_t)rank].box + half_of(number), 0, BOX * sizeof(u64), streams[(size_t)(rank % device_count)]);
        }
        for (int device = 0; device < device_count; ++device) {
            Call call = calls[(size_t)device][way];
            call.number = number, call.opens = opens;
            u32 first = (u32)device, step = (u32)device_count;
            void *arguments[] = {&call, &first, &step};
            DO(SetDevice, device);
            DO(LaunchCooperativeKernel, (const void *)antiphon_plan, dim3((u32)(ranks_on(device) * STREAMS * call.lanes)),
               dim3((u32)threads), arguments, 0, streams[(size_t)device]);
        }
    }

    /* Until all calls are done, or time is up. Whether one had to be stopped. */
    bool finish() {
        const double end = now() + PATIENCE;
        for (cuda(Stream_t) stream : streams) {
            cuda(Error_t) code;
            while ((code = cuda(StreamQuery)(stream)) == cuda(ErrorNotReady))
                if (now() > end) *(volatile u32 *)stop = 1;
            checked(code, "a call");
        }
        return *stop != 0;
    }
};
