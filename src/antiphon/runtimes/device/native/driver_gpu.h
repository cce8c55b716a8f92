/* `Devices` of an exported plan (driver.h) on GPUs. Rank r runs on GPU r % device_count; the ranks of a GPU are one cooperative
 * launch, because they wait for each other. Errors end the program with exit code 3.
 *
 * Constants of the plan, which formats/device writes above this file: RANKS; T, the type of elements; STREAMS, the sequences of
 * statements of a rank, each run by one thread block per lane (lanes share the data of a stream); HELD and WANTED, the rows of
 * data that ranks begin and end with, of CONTRIBUTIONS; INPUTS and OUTPUTS, units in each rank's buffers. If STEPWISE, the host
 * starts a call step by step, in LAUNCHES launches of kernels (KERNELS: which ranks have work) and copies; else LAUNCHES is 1.
 *
 * From driver.h and written.h: Memory, a rank's buffers, signals and box; Call, the arguments of a call; Layout and
 * Size, where data lie in scratch, for any size and for one; run_block, the work of a thread block; fill_or_check, for
 * rows of data; each_copy, the copies of a launch. Boxes (boxes.h) says which calls must first wait until all ranks
 * have begun them.
 *
 * Small messages travel as packets to the box (mailbox) of the receiver, BOX packets for each half (packets.h).
 *
 * Threading: one thread of the host; a stream for each GPU. Ownership: Devices owns all memory and streams.
 */
#pragma once
#if defined(__HIPCC__)
#define cuda(NAME) hip##NAME
#define hipHostAlloc hipHostMalloc
#define hipHostAllocPortable hipHostMallocPortable
#define hipHostAllocMapped hipHostMallocMapped
#define hipFreeHost hipHostFree
#define MULTIPROCESSOR_COUNT hipDeviceAttributeMultiprocessorCount
typedef hipDeviceProp_t Properties;
#else
#include <cuda_runtime.h>
#define cuda(NAME) cuda##NAME
#define MULTIPROCESSOR_COUNT cudaDevAttrMultiProcessorCount
typedef cudaDeviceProp Properties;
#endif

enum { THREADS = 512 };
const char *const DEVICE_NOTE = ""; /* what the report adds to the device's name; driver_threads.h has a remark */

static void checked(cuda(Error_t) code, const char *function) {
    if (code == cuda(Success)) return;
    fprintf(stderr, "%s: %s\n", function, cuda(GetErrorString)(code));
    exit(3);
}
#define DO(NAME, ...) checked(cuda(NAME)(__VA_ARGS__), #NAME) /* a call of CUDA or HIP */

/* A call, or a launch of it, of the ranks device, device + devices, ...: they are those on this device. */
AS_KERNEL void __launch_bounds__(THREADS) antiphon_plan(const Call call, u32 device, u32 devices) {
    const u32 blocks = STREAMS * call.lanes; /* of each rank */
    run_block(call, device + devices * (blockIdx.x / blocks), blockIdx.x % blocks);
}

/* Fills the input of a rank (`fills`), or adds to *wrong the number of wrong elements of its output. */
AS_KERNEL void __launch_bounds__(THREADS) antiphon_rows(i64 rank, T *buffer, i64 unit, bool fills, unsigned long long *wrong) {
    const u64 wrong_here =
        fills ? fill_or_check(HELD, HELD_ROWS, CONTRIBUTIONS, rank, buffer, unit, blockIdx.x, gridDim.x, true)
              : fill_or_check(WANTED, WANTED_ROWS, CONTRIBUTIONS, rank, buffer, unit, blockIdx.x, gridDim.x, false);
    if (wrong_here) atomicAdd(wrong, (unsigned long long)wrong_here);
}

static int device_count = 0;

static void enable_access(int device, int other) {
    int reaches = 0;
    DO(DeviceCanAccessPeer, &reaches, device, other);
    if (!reaches) {
        fprintf(stderr, "GPU %d cannot access the memory of GPU %d: choose others (CUDA_VISIBLE_DEVICES)\n", device, other);
        exit(3);
    }
    DO(DeviceEnablePeerAccess, other, 0);
}

static void begin_devices() {
    DO(GetDeviceCount, &device_count);
    if (device_count > RANKS) device_count = (int)RANKS;
    for (int device = 0; device < device_count; ++device) {
        DO(SetDevice, device);
        for (int other = 0; other < device_count; ++other)
            if (other != device) enable_access(device, other);
    }
}

static i64 max_threads() { return THREADS; }

static const char *device_name() {
    static Properties properties;
    DO(GetDeviceProperties, &properties, 0);
    return properties.name;
}

static i64 ranks_on(int device) { return (RANKS - device + device_count - 1) / device_count; }

/* The most lanes (blocks that share the data of a stream) with which all blocks of a device run at the same time, as a
 * cooperative launch requires. */
static i64 max_lanes(i64 threads) {
    int blocks_each = 0, multiprocessors = 0;
    DO(OccupancyMaxActiveBlocksPerMultiprocessor, &blocks_each, antiphon_plan, (int)threads, 0);
    DO(DeviceGetAttribute, &multiprocessors, MULTIPROCESSOR_COUNT, 0);
    const i64 capacity = (i64)blocks_each * multiprocessors / (ranks_on(0) * STREAMS);
    return capacity < 1 ? 1 : capacity;
}

struct Queue {
    cuda(Stream_t) stream = NULL;
    cuda(Event_t) event = NULL;
};

class Devices {
    const std::vector<Size> &sizes; /* [variant]: the layout at the call's size, and a unit in elements, which all share */
    std::vector<Memory> memory_of;
    std::vector<std::vector<Call>> calls; /* [device][variant]; variant 0 uses signals, 1 packets */
    Boxes mailboxes;
    std::vector<Queue> queues; /* [device], then [rank][peer] for copies */
    std::vector<void *> memory;
    unsigned long long *wrong_count; /* both in host memory that GPUs access */
    u32 *stop;

    void *allocate(size_t bytes, const void *values = NULL) {
        void *block = NULL;
        DO(Malloc, &block, bytes + 16); /* 16 more: of 0 bytes, Malloc would return NULL */
        DO(Memset, block, 0x55, bytes + 16);
        if (values) DO(Memcpy, block, values, bytes, cuda(MemcpyHostToDevice));
        memory.push_back(block);
        return block;
    }

    /* The queue of a rank's device, or the one for the rank's copies to or from a peer. Makes the device the current one. */
    Queue &queue_of(i64 rank, i64 peer = -1) {
        const i64 device = rank % device_count;
        Queue &queue = queues[(size_t)(peer < 0 ? device : device_count + rank * RANKS + peer)];
        DO(SetDevice, (int)device);
        if (queue.stream) return queue;
        DO(StreamCreateWithFlags, &queue.stream, cuda(StreamNonBlocking));
        DO(EventCreateWithFlags, &queue.event, cuda(EventDisableTiming));
        return queue;
    }

    /* A barrier on the devices: all that is enqueued later waits for all that was enqueued before. */
    void enqueue_barrier() {
        Queue &first = queue_of(0);
        for (Queue &queue : queues)
            if (queue.stream) DO(EventRecord, queue.event, queue.stream), DO(StreamWaitEvent, first.stream, queue.event, 0);
        DO(EventRecord, first.event, first.stream);
        for (Queue &queue : queues)
            if (queue.stream) DO(StreamWaitEvent, queue.stream, first.event, 0);
    }

  public:
    /* `sizes` and `templates`: per variant; the calls of each device are copies of the templates with its addresses. */
    Devices(const std::vector<Size> &sizes, const std::vector<Call> &templates)
        : sizes(sizes), queues((size_t)(device_count + RANKS * RANKS)) {
        DO(HostAlloc, (void **)&stop, sizeof *stop, cuda(HostAllocMapped) | cuda(HostAllocPortable));
        *stop = 0;
        DO(HostAlloc, (void **)&wrong_count, sizeof *wrong_count, cuda(HostAllocMapped) | cuda(HostAllocPortable));
        for (i64 rank = 0; rank < RANKS; ++rank) {
            DO(SetDevice, (int)(rank % device_count));
            const auto elements = [&](i64 count) { return (T *)allocate((size_t)count * sizeof(T)); };
            const auto zeroed_words = [&](i64 count) {
                const std::vector<u64> zeros((size_t)count);
                return (u64 *)allocate(zeros.size() * sizeof(u64), zeros.data());
            };
            T *const input = elements(sizes[0].unit * INPUTS[rank]), *const output = elements(sizes[0].unit * OUTPUTS[rank]);
            T *const scratch = elements(max_scratch(sizes, rank));
            u64 *const signals = zeroed_words(max_blocks(templates) * RANKS);
            memory_of.push_back({input, output, scratch, signals, sizes.size() > 1 ? zeroed_words(2 * BOX) : nullptr});
        }
        for (int device = 0; device < device_count; ++device) {
            queue_of(device);
            calls.push_back(templates);
            const Memory *const everywhere = (const Memory *)allocate(memory_of.size() * sizeof(Memory), memory_of.data());
            for (size_t variant = 0; variant < sizes.size(); ++variant) {
                const Size &size = sizes[variant];
                Call &call = calls.back()[variant];
                call.memory_of = everywhere;
                /* line: all blocks end to end; cuts: where atoms begin within a unit of weight (move.h); strides: length of a
                 * scratch slot by class; both in elements */
                call.line.cuts = (const i64 *)allocate(size.cuts.size() * sizeof(i64), size.cuts.data());
                call.strides = (const i64 *)allocate(size.strides.size() * sizeof(i64), size.strides.data());
                DO(HostGetDevicePointer, (void **)&call.stop, stop, 0);
            }
        }
    }
    ~Devices() {
        for (void *entry : memory) (void)cuda(Free)(entry);
        for (Queue &entry : queues)
            if (entry.stream) (void)cuda(StreamDestroy)(entry.stream), (void)cuda(EventDestroy)(entry.event);
        (void)cuda(FreeHost)(stop), (void)cuda(FreeHost)(wrong_count);
    }

    /* Fills the inputs of all ranks (`fills`), or adds to *wrong_count the wrong elements of their outputs. */
    void rows(bool fills) {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            cuda(Stream_t) const stream = queue_of(rank).stream;
            unsigned long long *wrong_on_device;
            DO(HostGetDevicePointer, (void **)&wrong_on_device, wrong_count, 0);
            antiphon_rows<<<64, THREADS, 0, stream>>>(
                rank, fills && !IN_PLACE ? memory_of[(size_t)rank].input : memory_of[(size_t)rank].output, sizes[0].unit, fills,
                wrong_on_device);
            checked(cuda(GetLastError)(), "rows");
            DO(StreamSynchronize, stream);
        }
    }
    void fill() {
        for (i64 rank = 0; rank < RANKS; ++rank)
            DO(MemsetAsync, memory_of[(size_t)rank].output, 0x55, (size_t)(sizes[0].unit * OUTPUTS[rank]) * sizeof(T),
               queue_of(rank).stream);
        rows(true);
    }
    u64 wrong() {
        *wrong_count = 0;
        rows(false);
        return *wrong_count;
    }

    /* Starts call `number` of all ranks. A call is opened if its ranks must first wait until all have begun it, so that nobody
     * writes into a mailbox that is still read. `receives_all`: at the end of a call every rank has received from all others, so
     * the next one need not be opened (boxes.h). Some calls empty half of each mailbox, before its flags repeat (packets.h). */
    void begin(u64 number, i64 threads, u32 variant) {
        const u32 opens = mailboxes.opens(number, variant > 0, sizes[variant].layout->receives_all && sizes[variant].unit > 0);
        for (i64 rank = 0; rank < RANKS && sizes.size() > 1 && empties(number); ++rank)
            DO(MemsetAsync, memory_of[(size_t)rank].box + half_of(number), 0, BOX * sizeof(u64), queue_of(rank).stream);
        for (i64 launch = 0; launch < LAUNCHES; ++launch) {
            for (int device = 0; device < device_count; ++device) begin_kernel(number, threads, variant, opens, launch, device);
            each_copy(memory_of, sizes[0], launch, [&](i64 rank, i64 peer, T *to, T *from, size_t bytes) {
                DO(MemcpyAsync, to, from, bytes, cuda(MemcpyDefault), queue_of(rank, peer).stream);
            });
            if (STEPWISE) enqueue_barrier();
        }
    }

    void begin_kernel(u64 number, i64 threads, u32 variant, u32 opens, i64 launch, int device) {
        bool has_work = false;
        for (i64 rank = device; rank < RANKS && !has_work; rank += device_count) has_work = KERNELS[launch][rank];
        if (!has_work) return;
        Call call = calls[(size_t)device][variant];
        call.number = number, call.opens = opens, call.launch = launch;
        u32 device_number = (u32)device, devices = (u32)device_count;
        void *arguments[] = {&call, &device_number, &devices};
        const dim3 blocks((u32)(ranks_on(device) * STREAMS * call.lanes)), block_threads((u32)threads);
        cuda(Stream_t) const stream = queue_of(device).stream;
        if (STEPWISE) /* no kernel waits for signals, so its blocks need not run at the same time */
            DO(LaunchKernel, (const void *)antiphon_plan, blocks, block_threads, arguments, 0, stream);
        else
            DO(LaunchCooperativeKernel, (const void *)antiphon_plan, blocks, block_threads, arguments, 0, stream);
    }

    /* Waits until all calls are done, and stops them after CALL_TIMEOUT. Returns whether one was stopped. The stream of a device
     * also waits for the copies on others (enqueue_barrier). */
    bool finish() {
        const double end = now() + CALL_TIMEOUT;
        for (int device = 0; device < device_count; ++device) {
            cuda(Error_t) code;
            while ((code = cuda(StreamQuery)(queue_of(device).stream)) == cuda(ErrorNotReady))
                if (now() > end) *(volatile u32 *)stop = 1;
            checked(code, "a call");
        }
        return *stop != 0;
    }
};
