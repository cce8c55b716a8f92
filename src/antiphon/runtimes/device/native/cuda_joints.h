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

#else
#include <cuda.h>

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

    bool found() {
        return driver("cuMulticastCreate", &create) && driver("cuMulticastAddDevice", &add) && driver("cuMulticastBindMem", &bind) &&
               driver("cuMulticastGetGranularity", &granularity) && driver("cuMemCreate", &memory) &&
               driver("cuMemRelease", &release) && driver("cuMemAddressReserve", &reserve) && driver("cuMemAddressFree", &leave) &&
               driver("cuMemMap", &map) && driver("cuMemUnmap", &unmap) && driver("cuMemSetAccess", &access) &&
               driver("cuDeviceGetAttribute", &attribute);
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

int ad_joint_new(u32 count, void *const *ranks, size_t bytes, void **memory) {
    if (!multicast.found()) return 1;
    std::vector<int> devices;
    for (u32 i = 0; i < count; ++i) {
        const int device = ((Rank *)ranks[i])->device->number;
        int able = 0;
        for (int other : devices)
            if (other == device) return why = "switches combine what different devices have, and two ranks are on one", 1;
        if (multicast.attribute(&able, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device) != CUDA_SUCCESS || !able)
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
