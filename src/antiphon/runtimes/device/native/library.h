/* The collectives of NCCL or RCCL, to be measured beside ours. The library is opened by name at run time, so that nothing is
 * linked with it. Types and operators have NCCL's numbers (numbers.h). The file that includes this one defines before:
 *
 *     const char *failure                            the message of the last error in this thread
 *     int device_number_of(const Rank &)             the number of a rank's device
 *     void *stream_of(Rank &)                        the stream for its calls
 *     int end_streams(void *const *ranks, u32 count) waits until the streams of these ranks are idle; 0: no error
 *
 * Threading: one thread calls everything for all ranks. Ownership: a Library owns its communicators; the shared object stays
 * open.
 */
#pragma once
#include <dlfcn.h>

#include "device.h"

namespace {

/* The functions have the names and parameters of nccl.h; streams are void *, and enums are int. */
struct Library {
    typedef void *Comm;
    void *file = nullptr; /* the shared object, which stays open */
    int (*init)(Comm *, int, const int *);
    int (*destroy)(Comm);
    int (*start)();
    int (*end)();
    const char *(*error)(int);
    int (*allreduce)(const void *, void *, size_t, int, int, Comm, void *);
    int (*reduce)(const void *, void *, size_t, int, int, int, Comm, void *);
    int (*broadcast)(const void *, void *, size_t, int, int, Comm, void *);
    int (*allgather)(const void *, void *, size_t, int, Comm, void *);
    int (*reducescatter)(const void *, void *, size_t, int, int, Comm, void *);
    int (*send)(const void *, size_t, int, int, Comm, void *);
    int (*receive)(void *, size_t, int, int, Comm, void *);
    std::vector<void *> ranks; /* Rank of the file that includes this one */
    std::vector<Comm> comms;   /* by rank */

    template <typename Function> bool look_up(const char *name, Function *function) {
        *(void **)function = dlsym(file, name);
        return *function != nullptr;
    }
    bool open(const char *path) {
        file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        return file && look_up("ncclCommInitAll", &init) && look_up("ncclCommDestroy", &destroy) &&
               look_up("ncclGroupStart", &start) && look_up("ncclGroupEnd", &end) && look_up("ncclGetErrorString", &error) &&
               look_up("ncclAllReduce", &allreduce) && look_up("ncclReduce", &reduce) && look_up("ncclBroadcast", &broadcast) &&
               look_up("ncclAllGather", &allgather) && look_up("ncclReduceScatter", &reducescatter) &&
               look_up("ncclSend", &send) && look_up("ncclRecv", &receive);
    }
    ~Library() {
        for (Comm comm : comms)
            if (comm) (void)destroy(comm);
    }

    /* Starts the call of rank `me` on its stream; 0, or the library's error code. `from`, `to`: its buffers; `count`: elements of
     * a block. Kinds as in a program file. */
    int start_call(int kind, i64 me, const char *from, char *to, size_t count, int type, int op, int root) {
        enum { BROADCAST, REDUCE, SCATTER, GATHER, ALLGATHER, REDUCESCATTER, ALLREDUCE, ALLTOALL };
        const Comm comm = comms[(size_t)me];
        void *const stream = stream_of(*(Rank *)ranks[(size_t)me]);
        const size_t block = count * WIDTHS[type];
        const int rank_count = (int)ranks.size();
        int code = 0;
        switch (kind) {
        case BROADCAST: return broadcast(from, to, count, type, root, comm, stream);
        case REDUCE: return reduce(from, to, count, type, op, root, comm, stream);
        case ALLGATHER: return allgather(from, to, count, type, comm, stream);
        case REDUCESCATTER: return reducescatter(from, to, count, type, op, comm, stream);
        case ALLREDUCE: return allreduce(from, to, count, type, op, comm, stream);
        }
        /* the others are sends and receives; both libraries run those between Start and End as one group */
        for (int peer = 0; peer < rank_count && !code; ++peer) {
            const bool sends = kind == ALLTOALL || (kind == SCATTER && me == root) || (kind == GATHER && peer == root);
            const bool receives = kind == ALLTOALL || (kind == SCATTER && peer == root) || (kind == GATHER && me == root);
            if (sends) code = send(from + (kind == GATHER ? 0 : (size_t)peer * block), count, type, peer, comm, stream);
            if (receives && !code)
                code = receive(to + (kind == SCATTER ? 0 : (size_t)peer * block), count, type, peer, comm, stream);
        }
        return code;
    }
};

}  // namespace

void *ad_library_new(u32 count, void *const *ranks, const char *path) {
    Library *library = new Library;
    std::vector<int> devices;
    for (u32 i = 0; i < count; ++i) devices.push_back(device_number_of(*(const Rank *)ranks[i])), library->ranks.push_back(ranks[i]);
    failure = "the library is missing, or lacks a function that is needed";
    if (library->open(path)) {
        library->comms.resize(count);
        const int code = library->init(library->comms.data(), (int)count, devices.data());
        if (!code) return library;
        failure = library->error(code), library->comms.clear();
    }
    delete library;
    return nullptr;
}

int ad_library_go(void *library, int kind, i64 count, int type, int op, int root, char *const *from, char *const *to) {
    Library &lib = *(Library *)library;
    int code = lib.start();
    for (size_t i = 0; i < lib.ranks.size() && !code; ++i)
        code = lib.start_call(kind, (i64)i, from[i], to[i], (size_t)count, type, op, root);
    const int ended = lib.end();
    if (code || ended) return failure = lib.error(code ? code : ended), 1;
    return end_streams(lib.ranks.data(), (u32)lib.ranks.size());
}

void ad_library_free(void *library) { delete (Library *)library; }
