/* Memory with a multicast address, by the driver's own functions, which are looked up by name, so that nothing is linked with the
 * driver. Part of cuda.cu. HIP has none.
 *
 * Within a process ad_joint_new makes it. Across processes (stages in device.h) one process makes it for one of its
 * ranks (ad_joint_make). Each process enters it with each of its ranks (ad_joint_enter), allocates the memory of each
 * (ad_joint_own), maps that of every other rank (ad_joint_reached), then the multicast address (ad_joint_all).
 *
 * Threading: the thread of the ranks. Ownership: `entered` holds handles and files until all processes have mapped them
 *   (ad_joint_all) or given up (ad_joint_dropped); then `joints` holds the mappings until ad_joint_free.
 */
#pragma once
#include "joints.h"

namespace {
Joints joints;
}

#ifdef __HIPCC__

int ad_joint_new(u32, void *const *, size_t, void **) { return failure = "these devices have no switches that combine", 1; }
void ad_joint_free(void *, void *) {}
int ad_joint_make(void *, u32, size_t, void *) { return failure = "these devices have no switches that combine", 1; }
int ad_joint_enter(void *, const void *) { return 1; }
void *ad_joint_own(void *, void *) { return nullptr; }
void *ad_joint_reached(void *, const void *) { return nullptr; }
int ad_joint_all(u32, void *const *) { return 1; }
void ad_joint_dropped() {}

#else
#include <cuda.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace {

/* Looks up a function of the driver, as CUDA 12.1 declares it (the first version with all of them); false: this failed. */
template <typename Function> bool look_up_driver(const char *name, Function *function) {
    cudaDriverEntryPointQueryResult state;
    cudaError_t code; /* assigned by FAILS */
    if (FAILS(cudaGetDriverEntryPointByVersion(name, (void **)function, 12010, cudaEnableDefault, &state))) return false;
    return state == cudaDriverEntryPointSuccess || (failure = "this driver knows no multicast", false);
}

/* Functions of the driver, each as it declares them. */
struct Multicast {
    decltype(&cuMulticastCreate) create;
    decltype(&cuMulticastAddDevice) add;
    decltype(&cuMulticastBindMem) bind;
    decltype(&cuMulticastGetGranularity) granularity;
    decltype(&cuMemGetAllocationGranularity) memory_granularity;
    decltype(&cuMemCreate) memory;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) leave;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) access;
    decltype(&cuDeviceGetAttribute) attribute;
    decltype(&cuMemExportToShareableHandle) export_handle;
    decltype(&cuMemImportFromShareableHandle) import_handle;

    bool load() {
        return look_up_driver("cuMulticastCreate", &create) && look_up_driver("cuMulticastAddDevice", &add) &&
               look_up_driver("cuMulticastBindMem", &bind) &&
               look_up_driver("cuMulticastGetGranularity", &granularity) &&
               look_up_driver("cuMemGetAllocationGranularity", &memory_granularity) &&
               look_up_driver("cuMemCreate", &memory) && look_up_driver("cuMemRelease", &release) &&
               look_up_driver("cuMemAddressReserve", &reserve) && look_up_driver("cuMemAddressFree", &leave) &&
               look_up_driver("cuMemMap", &map) && look_up_driver("cuMemUnmap", &unmap) &&
               look_up_driver("cuMemSetAccess", &access) && look_up_driver("cuDeviceGetAttribute", &attribute) &&
               look_up_driver("cuMemExportToShareableHandle", &export_handle) &&
               look_up_driver("cuMemImportFromShareableHandle", &import_handle);
    }
};

Multicast multicast;

/* What the driver is asked for: memory of a device. `handles`: the type of its handles for other processes, or none. */
CUmemAllocationProp memory_of(int device, CUmemAllocationHandleType handles) {
    CUmemAllocationProp memory = {};
    memory.type = CU_MEM_ALLOCATION_TYPE_PINNED, memory.requestedHandleTypes = handles;
    memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE, memory.location.id = device;
    return memory;
}

/* The step in bytes, a power of 2: sizes of a device's memory and of its multicast address must be multiples of it. 0:
 * this failed. The driver may recommend hundreds of MB, which are taken where they waste at most an eighth, else the
 * least step. */
size_t step_of(CUmulticastObjectProp about, const CUmemAllocationProp &memory) {
    size_t least = 0, recommended = 0, of_memory = 0;
    if (multicast.granularity(&least, &about, CU_MULTICAST_GRANULARITY_MINIMUM) != CUDA_SUCCESS || !least) return 0;
    about.size = whole_steps(about.size, least);
    if (multicast.memory_granularity(&of_memory, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) return 0;
    least = std::max(least, of_memory);
    if (multicast.granularity(&recommended, &about, CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS) return least;
    const size_t padding = recommended ? whole_steps(about.size, recommended) - about.size : about.size;
    return recommended > least && padding <= about.size / 8 ? recommended : least;
}

/* Maps a handle at an address where all these devices may access it; NULL: this failed. */
char *map_memory(CUmemGenericAllocationHandle handle, size_t bytes, size_t step, const std::vector<int> &devices) {
    CUdeviceptr at = 0;
    std::vector<CUmemAccessDesc> access_for(devices.size());
    for (size_t i = 0; i < access_for.size(); ++i) {
        access_for[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE, access_for[i].location.id = devices[i];
        access_for[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    if (multicast.reserve(&at, bytes, step, 0, 0) != CUDA_SUCCESS) return nullptr;
    if (multicast.map(at, bytes, 0, handle, 0) == CUDA_SUCCESS) {
        if (multicast.access(at, bytes, access_for.data(), access_for.size()) == CUDA_SUCCESS) return (char *)at;
        (void)multicast.unmap(at, bytes);
    }
    (void)multicast.leave(at, bytes);
    return nullptr;
}

/* Undoes map_memory. NULL is ignored. */
void unmap_memory(char *at, size_t bytes) {
    if (!at) return;
    (void)multicast.unmap((CUdeviceptr)at, bytes), (void)multicast.leave((CUdeviceptr)at, bytes);
}

/* Whether the driver has multicast addresses for this device. */
bool has_switches(int device) {
    int able = 0;
    return multicast.attribute(&able, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device) == CUDA_SUCCESS && able;
}

/* Memory of another process: a file descriptor of its own, which this process duplicates while it maps it. */
struct Shared {
    pid_t process;
    int file;
    size_t bytes, step;
};
static_assert(sizeof(Shared) <= TOKEN, "a token holds it");

/* A duplicate of its file descriptor in this process, to be closed; -1: this failed. */
int file_of(const Shared &shared) {
    if (shared.process == getpid()) return dup(shared.file);
    const int process = (int)syscall(434, shared.process, 0); /* pidfd_open, which old headers have no name for */
    if (process < 0) return -1;
    const int file = (int)syscall(438, process, shared.file, 0); /* pidfd_getfd */
    return close(process), file;
}

/* Gets a handle to the memory, to be released; false: this failed. */
bool import_memory(const Shared &shared, CUmemGenericAllocationHandle *handle) {
    const int file = file_of(shared);
    if (file < 0) return failure = "memory of another process cannot be reached", false;
    const CUresult code = multicast.import_handle(handle, (void *)(uintptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return close(file), code == CUDA_SUCCESS || (failure = "memory of another process cannot be had", false);
}

/* The joint memory that ranks of this process are making, from ad_joint_make or ad_joint_enter to ad_joint_all or
 * ad_joint_dropped. */
struct Entered {
    CUmemGenericAllocationHandle all = 0; /* of the memory under the multicast address, that of all ranks */
    size_t bytes = 0, step = 0;           /* of each rank; see step_of */
    std::vector<int> devices, files;      /* of ranks of this process; exported file descriptors */
    std::vector<char *> memory;           /* of ranks of all processes, as mapped here */

    /* Forgets it. `keeps`: the mappings of memory stay. */
    void drop(bool keeps) {
        if (all) (void)multicast.release(all);
        for (int file : files) close(file);
        for (char *address : memory)
            if (!keeps) unmap_memory(address, bytes);
        *this = Entered();
    }
};
Entered entered;

/* Writes a token, by which other processes import the memory; false: this failed. */
bool write_token(CUmemGenericAllocationHandle handle, void *token) {
    Shared own = {getpid(), -1, entered.bytes, entered.step};
    if (multicast.export_handle(&own.file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
        return failure = "memory cannot be told to other processes", false;
    entered.files.push_back(own.file);
    return memset(token, 0, TOKEN), memcpy(token, &own, sizeof own), true;
}

}  // namespace

int ad_joint_make(void *rank, u32 ranks, size_t bytes, void *token) {
    if (!multicast.load()) return 1;
    if (!has_switches(((Rank *)rank)->device->number)) return failure = "these devices have no switches that combine", 1;
    CUmulticastObjectProp about = {};
    about.numDevices = ranks, about.size = bytes, about.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    entered.step = step_of(about, memory_of(((Rank *)rank)->device->number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (!entered.step) return failure = "memory with a multicast address cannot be had", 1;
    about.size = entered.bytes = whole_steps(bytes, entered.step);
    if (multicast.create(&entered.all, &about) != CUDA_SUCCESS)
        return failure = "memory with a multicast address cannot be had", 1;
    return !write_token(entered.all, token);
}

int ad_joint_enter(void *rank, const void *token) {
    cuda(Error_t) code; /* cudaError_t, assigned by FAILS */
    const int device = ((Rank *)rank)->device->number;
    Shared other;
    memcpy(&other, token, sizeof other);
    if (!multicast.load() || FAILS(cudaSetDevice(device))) return 1;
    if (!has_switches(device)) return failure = "these devices have no switches that combine", 1;
    if (!entered.all && !import_memory(other, &entered.all)) return 1; /* once per process */
    entered.bytes = other.bytes, entered.step = other.step;
    /* a failure is taken to mean that another rank is on this device, as ad_joint_new says in full */
    if (multicast.add(entered.all, device) != CUDA_SUCCESS) return failure = "switches combine what different devices have", 1;
    return entered.devices.push_back(device), 0;
}

void *ad_joint_own(void *rank, void *token) {
    const int device = ((Rank *)rank)->device->number;
    const CUmemAllocationProp kind = memory_of(device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle own = 0;
    const bool ok = multicast.memory(&own, entered.bytes, &kind, 0) == CUDA_SUCCESS &&
                      multicast.bind(entered.all, 0, own, 0, entered.bytes, 0) == CUDA_SUCCESS && write_token(own, token);
    char *const mapped = ok ? map_memory(own, entered.bytes, entered.step, entered.devices) : nullptr;
    if (own) (void)multicast.release(own); /* what is mapped stays until it is unmapped */
    if (!mapped) return failure = "memory with a multicast address cannot be had", nullptr;
    return entered.memory.push_back(mapped), mapped;
}

void *ad_joint_reached(void *, const void *token) {
    Shared other;
    memcpy(&other, token, sizeof other);
    CUmemGenericAllocationHandle handle = 0;
    if (!import_memory(other, &handle)) return nullptr;
    char *const mapped = map_memory(handle, entered.bytes, entered.step, entered.devices);
    (void)multicast.release(handle);
    if (!mapped) return failure = "memory of another process cannot be had", nullptr;
    return entered.memory.push_back(mapped), mapped;
}

int ad_joint_all(u32 ranks, void *const *memory) {
    Joint joint = {/* address_of */ {}, entered.bytes, map_memory(entered.all, entered.bytes, entered.step, entered.devices)};
    if (!joint.multicast) return failure = "memory with a multicast address cannot be had", 1;
    for (u32 i = 0; i < ranks; ++i) joint.address_of.push_back((char *)memory[i]);
    joints.add(joint);
    return entered.drop(/* keeps */ true), 0; /* the mappings are those of `joints` now */
}

void ad_joint_dropped() { entered.drop(/* keeps */ false); }

int ad_joint_new(u32 count, void *const *ranks, size_t bytes, void **memory) {
    if (!multicast.load()) return 1;
    std::vector<int> devices;
    for (u32 i = 0; i < count; ++i) {
        const int device = ((Rank *)ranks[i])->device->number;
        for (int other : devices)
            if (other == device) return failure = "switches combine what different devices have, and two ranks are on one", 1;
        if (!has_switches(device))
            return failure = "these devices have no switches that combine", 1;
        devices.push_back(device);
    }
    CUmulticastObjectProp about = {};
    about.numDevices = count, about.size = bytes;
    const size_t step = step_of(about, memory_of(devices[0], CU_MEM_HANDLE_TYPE_NONE));
    if (!step) return failure = "memory with a multicast address cannot be had", 1;
    about.size = whole_steps(bytes, step);
    Joint joint = {/* address_of */ {}, about.size, /* multicast */ nullptr};
    CUmemGenericAllocationHandle all = 0;
    bool ok = multicast.create(&all, &about) == CUDA_SUCCESS;
    for (u32 i = 0; i < count && ok; ++i) ok = multicast.add(all, devices[i]) == CUDA_SUCCESS;
    for (u32 i = 0; i < count && ok; ++i) {
        const CUmemAllocationProp kind = memory_of(devices[i], CU_MEM_HANDLE_TYPE_NONE);
        CUmemGenericAllocationHandle own = 0;
        ok = multicast.memory(&own, about.size, &kind, 0) == CUDA_SUCCESS &&
               multicast.bind(all, 0, own, 0, about.size, 0) == CUDA_SUCCESS;
        if (ok) joint.address_of.push_back(map_memory(own, about.size, step, devices));
        ok = ok && joint.address_of.back() != nullptr;
        if (own) (void)multicast.release(own); /* what is mapped stays until it is unmapped */
    }
    if (ok) joint.multicast = map_memory(all, about.size, step, devices), ok = joint.multicast != nullptr;
    if (all) (void)multicast.release(all);
    if (!ok) {
        for (char *address : joint.address_of) unmap_memory(address, about.size);
        return failure = "memory with a multicast address cannot be had", 1;
    }
    for (u32 i = 0; i < count; ++i) memory[i] = joint.address_of[i];
    joints.add(joint);
    return 0;
}

void ad_joint_free(void *, void *memory) {
    const Joint mapped = joints.take(memory);
    unmap_memory(mapped.multicast, mapped.bytes);
    for (char *address : mapped.address_of) unmap_memory(address, mapped.bytes);
}
#endif
