/* Streams, events, memory and folds of CUDA and HIP for the library under NCCL. The arithmetic is that of the engine for GPUs.
 * With AP_STANDIN it is made for a runtime that has CUDA's names and no kernels, by a C++ compiler. */
#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define cuda(NAME) hip##NAME
#elif defined(AP_STANDIN)
#include <cuda_runtime_api.h>
#define cuda(NAME) cuda##NAME
#else
#include <cuda_runtime.h>
#define cuda(NAME) cuda##NAME
#endif

#include "../../device/native/move.h"
#include "nccl_device.h"

namespace {

thread_local const char *why = "";

int good(cuda(Error_t) code) {
    if (code == cuda(Success)) return 0;
    why = cuda(GetErrorString)(code);
    (void)cuda(GetLastError)(); /* it shall not come back at a call of the program */
    return 1;
}

cuda(Stream_t) stream_of(ap_queue queue) { return (cuda(Stream_t))queue; }

struct Fold {
    void *to;
    i64 elements;
    i64 divide; /* by so many instead */
    int count, op;
    const void *from[AP_MOST_OPERANDS];
};

template <typename T> struct Places {
    const Fold &fold;
    ON_MEMBER i64 results() const { return 1; }
    ON_MEMBER i64 operands() const { return fold.count; }
    ON_MEMBER T *result(i64) const { return (T *)fold.to; }
    ON_MEMBER const T *operand(i64 k) const { return (const T *)fold.from[k]; }
};

template <typename T> ON_DEVICE void carry_out(const Fold &fold, Share share) {
    const i64 cuts[2] = {0, fold.elements};
    const Line line{cuts, 1, fold.elements};
    if (fold.divide)
        divide<T>(line, Span{0, 1}, share, (T *)fold.to, fold.divide);
    else
        combine_by<T>(fold.op, line, Span{0, 1}, share, Places<T>{fold});
}

#ifdef AP_STANDIN
template <typename T> void kernel(void *fold) { carry_out<T>(*(const Fold *)fold, Share{0, 1}); }
template <typename T> int launch(const Fold &fold, ap_queue queue) {
    return good(standin_launch(stream_of(queue), kernel<T>, &fold, sizeof fold));
}
#else
enum { THREADS = 512, MOST_BLOCKS = 64, EACH = 1 << 14 }; /* bytes of a block */
template <typename T> __global__ void __launch_bounds__(THREADS) kernel(const Fold fold) {
    carry_out<T>(fold, Share{blockIdx.x, gridDim.x});
}
template <typename T> int launch(const Fold &fold, ap_queue queue) {
    const i64 wanted = fold.elements * (i64)sizeof(T) / EACH + 1;
    kernel<T><<<(unsigned)(wanted < (i64)MOST_BLOCKS ? wanted : (i64)MOST_BLOCKS), THREADS, 0, stream_of(queue)>>>(fold);
    return good(cuda(GetLastError)());
}
#endif

int launch_as(int type, const Fold &fold, ap_queue queue) {
    switch (type) {
    case INT8: return launch<int8_t>(fold, queue);
    case UINT8: return launch<uint8_t>(fold, queue);
    case INT32: return launch<int32_t>(fold, queue);
    case UINT32: return launch<u32>(fold, queue);
    case INT64: return launch<i64>(fold, queue);
    case UINT64: return launch<u64>(fold, queue);
    case FLOAT16: return launch<half16>(fold, queue);
    case FLOAT32: return launch<float>(fold, queue);
    case FLOAT64: return launch<double>(fold, queue);
    case BFLOAT16: return launch<brain16>(fold, queue);
    case FLOAT8_E4M3: return launch<e4m3>(fold, queue);
    case FLOAT8_E5M2: return launch<e5m2>(fold, queue);
    }
    return why = "there is no such type", 1;
}

}  // namespace

#ifdef AP_STANDIN
u32 my_thread() { return 0; }
u32 my_threads() { return 1; }
int meet(int failed) { return failed; }
void rest() {}
#endif

const char *ap_device_why(void) { return why; }
int ap_device_current(int *device) { return good(cuda(GetDevice)(device)); }
int ap_device_take(int device) { return good(cuda(SetDevice)(device)); }

int ap_device_relax(int *mode) {
    cuda(StreamCaptureMode) wanted = *mode < 0 ? cuda(StreamCaptureModeRelaxed) : (cuda(StreamCaptureMode))*mode;
    const int code = good(cuda(ThreadExchangeStreamCaptureMode)(&wanted));
    *mode = (int)wanted;
    return code;
}

int ap_device_memory(void **memory, size_t bytes) { return good(cuda(Malloc)(memory, bytes)); }
void ap_device_free(void *memory) { (void)good(cuda(Free)(memory)); }
int ap_device_copy(void *to, const void *from, size_t bytes, ap_queue queue) {
    return good(cuda(MemcpyAsync)(to, from, bytes, cuda(MemcpyDefault), stream_of(queue)));
}

int ap_queue_new(ap_queue *queue) {
    cuda(Stream_t) made = nullptr;
    const int code = good(cuda(StreamCreateWithFlags)(&made, cuda(StreamNonBlocking)));
    *queue = (ap_queue)made;
    return code;
}
void ap_queue_end(ap_queue queue) { (void)good(cuda(StreamDestroy)(stream_of(queue))); }
int ap_queue_busy(ap_queue queue) {
    const cuda(Error_t) code = cuda(StreamQuery)(stream_of(queue));
    if (code == cuda(ErrorNotReady)) return 1;
    return good(code) ? -1 : 0;
}
int ap_queue_captured(ap_queue queue, unsigned long long *graph) {
    cuda(StreamCaptureStatus) status = cuda(StreamCaptureStatusNone);
    unsigned long long id = 0;
    if (good(cuda(StreamGetCaptureInfo)(stream_of(queue), &status, &id))) return 1;
    *graph = status == cuda(StreamCaptureStatusActive) ? id : 0;
    return 0;
}

int ap_mark_new(ap_mark *mark) {
    cuda(Event_t) made = nullptr;
    const int code = good(cuda(EventCreateWithFlags)(&made, cuda(EventDisableTiming)));
    *mark = (ap_mark)made;
    return code;
}
void ap_mark_end(ap_mark mark) {
    if (mark) (void)good(cuda(EventDestroy)((cuda(Event_t))mark));
}
int ap_mark_set(ap_mark mark, ap_queue queue) { return good(cuda(EventRecord)((cuda(Event_t))mark, stream_of(queue))); }
int ap_mark_await(ap_mark mark, ap_queue queue) {
    return good(cuda(StreamWaitEvent)(stream_of(queue), (cuda(Event_t))mark, 0));
}
int ap_mark_reach(ap_mark mark) { return good(cuda(EventSynchronize)((cuda(Event_t))mark)); }

int ap_device_fold(void *to, const void *const *operands, uint32_t count, uint64_t elements, int type, int op, ap_queue queue) {
    Fold fold{to, (i64)elements, 0, (int)count, op, {}};
    for (uint32_t k = 0; k < count && k < AP_MOST_OPERANDS; ++k) fold.from[k] = operands[k];
    return launch_as(type, fold, queue);
}

int ap_device_divide(void *values, uint64_t elements, uint64_t count, int type, ap_queue queue) {
    return launch_as(type, Fold{values, (i64)elements, (i64)count, 0, 0, {}}, queue);
}
