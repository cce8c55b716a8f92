/* Memory with a multicast address: the driver's own functions, which are asked for by name, so that nothing is linked with it.
 * Part of cuda.cu. HIP has none. */
#pragma once
#include "joints.h"

namespace {
Joints joints;
}

#ifdef __HIPCC__

int ad_joint_new(u32, void *const *, size_t, void **) { return why = "these devices have no switches that combine", 1; }
void ad_joint_free(void *, void *) {}
int ad_joint_make(void *, u32, size_t, void *) { return why = "these devices have no switches that combine", 1; }
int ad_joint_enter(void *, const void *) { return 1; }
void *ad_joint_own(void *, void *) { return nullptr; }
void *ad_joint_reached(void *, const void *) { return nullptr; }
int ad_joint_all(u32, void *const *) { return 1; }
void ad_joint_dropped() {}

#else
#include <cuda.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

template <typename Function> bool driver(const char *name, Function *found) {
    cudaDriverEntryPointQueryResult state;
    cudaError_t code;
    if (FAILS(cudaGetDriverEntryPointByVersion(name, (void **)found, 12010, cudaEnableDefault, &state))) return false;
    return state == cudaDriverEntryPointSuccess || (why = "this driver knows no multicast", false);
}

/* Each as the driver declares it. */
struct Multicast {
    decltype(&cuMulticastCreate) create;
    decltype(&cuMulticastAddDevice) add;
    decltype(&cuMulticastBindMem) bind;
    decltype(&cuMulticastGetGranularity) granularity;
    decltype(&cuMemCreate) memory;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) leave;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) access;
    decltype(&cuDeviceGetAttribute) attribute;
    decltype(&cuMemExportToShareableHandle) told;
    decltype(&cuMemImportFromShareableHandle) heard;

    bool found() {
        return driver("cuMulticastCreate", &create) && driver("cuMulticastAddDevice", &add) && driver("cuMulticastBindMem", &bind) &&
               driver("cuMulticastGetGranularity", &granularity) && driver("cuMemCreate", &memory) &&
               driver("cuMemRelease", &release) && driver("cuMemAddressReserve", &reserve) && driver("cuMemAddressFree", &leave) &&
               driver("cuMemMap", &map) && driver("cuMemUnmap", &unmap) && driver("cuMemSetAccess", &access) &&
               driver("cuDeviceGetAttribute", &attribute) && driver("cuMemExportToShareableHandle", &told) &&
               driver("cuMemImportFromShareableHandle", &heard);
    }
};

Multicast multicast;

/* Maps a handle where all these devices may touch it. */
char *mapped_for(CUmemGenericAllocationHandle handle, size_t bytes, size_t step, const std::vector<int> &devices) {
    CUdeviceptr at = 0;
    std::vector<CUmemAccessDesc> who(devices.size());
    for (size_t i = 0; i < who.size(); ++i) {
        who[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE, who[i].location.id = devices[i];
        who[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    if (multicast.reserve(&at, bytes, step, 0, 0) != CUDA_SUCCESS) return nullptr;
    if (multicast.map(at, bytes, 0, handle, 0) == CUDA_SUCCESS) {
        if (multicast.access(at, bytes, who.data(), who.size()) == CUDA_SUCCESS) return (char *)at;
        (void)multicast.unmap(at, bytes);
    }
    (void)multicast.leave(at, bytes);
    return nullptr;
}

void unmapped(char *at, size_t bytes) {
    if (!at) return;
    (void)multicast.unmap((CUdeviceptr)at, bytes), (void)multicast.leave((CUdeviceptr)at, bytes);
}

}  // namespace

namespace {

bool has_switches(int device) {
    int able = 0;
    return multicast.attribute(&able, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device) == CUDA_SUCCESS && able;
}

/* What another process tells: a file of its own, which this one has as its own while it reads it. */
struct Told {
    pid_t process;
    int file;
    size_t bytes, step;
};
static_assert(sizeof(Told) <= TOKEN, "a token holds it");

int file_of(const Told &told) {
    if (told.process == getpid()) return dup(told.file);
    const int other = (int)syscall(434, told.process, 0); /* pidfd_open, which old headers have no name for */
    if (other < 0) return -1;
    const int found = (int)syscall(438, other, told.file, 0); /* pidfd_getfd */
    return close(other), found;
}

bool imported(const Told &told, CUmemGenericAllocationHandle *handle) {
    const int file = file_of(told);
    if (file < 0) return why = "memory of another process cannot be reached", false;
    const CUresult code = multicast.heard(handle, (void *)(uintptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return close(file), code == CUDA_SUCCESS || (why = "memory of another process cannot be had", false);
}

/* What ranks of this process have entered, until all of it is one. */
struct Entered {
    CUmemGenericAllocationHandle all = 0;
    size_t bytes = 0, step = 0;
    std::vector<int> devices, files;
    std::vector<char *> memory;

    void drop(bool kept) {
        if (all) (void)multicast.release(all);
        for (int one : files) close(one);
        for (char *one : memory)
            if (!kept) unmapped(one, bytes);
        *this = Entered();
    }
};
Entered entered;

bool tell(CUmemGenericAllocationHandle handle, void *token) {
    Told made = {getpid(), -1, entered.bytes, entered.step};
    if (multicast.told(&made.file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
        return why = "memory cannot be told to other processes", false;
    entered.files.push_back(made.file);
    return memset(token, 0, TOKEN), memcpy(token, &made, sizeof made), true;
}

}  // namespace

int ad_joint_make(void *rank, u32 ranks, size_t bytes, void *token) {
    if (!multicast.found()) return 1;
    if (!has_switches(((Rank *)rank)->device->number)) return why = "these devices have no switches that combine", 1;
    CUmulticastObjectProp about = {};
    about.numDevices = ranks, about.size = bytes, about.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (multicast.granularity(&entered.step, &about, CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || !entered.step)
        return why = "memory with a multicast address cannot be had", 1;
    about.size = entered.bytes = (bytes + entered.step) / entered.step * entered.step;
    if (multicast.create(&entered.all, &about) != CUDA_SUCCESS) return why = "memory with a multicast address cannot be had", 1;
    return !tell(entered.all, token);
}

int ad_joint_enter(void *rank, const void *token) {
    cuda(Error_t) code;
    const int device = ((Rank *)rank)->device->number;
    Told other;
    memcpy(&other, token, sizeof other);
    if (!multicast.found() || FAILS(cudaSetDevice(device))) return 1;
    if (!has_switches(device)) return why = "these devices have no switches that combine", 1;
    if (!entered.all && !imported(other, &entered.all)) return 1;
    entered.bytes = other.bytes, entered.step = other.step;
    if (multicast.add(entered.all, device) != CUDA_SUCCESS) return why = "switches combine what different devices have", 1;
    return entered.devices.push_back(device), 0;
}

void *ad_joint_own(void *rank, void *token) {
    CUmemAllocationProp of = {};
    of.type = CU_MEM_ALLOCATION_TYPE_PINNED, of.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE, of.location.id = ((Rank *)rank)->device->number;
    CUmemGenericAllocationHandle own = 0;
    const bool good = multicast.memory(&own, entered.bytes, &of, 0) == CUDA_SUCCESS &&
                      multicast.bind(entered.all, 0, own, 0, entered.bytes, 0) == CUDA_SUCCESS && tell(own, token);
    char *const found = good ? mapped_for(own, entered.bytes, entered.step, entered.devices) : nullptr;
    if (own) (void)multicast.release(own); /* what is mapped stays until it is unmapped */
    if (!found) return why = "memory with a multicast address cannot be had", nullptr;
    return entered.memory.push_back(found), found;
}

void *ad_joint_reached(void *, const void *token) {
    Told other;
    memcpy(&other, token, sizeof other);
    CUmemGenericAllocationHandle handle = 0;
    if (!imported(other, &handle)) return nullptr;
    char *const found = mapped_for(handle, entered.bytes, entered.step, entered.devices);
    (void)multicast.release(handle);
    if (!found) return why = "memory of another process cannot be had", nullptr;
    return entered.memory.push_back(found), found;
}

int ad_joint_all(u32 ranks, void *const *memory) {
    Joint made = {{}, entered.bytes, mapped_for(entered.all, entered.bytes, entered.step, entered.devices)};
    if (!made.all) return why = "memory with a multicast address cannot be had", 1;
    for (u32 i = 0; i < ranks; ++i) made.of.push_back((char *)memory[i]);
    joints.add(made);
    return entered.drop(true), 0;
}

void ad_joint_dropped() { entered.drop(false); }

int ad_joint_new(u32 count, void *const *ranks, size_t bytes, void **memory) {
    if (!multicast.found()) return 1;
    std::vector<int> devices;
    for (u32 i = 0; i < count; ++i) {
        const int device = ((Rank *)ranks[i])->device->number;
        for (int other : devices)
            if (other == device) return why = "switches combine what different devices have, and two ranks are on one", 1;
        if (!has_switches(device))
            return why = "these devices have no switches that combine", 1;
        devices.push_back(device);
    }
    CUmulticastObjectProp about = {};
    size_t step = 0;
    about.numDevices = count, about.size = bytes;
    if (multicast.granularity(&step, &about, CU_MULTICAST_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS || !step)
        return why = "memory with a multicast address cannot be had", 1;
    about.size = (bytes + step) / step * step;
    Joint made = {{}, about.size, nullptr};
    CUmemGenericAllocationHandle all = 0;
    bool good = multicast.create(&all, &about) == CUDA_SUCCESS;
    for (u32 i = 0; i < count && good; ++i) good = multicast.add(all, devices[i]) == CUDA_SUCCESS;
    for (u32 i = 0; i < count && good; ++i) {
        CUmemAllocationProp of = {};
        of.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        of.location.type = CU_MEM_LOCATION_TYPE_DEVICE, of.location.id = devices[i];
        CUmemGenericAllocationHandle own = 0;
        good = multicast.memory(&own, about.size, &of, 0) == CUDA_SUCCESS &&
               multicast.bind(all, 0, own, 0, about.size, 0) == CUDA_SUCCESS;
        if (good) made.of.push_back(mapped_for(own, about.size, step, devices)), good = made.of.back() != nullptr;
        if (own) (void)multicast.release(own); /* what is mapped stays until it is unmapped */
    }
    if (good) made.all = mapped_for(all, about.size, step, devices), good = made.all != nullptr;
    if (all) (void)multicast.release(all);
    if (!good) {
        for (char *one : made.of) unmapped(one, about.size);
        return why = "memory with a multicast address cannot be had", 1;
    }
    for (u32 i = 0; i < count; ++i) memory[i] = made.of[i];
    joints.add(made);
    return 0;
}

void ad_joint_free(void *, void *memory) {
    const Joint found = joints.taken(memory);
    unmapped(found.all, found.bytes);
    for (char *one : found.of) unmapped(one, found.bytes);
}
#endif
