/* Text that describes a GPU: model, compute capability, driver, PCI address, and which GPUs it reaches by peer access.
 * Part of cuda.cu.
 *
 * Threading: once per device, while it is opened. Ownership: fills `Device::about`; allocates nothing else.
 */
#pragma once

namespace {

/* Writes `about`, of GPU 1 such as "NVIDIA H100 9.0, 132 processors, driver 12040, 0000:1B:00.0, 0:0 2:0". The pairs at
 * the end: each other GPU and CUDA's performance rank of the path to it (0 is the best; -1: not known). Returns false
 * on failure. */
bool describe(Device &device, int count) {
    cuda(Error_t) code;
    cuda(DeviceProp) properties;
    char bus[64] = "", text[512];
    int driver = 0;
    if (FAILS(cuda(GetDeviceProperties)(&properties, device.number)) ||
        FAILS(cuda(DeviceGetPCIBusId)(bus, sizeof bus, device.number)) || FAILS(cuda(DriverGetVersion)(&driver)))
        return false;
    snprintf(text, sizeof text, "%s %d.%d, %d processors, driver %d, %s", properties.name, properties.major, properties.minor,
             properties.multiProcessorCount, driver, bus);
    device.about = text;
    for (int other = 0; other < count; ++other) {
        int speed_rank = 0;
        if (other == device.number) continue;
        if (FAILS(cuda(DeviceGetP2PAttribute)(&speed_rank, cuda(DevP2PAttrPerformanceRank), device.number, other))) {
            (void)cuda(GetLastError)();
            speed_rank = -1;
        }
        device.about += (other ? " " : ", ") + std::to_string(other) + ":" + std::to_string(speed_rank);
    }
    return true;
}

}  // namespace
