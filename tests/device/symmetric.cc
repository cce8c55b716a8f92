/* In place of NCCL's windows and NVSHMEM's heap, for ranks that are processes: memory of a host that all of them open by name. Its
 * multicast address is one that nobody may touch, as what stands in place of switches on threads wants it. Told by its
 * environment: SYMMETRIC_NAME, SYMMETRIC_RANK, SYMMETRIC_RANKS, SYMMETRIC_SWITCHES; SYMMETRIC_FAR: a rank out of reach;
 * SYMMETRIC_FULL: a rank that has no memory. As with NVSHMEM, memory of its heap goes when all ranks give it back. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace {

struct Part {
    size_t bytes = 0;
    int number = 0;
    std::vector<char *> of; /* of every rank */
    char *every = nullptr;
};

std::map<void *, Part> parts;
int made = 0;

int told(const char *name) {
    const char *found = getenv(name);
    return found ? atoi(found) : -1;
}

std::string name_of(int number, int rank) {
    return "/" + std::string(getenv("SYMMETRIC_NAME")) + "-" + std::to_string(number) + "-" + std::to_string(rank);
}

char *mapped(int number, int rank, size_t bytes, bool own) {
    int file;
    struct stat about;
    while ((file = shm_open(name_of(number, rank).c_str(), own ? O_CREAT | O_RDWR : O_RDWR, 0600)) < 0) usleep(500);
    if (own && ftruncate(file, (off_t)bytes)) abort();
    while (!fstat(file, &about) && (size_t)about.st_size < bytes) usleep(500);
    char *const found = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return found;
}

void *taken(size_t bytes) {
    Part part;
    part.bytes = bytes, part.number = made++;
    char *const own = mapped(part.number, told("SYMMETRIC_RANK"), bytes, true);
    parts[own] = part;
    return own;
}

void join(void *own) {
    Part &part = parts[own];
    for (int rank = 0; rank < told("SYMMETRIC_RANKS"); ++rank)
        part.of.push_back(rank == told("SYMMETRIC_RANK") ? (char *)own : mapped(part.number, rank, part.bytes, false));
    if (told("SYMMETRIC_SWITCHES") == 1)
        part.every = (char *)mmap(nullptr, part.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void drop(void *own) {
    const Part part = parts[own];
    if (part.of.empty()) munmap(own, part.bytes);
    for (char *one : part.of) munmap(one, part.bytes);
    if (part.every) munmap(part.every, part.bytes);
    shm_unlink(name_of(part.number, told("SYMMETRIC_RANK")).c_str());
    parts.erase(own);
}

void *at(void *own, int rank) { return rank == told("SYMMETRIC_FAR") ? nullptr : parts[own].of[(size_t)rank]; }

bool full() { return told("SYMMETRIC_FULL") == told("SYMMETRIC_RANK"); }

}  // namespace

#define SEEN extern "C" __attribute__((visibility("default")))

SEEN int ncclCommCount(void *, int *count) { return *count = told("SYMMETRIC_RANKS"), 0; }
SEEN int ncclMemAlloc(void **found, size_t bytes) {
    if (full()) return 1;
    return *found = taken(bytes), 0;
}
SEEN int ncclMemFree(void *own) {
    if (!parts.count(own)) return 0;
    if (parts[own].of.size()) return 2; /* its window goes first */
    return drop(own), 0;
}
SEEN int ncclCommWindowRegister(void *, void *own, size_t bytes, void **window, int flags) {
    if (flags != 1 || !parts.count(own) || bytes > parts[own].bytes) return 4;
    return join(own), *window = own, 0;
}
SEEN int ncclCommWindowDeregister(void *, void *window) { return drop(window), 0; }
SEEN int ncclGetPeerDevicePointer(void *window, size_t offset, int rank, void **found) {
    return *found = (char *)at(window, rank) + (at(window, rank) ? offset : 0), 0;
}
SEEN int ncclGetLsaMultimemDevicePointer(void *window, size_t offset, void **found) {
    return *found = parts[window].every ? parts[window].every + offset : nullptr, 0;
}
SEEN const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "a fault"; }

SEEN int nvshmemx_init_status() { return told("SYMMETRIC_RANKS") > 0 ? 2 : 0; }
SEEN int nvshmem_n_pes() { return told("SYMMETRIC_RANKS"); }
SEEN void *nvshmem_malloc(size_t bytes) {
    void *const own = taken(bytes);
    return join(own), full() ? nullptr : own;
}
SEEN void nvshmem_free(void *own) {
    const int number = parts[own].number;
    drop(own);
    for (int rank = 0, file; rank < told("SYMMETRIC_RANKS"); ++rank)
        for (; (file = shm_open(name_of(number, rank).c_str(), O_RDWR, 0600)) >= 0; usleep(500)) close(file);
}
SEEN void *nvshmem_ptr(const void *own, int rank) { return at((void *)own, rank); }
SEEN void *nvshmemx_mc_ptr(int, const void *own) { return parts[(void *)own].every; }

/* How many were ever taken, and are not given back. */
SEEN int ever() { return made; }
SEEN int left() { return (int)parts.size(); }
