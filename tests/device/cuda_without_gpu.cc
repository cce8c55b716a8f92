/* A CUDA runtime for tests of cuda.cu on a machine without a GPU: memory is the host's, copies are made at once, kernels are
 * counted and not run. What a real GPU would refuse, or would make wait, is noted in `faults`.
 *
 * $GPUS: how many there are. $UNREACHABLE: no GPU can access the memory of another. $PEER_ERROR: the code with which peer
 * access fails. $RECOMMENDED: the granularity of multicast memory that the driver recommends, beside a least one of 2 MiB. */
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <set>
#include <string>
#include <utility>

static int current = 0, launches = 0;
static std::string faults, sizes;
static std::map<void *, int> memory, streams; /* the GPU of each */
static std::set<std::pair<int, const void *>> loaded;

#define SEEN extern "C" __attribute__((visibility("default")))
SEEN const char *seen_faults() { return faults.c_str(); }
SEEN const char *seen_multicast() { return sizes.c_str(); }
SEEN int seen_launches() { return launches; }
SEEN int seen_memory() { return (int)memory.size(); }

static int number_of(const char *variable) { return getenv(variable) ? atoi(getenv(variable)) : 0; }
static cudaError_t fault(const char *text) { return faults += std::string(text) + "\n", cudaErrorInvalidValue; }
static cudaError_t check_copy(cudaStream_t stream) {
    return stream ? cudaSuccess : fault("a copy on the default stream, which waits for the program's");
}
static cudaError_t check_launch(const void *kernel, cudaStream_t stream) {
    if (streams.at(stream) != current) return fault("a launch on a stream of another GPU");
    if (!loaded.count({current, kernel})) return fault("a launch of a kernel that is not loaded");
    return ++launches, cudaSuccess;
}
template <typename T> static cudaError_t allocate(T *place, size_t bytes) {
    return *place = (T)calloc(1, bytes + 64), memory[(void *)*place] = current, cudaSuccess;
}
static cudaError_t release(void *block) {
    if (block && !memory.count(block)) return fault("memory is freed twice");
    if (block && memory[block] != current) return fault("memory is freed while another GPU is current");
    return memory.erase(block), free(block), cudaSuccess;
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *count) { return *count = number_of("GPUS"), cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return current = device, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    return memset(properties, 0, sizeof *properties), strcpy(properties->name, "No GPU"), cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int, int) { return strcpy(text, "0000:00:00.0"), cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int, int) { return *value = 1, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = !getenv("UNREACHABLE"), cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return (cudaError_t)number_of("PEER_ERROR"); }
const char *cudaGetErrorString(cudaError_t code) { return code == cudaErrorTooManyPeers ? "too many peers" : "an error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void **place, size_t bytes) { return allocate(place, bytes); }
cudaError_t cudaFree(void *block) { return release(block); }
cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned) { return *place = calloc(1, bytes), cudaSuccess; }
cudaError_t cudaFreeHost(void *block) { return free(block), cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void **place, void *block, unsigned) { return *place = block, cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return memcpy(to, from, bytes), check_copy(stream);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return memset(to, value, bytes), check_copy(stream);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *) { return cudaErrorNotSupported; }
cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }
cudaError_t cudaIpcCloseMemHandle(void *) { return cudaErrorNotSupported; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    return *stream = (cudaStream_t)malloc(1), streams[*stream] = current, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return streams.erase(stream), free(stream), cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
    return streams.at(stream) == current ? cudaSuccess : fault("an event on a stream of another GPU");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) { return *graph = (cudaGraph_t)1, cudaSuccess; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *instance, cudaGraph_t, unsigned long long) {
    return *instance = (cudaGraphExec_t)1, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *kernel) {
    return loaded.insert({current, kernel}), cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3, dim3, void **, size_t, cudaStream_t stream) {
    return check_launch(kernel, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3, dim3, void **, size_t, cudaStream_t stream) {
    return check_launch(kernel, stream);
}

/* What compiled kernels are registered with when the library is loaded. */
void **__cudaRegisterFatBinary(void *) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction() {}
char __cudaInitModule(void **) { return 0; }
cudaError_t __cudaPopCallConfiguration() { return cudaErrorNotSupported; }
cudaError_t __cudaGetKernel() { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel() { return cudaErrorNotSupported; }
}

/* The driver's functions, which are looked up by name. */
namespace driver {

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *about) {
    return *handle = 1, sizes += std::to_string(about->size >> 20) + " MiB\n", CUDA_SUCCESS;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return CUDA_SUCCESS; }
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
                            unsigned long long) {
    return CUDA_SUCCESS;
}
CUresult cuMulticastGetGranularity(size_t *step, const CUmulticastObjectProp *, CUmulticastGranularity_flags which) {
    return *step = which == CU_MULTICAST_GRANULARITY_MINIMUM ? 1 << 20 : (size_t)number_of("RECOMMENDED") << 20, CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t *step, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    return *step = 2 << 20, CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t, const CUmemAllocationProp *, unsigned long long) {
    return *handle = 2, CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t step, CUdeviceptr, unsigned long long) {
    return *at = (CUdeviceptr)aligned_alloc(step, bytes), CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t) { return free((void *)at), CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute, CUdevice) { return *value = 1, CUDA_SUCCESS; }
CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

#define NAMED(NAME) {#NAME, (void *)NAME}
const std::map<std::string, void *> FUNCTIONS = {
    NAMED(cuMulticastCreate), NAMED(cuMulticastAddDevice), NAMED(cuMulticastBindMem), NAMED(cuMulticastGetGranularity),
    NAMED(cuMemGetAllocationGranularity), NAMED(cuMemCreate), NAMED(cuMemRelease), NAMED(cuMemAddressReserve),
    NAMED(cuMemAddressFree), NAMED(cuMemMap), NAMED(cuMemUnmap), NAMED(cuMemSetAccess), NAMED(cuDeviceGetAttribute),
    {"cuMemExportToShareableHandle", (void *)unsupported}, {"cuMemImportFromShareableHandle", (void *)unsupported}};

}  // namespace driver

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                                        cudaDriverEntryPointQueryResult *state) {
    return *function = driver::FUNCTIONS.at(name), *state = cudaDriverEntryPointSuccess, cudaSuccess;
}
