/* The kernel on GPUs of NVIDIA and AMD, one or several of this process. Rank r runs on device r modulo the number of
 * devices. One cooperative launch runs all ranks of a device: all their blocks are resident at once, so that none waits
 * for one that cannot begin. device.h says what the exported functions (ad_...) do. bind.h has Table, Size (a table at
 * a size) and BufferCheck; kernel.h Run (the arguments of a rank's call) and Peer (addresses of another rank);
 * cuda_kernels.h the kernels and Launch.
 *
 * Threading: one thread of the host for all ranks of this process; what a device does is ordered by its stream.
 * Ownership: a Device lives as long as the process, with its stream; a Rank owns its peers and queues, a Plan its tables on the
 *   device. Buffers are the caller's.
 */
#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define cuda(NAME) hip##NAME
#define hipHostAlloc hipHostMalloc
#define hipHostAllocMapped hipHostMallocMapped
#define hipHostAllocPortable hipHostMallocPortable
#define hipFreeHost hipHostFree
#define hipDeviceProp hipDeviceProp_t
#else
#include <cuda_runtime.h>
#define cuda(NAME) cuda##NAME
#endif
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "bind.h"
#include "cuda_kernels.h"
#include "device.h"
#include "kernel.h"

/* Whether a call of CUDA or HIP fails. Then `code`, a local variable, is its error, and `failure` the text of it. */
#define FAILS(CALL) ((code = (CALL)) != cuda(Success) && (failure = cuda(GetErrorString)(code)))

namespace {

thread_local const char *failure = ""; /* why the last call of this thread failed (ad_why) */

struct Device;
struct Rank;

/* Events and queues (streams) of calls that the host drives step by step (by_steps.h). */
struct Event {
    cuda(Event_t) event = nullptr;
};

struct Queue {
    Device *device = nullptr;
    cuda(Stream_t) stream = nullptr;
    u32 threads = 0;       /* of a block of its kernels */
    char *stage = nullptr; /* memory of the host for copies (stage_of) */
};

/* A GPU, with what its ranks share. */
struct Device {
    int number = 0;
    std::string about; /* its description (ad_rank_device) */
    cuda(Stream_t) stream = nullptr, copies = nullptr; /* for calls; for the host's copies, which wait for no call */
    std::vector<Rank *> ranks, begun; /* begun: of a call that is not launched yet */
    Run *runs = nullptr;              /* in device memory: per rank of a launch its call */
    u32 *first = nullptr;             /* likewise, the number of its first thread block in the launch */
    /* ad_wait raises the flag; kernels that wait poll it (signals.h) and end the call */
    u32 *stop = nullptr, *stop_on_host = nullptr; /* the stop flag: mapped memory, by its address on the device and here */
    std::map<size_t, std::unique_ptr<Event>> events; /* by number in a call (by_steps.h) */
    std::vector<bool> reaches; /* per device: whether this one may access its memory */
};

struct Rank {
    u32 rank, ranks, blocks, threads;
    Device *device;
    std::vector<Peer> peers;
    Peer *peers_on_device = nullptr;
    Run run{};
    u32 used = 0; /* thread blocks of the current call */
    bool failed = false;
    std::map<u32, std::unique_ptr<Queue>> queues; /* by number: of each stream, then for each peer (by_steps.h) */
    Boxes boxes; /* says which calls must first wait until all ranks have begun, as packets may overwrite others (boxes.h) */
};

/* A plan's table, and the quantities derived from it for the size of the last call, in host and device memory. */
struct Plan {
    std::vector<i64> words;
    Table table;
    Device *device = nullptr; /* which outlives its rank */
    std::string unreached;    /* why its kernels cannot access all memory that they use; empty: they can */
    i64 *on_device = nullptr; /* in device memory: `words` */
    i64 *sized = nullptr;     /* in device memory: `size.cuts` (parts + 1), then `size.shift` (one per region) */
    Size size{-1, 0, {}, {}};
    BufferCheck check;
};

std::vector<Device *> devices; /* by number; NULL: not opened yet */

}  // namespace

#include "cuda_about.h"

namespace {

/* Loads all kernels now. Loading one later might wait until a running kernel ends, which may itself wait for the new one. */
bool load_kernels() {
    cuda(Error_t) code;
    cuda(FuncAttributes) about;
    std::vector<const void *> all = {(const void *)antiphon_signal, (const void *)antiphon_await, (const void *)antiphon_empty,
                                     (const void *)antiphon_next};
    for (const Kernels &kernels : KERNELS) all.push_back(kernels.call), all.push_back(kernels.step);
    for (const void *kernel : all)
        if (kernel && FAILS(cuda(FuncGetAttributes)(&about, kernel))) return false;
    return true;
}

/* Enables access from a device to the memory of all others that it can reach; false: this failed. */
bool reach_peers(Device &device, int count) {
    static thread_local std::string text;
    cuda(Error_t) code;
    device.reaches.assign((size_t)count, true);
    for (int other = 0; other < count; ++other) {
        int reaches = 0;
        if (other == device.number) continue;
        if (FAILS(cuda(DeviceCanAccessPeer)(&reaches, device.number, other))) return false;
        device.reaches[(size_t)other] = reaches;
        if (!reaches || !FAILS(cuda(DeviceEnablePeerAccess)(other, 0))) continue;
        (void)cuda(GetLastError)();
        if (code == cuda(ErrorPeerAccessAlreadyEnabled)) continue; /* by the program */
        text = "peer access from GPU " + std::to_string(device.number) + " to GPU " + std::to_string(other) +
               " cannot be enabled: " + cuda(GetErrorString)(code);
        return failure = text.c_str(), false;
    }
    return true;
}

/* The device of a rank, opened by the first one; NULL: this failed. */
Device *device_of(u32 rank) {
    int count = 0;
    cuda(Error_t) code;
    if (FAILS(cuda(GetDeviceCount)(&count)) || count < 1) return nullptr;
    if (devices.empty()) devices.resize((size_t)count);
    Device *&entry = devices[rank % (u32)count];
    if (entry) return entry;
    Device *device = new Device;
    device->number = (int)(rank % (u32)count);
    if (FAILS(cuda(SetDevice)(device->number)) ||
        FAILS(cuda(StreamCreateWithFlags)(&device->stream, cuda(StreamNonBlocking))) ||
        FAILS(cuda(StreamCreateWithFlags)(&device->copies, cuda(StreamNonBlocking))) ||
        FAILS(cuda(HostAlloc)((void **)&device->stop_on_host, sizeof(u32), cuda(HostAllocMapped))) ||
        FAILS(cuda(HostGetDevicePointer)((void **)&device->stop, device->stop_on_host, 0)) || !describe(*device, count) ||
        !reach_peers(*device, count) || !load_kernels())
        return delete device, nullptr;
    *device->stop_on_host = 0;
    return entry = device;
}

/* The reason why a device cannot make calls of a table: the GPUs whose memory it would access and cannot; empty: none. */
std::string out_of_reach(const Device &device, const Table &table) {
    std::vector<bool> named(devices.size());
    std::string text;
    for (i64 i = 0; i < table.head.arguments; ++i) {
        /* the rank whose memory this argument of a step lies in, or that it signals */
        const size_t other = (size_t)table.arguments[i].rank % devices.size();
        /* not opened by this process: ranks of other processes are on it, and opening their memory fails by itself */
        if (!devices[other]) continue;
        if (named[other] || device.reaches[other]) continue;
        named[other] = true;
        text += (text.empty() ? "GPU " + std::to_string(device.number) + " cannot access the memory of GPU " : ", ") +
                std::to_string(other);
    }
    return text.empty() ? text : text + ", as this plan does; plan on a topology without links between them";
}

/* Copies and waits, on a stream of our own: the default stream would wait for the program's, and cannot be captured. */
int copy_now(const Device &device, void *to, const void *from, size_t bytes) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(device.number)) ||
           FAILS(cuda(MemcpyAsync)(to, from, bytes, cuda(MemcpyDefault), device.copies)) ||
           FAILS(cuda(StreamSynchronize)(device.copies));
}

/* Launches all ranks of a device that have begun, as one kernel. Returns 0, or 1 and `failure`. */
int launch(Device &device) {
    cuda(Error_t) code;
    if (FAILS(cuda(SetDevice)(device.number))) return 1;
    std::vector<Run> runs;
    std::vector<u32> first;
    u32 blocks = 0, threads = 0;
    for (const Rank *rank : device.begun) {
        runs.push_back(rank->run), first.push_back(blocks);
        blocks += rank->used, threads = rank->threads; /* all are of one group, with equal `threads` */
        if (rank->run.type != device.begun[0]->run.type) return failure = "ranks of one device call with several types", 1;
    }
    const int type = device.begun[0]->run.type;
    device.begun.clear();
    if (!blocks) return 0;
    /* from pageable memory, which is read before these calls return */
    if (FAILS(
            cuda(MemcpyAsync)(device.runs, runs.data(), runs.size() * sizeof(Run), cuda(MemcpyHostToDevice), device.stream)) ||
        FAILS(
            cuda(MemcpyAsync)(device.first, first.data(), first.size() * sizeof(u32), cuda(MemcpyHostToDevice), device.stream)))
        return 1;
    Launch launch = {device.runs, device.first, (u32)runs.size()};
    void *arguments[] = {&launch};
    if (FAILS(cuda(LaunchCooperativeKernel)(KERNELS[type].call, dim3(blocks), dim3(threads), arguments, 0, device.stream)))
        return 1;
    return 0;
}

/* Seconds of a monotonic clock. */
double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

}  // namespace

#include "cuda_joints.h"
#include "cuda_queues.h"

const char *ad_why() { return failure; }

void *ad_rank_new(u32 number, u32 ranks, u32 blocks, u32 threads) {
    cuda(Error_t) code;
    Device *device = device_of(number);
    if (!device) return nullptr;
    Rank *rank = new Rank{number, ranks, blocks, threads, device, /* peers */ {}, /* peers_on_device */ nullptr, /* run */ {},
                          /* used */ 0, /* failed */ false, /* queues */ {}, /* boxes */ {}};
    rank->peers.resize(ranks);
    device->ranks.push_back(rank);
    /* room on the device for one rank more */
    (void)cuda(SetDevice)(device->number), (void)cuda(Free)(device->runs), (void)cuda(Free)(device->first);
    device->runs = nullptr, device->first = nullptr;
    if (FAILS(cuda(Malloc)((void **)&rank->peers_on_device, ranks * sizeof(Peer))) ||
        FAILS(cuda(Malloc)((void **)&device->runs, device->ranks.size() * sizeof(Run))) ||
        FAILS(cuda(Malloc)((void **)&device->first, device->ranks.size() * sizeof(u32))))
        return ad_rank_free(rank), nullptr;
    return rank;
}

void ad_rank_free(void *rank_) {
    Rank *rank = (Rank *)rank_;
    std::vector<Rank *> &all = rank->device->ranks;
    all.erase(std::remove(all.begin(), all.end(), rank), all.end());
    (void)cuda(SetDevice)(rank->device->number);
    drop_queues(*rank);
    (void)cuda(Free)(rank->peers_on_device);
    delete rank;
}

const char *ad_rank_device(void *rank) { return ((Rank *)rank)->device->about.c_str(); }

void *ad_memory_new(void *rank, size_t bytes) {
    cuda(Error_t) code;
    void *memory = nullptr;
    const Device &device = *((Rank *)rank)->device;
    const size_t allocated = bytes + 16; /* 16 more: of 0 bytes, Malloc would return NULL */
    if (FAILS(cuda(SetDevice)(device.number)) || FAILS(cuda(Malloc)(&memory, allocated))) return nullptr;
    if (!FAILS(cuda(MemsetAsync)(memory, 0, allocated, device.copies)) && !FAILS(cuda(StreamSynchronize)(device.copies)))
        return memory;
    return (void)cuda(Free)(memory), nullptr;
}

void ad_memory_free(void *rank, void *memory) {
    (void)cuda(SetDevice)(((Rank *)rank)->device->number);
    (void)cuda(Free)(memory);
}

void *ad_memory_shared(void *rank, size_t bytes, void *token) {
    cuda(Error_t) code;
    static_assert(sizeof(cuda(IpcMemHandle_t)) <= TOKEN, "a token holds it");
    void *memory = ad_memory_new(rank, bytes);
    cuda(IpcMemHandle_t) handle;
    if (!memory) return nullptr;
    if (FAILS(cuda(IpcGetMemHandle)(&handle, memory))) return ad_memory_free(rank, memory), nullptr;
    memset(token, 0, TOKEN), memcpy(token, &handle, sizeof handle);
    return memory;
}

void *ad_memory_reached(void *rank, const void *token) {
    cuda(Error_t) code;
    void *memory = nullptr;
    cuda(IpcMemHandle_t) handle;
    memcpy(&handle, token, sizeof handle);
    if (FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
        FAILS(cuda(IpcOpenMemHandle)(&memory, handle, cuda(IpcMemLazyEnablePeerAccess))))
        return nullptr;
    return memory;
}

void ad_memory_left(void *rank, void *memory) {
    (void)cuda(SetDevice)(((Rank *)rank)->device->number);
    (void)cuda(IpcCloseMemHandle)(memory);
}

int ad_fetch(void *rank, void *to, const void *memory, size_t bytes) { return ad_copy(rank, to, memory, bytes); }
int ad_bring(void *rank, void *memory, const void *from, size_t bytes) { return ad_copy(rank, memory, from, bytes); }
int ad_copy(void *rank, void *to, const void *from, size_t bytes) {
    return bytes && copy_now(*((Rank *)rank)->device, to, from, bytes);
}

void ad_rank_signals(void *rank, u32 peer, u64 *signals) { ((Rank *)rank)->peers[peer].signals = signals; }

size_t ad_box_bytes() { return 2 * BOX * sizeof(u64); }
void ad_rank_box(void *rank, u32 peer, u64 *box) { ((Rank *)rank)->peers[peer].box = box; }

void *ad_plan_new(void *rank, const i64 *words, i64 count) {
    cuda(Error_t) code;
    Plan *plan = new Plan;
    plan->words.assign(words, words + count), plan->device = ((Rank *)rank)->device;
    failure = read_table(plan->words.data(), count, &plan->table);
    const size_t bytes = (size_t)count * sizeof(i64);
    const i64 sized = failure ? 0 : plan->table.head.parts + 1 + plan->table.head.regions;
    if (!failure && !FAILS(cuda(SetDevice)(plan->device->number)) && !FAILS(cuda(Malloc)((void **)&plan->on_device, bytes)) &&
        !copy_now(*plan->device, plan->on_device, words, bytes) &&
        !FAILS(cuda(Malloc)((void **)&plan->sized, (size_t)sized * sizeof(i64))))
        return plan->unreached = out_of_reach(*plan->device, plan->table), plan;
    return ad_plan_free(plan), nullptr;
}

void ad_plan_free(void *plan_) {
    Plan *plan = (Plan *)plan_;
    (void)cuda(SetDevice)(plan->device->number);
    (void)cuda(Free)(plan->on_device), (void)cuda(Free)(plan->sized);
    delete plan;
}

i64 ad_plan_scratch(void *plan, i64 unit) { return scratch_of(((Plan *)plan)->table, unit); }
i64 ad_plan_box(void *plan, i64 unit, int type) { return box_of(((Plan *)plan)->table, unit, (i64)WIDTHS[type]); }

namespace {

/* Why kernels cannot make calls of a plan, or NULL. */
const char *unreached(const Plan &plan) { return plan.unreached.empty() ? nullptr : plan.unreached.c_str(); }

/* Sets what the kernel of a rank's next call is passed (rank.run; kernel.h). `unit`: elements per weight 1 of a block. The data
 * are cut into lanes * rounds slices: `lanes` thread blocks per stream, each with one slice in each of the `rounds`. Cuts and
 * shifts, and addresses of buffers, are copied to the device only if they differ from those of the last call. Returns 0, or 1
 * and `failure`. */
int prepare(Rank &rank, Plan &plan, u64 call, i64 unit, int type, int op, u32 lanes, u32 rounds, char *const *buffers,
            const i64 *lengths) {
    cuda(Error_t) code;
    const Table &t = plan.table;
    if ((failure = check_unit(t, rank.rank, rank.ranks, unit))) return 1;
    if (!KERNELS[type].call) return failure = "this library was compiled without kernels for this data type", 1;
    const bool sized = plan.size.unit == unit && plan.size.width == (i64)WIDTHS[type];
    const Size size = sized ? plan.size : size_of(t, unit, (i64)WIDTHS[type]);
    if (t.head.by_packets() && !rank.peers[0].box) return failure = "ranks have no boxes for packets", 1;
    if ((failure = plan.check.check_buffers(t, size, lengths, rank.blocks, lanes, rounds))) return 1;
    if (FAILS(cuda(SetDevice)(rank.device->number))) return 1;
    if (!sized) {
        plan.size = size;
        std::vector<i64> sized_table = size.cuts;
        sized_table.insert(sized_table.end(), size.shift.begin(), size.shift.end());
        if (copy_now(*rank.device, plan.sized, sized_table.data(), sized_table.size() * sizeof(i64))) return 1;
    }
    bool moved = false;
    for (u32 i = 0; i < rank.ranks; ++i)
        for (int k = 0; k < BUFFERS; ++k) {
            char *&buffer = rank.peers[i].buffer[k];
            moved |= buffer != buffers[BUFFERS * i + (u32)k];
            buffer = buffers[BUFFERS * i + (u32)k];
        }
    if (moved && copy_now(*rank.device, rank.peers_on_device, rank.peers.data(), rank.ranks * sizeof(Peer))) return 1;
    const auto address_of = [&](const void *table) { return plan.on_device + ((const i64 *)table - plan.words.data()); };
    rank.run = {(const Step *)address_of(t.steps), (const Argument *)address_of(t.arguments), (const Block *)address_of(t.blocks),
                address_of(t.regions), plan.sized + size.cuts.size(), rank.peers_on_device, rank.device->stop,
                /* line */ {plan.sized, t.head.parts, unit}, call, /* sizes of scratch slots */ t.head.classes, rank.rank,
                rank.ranks, lanes, rounds, type, op, /* packets */ t.head.by_packets(), /* opens (make_ready) */ 1,
                /* counter */ nullptr, /* joint */ {}};
    for (int k = 0; k < BUFFERS; ++k) rank.run.joint[k] = joints.address(buffers + k, rank.ranks);
    return 0;
}

/* Adds a rank to those that its device launches next. Returns 0, or 1 and `failure`. */
int make_ready(Rank &rank, const Head &head, u64 call, i64 unit, u32 lanes) {
    cuda(Error_t) code;
    Device &device = *rank.device;
    /* a call that opens first waits until all ranks have begun it (boxes.h) */
    rank.run.opens = rank.boxes.opens(call, head.by_packets(), head.receives_all && unit > 0);
    u64 *box = rank.peers[rank.rank].box;
    /* once in many calls the half of the box that this one uses is cleared, before flags in it repeat (packets.h) */
    if (box && empties(call) &&
        (FAILS(cuda(SetDevice)(device.number)) ||
         FAILS(cuda(MemsetAsync)(box + half_of(call), 0, BOX * sizeof(u64), device.stream))))
        return 1;
    *device.stop_on_host = 0;
    rank.used = (u32)head.blocks * lanes;
    rank.failed = false;
    return device.begun.push_back(&rank), 0;
}

/* Ends the ranks of a call that have begun, after another one could not begin. */
void abandon_call(void *const *ranks, u32 count) {
    const char *reason = failure; /* ad_wait may replace it */
    for (u32 i = 0; i < count; ++i) ((Rank *)ranks[i])->device->begun.clear();
    std::vector<int> failed(count);
    (void)ad_wait(count, ranks, /* at once; 0 would be no limit */ 1e-9, failed.data());
    for (u32 i = 0; i < count; ++i) ((Rank *)ranks[i])->boxes.force_next_wait();
    failure = reason;
}

}  // namespace

/* Begins a call of these ranks. Returns 0, or the number, from 1, of a rank that cannot; then none is under way. */
int ad_start(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes, u32 rounds,
             char *const *buffers, const i64 *lengths) {
    for (u32 i = 0; i < count; ++i)
        if ((failure = unreached(*(Plan *)plans[i])) ||
            prepare(*(Rank *)ranks[i], *(Plan *)plans[i], call, unit, type, op, lanes, rounds, buffers, lengths))
            return (int)i + 1;
    for (u32 i = 0; i < count; ++i)
        if (make_ready(*(Rank *)ranks[i], ((Plan *)plans[i])->table.head, call, unit, lanes))
            return abandon_call(ranks, count), (int)i + 1;
    for (u32 i = 0; i < count; ++i) {
        Device &device = *((Rank *)ranks[i])->device;
        if (!device.begun.empty() && launch(device)) return abandon_call(ranks, count), (int)i + 1;
    }
    return 0;
}

/* Waits until the calls of these ranks are done; after `seconds` (0: no limit) stops them. failed[i]: whether that of
 * ranks[i] was stopped or had an error. Returns 0 if none has, or 1 and `failure`. */
int ad_wait(u32 count, void *const *ranks, double seconds, int *failed) {
    cuda(Error_t) code;
    const double end = now() + seconds;
    const char *reason = nullptr;
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Device &device = *rank.device;
        if (FAILS(cuda(SetDevice)(device.number))) {
            failed[i] = 1, reason = failure;
            continue;
        }
        while ((code = cuda(StreamQuery)(device.stream)) == cuda(ErrorNotReady))
            if (seconds > 0 && now() > end && !*device.stop_on_host) {
                *device.stop_on_host = 1; /* ends the kernel, which is that of all ranks of the device */
                for (Rank *peer : device.ranks) peer->failed = true;
            }
        if (code != cuda(Success)) reason = cuda(GetErrorString)(code);
        if (rank.failed) rank.boxes.force_next_wait();
        failed[i] = rank.failed || code != cuda(Success);
        if (failed[i] && !reason) reason = "its time was up";
    }
    return reason ? (failure = reason, 1) : 0;
}

#include "by_steps.h"
#include "cuda_graphs.h"

/* library.h needs these three. */
namespace {

int device_number_of(const Rank &rank) { return rank.device->number; }
void *stream_of(Rank &rank) { return rank.device->stream; }

int end_streams(void *const *ranks, u32 count) {
    cuda(Error_t) code;
    for (u32 i = 0; i < count; ++i)
        if (FAILS(cuda(SetDevice)(device_number_of(*(Rank *)ranks[i]))) ||
            FAILS(cuda(StreamSynchronize)(((Rank *)ranks[i])->device->stream)))
            return 1;
    return 0;
}

}  // namespace

#include "library.h"
