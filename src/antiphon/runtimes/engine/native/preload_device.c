/* Buffers in the memory of a GPU are MPI's: plans read and write memory of the host.
 *
 * One process may hand such a buffer where another hands one of the host, and yet all must decide alike. So where there can
 * be any (the driver's library is in a process when MPI begins, or its device is on a host), every call that a plan would
 * serve begins with a question to all. Nothing is linked with CUDA: what is there is looked up in what is loaded. */
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

/* cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE and CU_MEMORYTYPE_DEVICE of CUDA's driver. */
typedef int (*attribute_of)(void *data, int attribute, unsigned long long pointer);
enum { MEMORY_TYPE = 2, OF_DEVICE = 2 };

typedef struct {
    unsigned long long loaded; /* how many libraries there have ever been */
    char name[1024];           /* of the driver's; "": it is not there */
} search;

static int count(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    ((search *)found)->loaded = info->dlpi_adds;
    return 1;
}

static int is_called(const struct dl_phdr_info *info, const char *name) {
    const char *last = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');
    return last && !strncmp(last + 1, name, strlen(name));
}

static int find(struct dl_phdr_info *info, size_t size, void *found) {
    search *s = found;
    (void)size;
    if (!is_called(info, "libcuda.so") || strlen(info->dlpi_name) >= sizeof s->name) return 0;
    strcpy(s->name, info->dlpi_name);
    return 1;
}

static int find_any(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size, (void)found;
    return is_called(info, "libcuda.so") || is_called(info, "libcudart.so");
}

int ap_device_possible(void) { return dl_iterate_phdr(find_any, NULL) || !access("/dev/nvidiactl", F_OK); }

/* NULL where no CUDA is loaded. Looked for again when another library has come. */
static attribute_of asked(void) {
    static _Atomic unsigned long long loaded;
    static _Atomic attribute_of known;
    search s = {0, ""};
    dl_iterate_phdr(count, &s);
    if (s.loaded == atomic_load(&loaded)) return atomic_load(&known);
    if (!atomic_load(&known) && dl_iterate_phdr(find, &s)) {
        void *library = dlopen(s.name, RTLD_LAZY | RTLD_NOLOAD); /* held from now on */
        if (library) atomic_store(&known, (attribute_of)dlsym(library, "cuPointerGetAttribute"));
    }
    atomic_store(&loaded, s.loaded);
    return atomic_load(&known);
}

static int is_of_device(attribute_of ask, const void *buffer) {
    unsigned type = 0;
    if (!buffer || buffer == MPI_IN_PLACE) return 0;
    return !ask(&type, MEMORY_TYPE, (unsigned long long)(uintptr_t)buffer) && type == OF_DEVICE;
}

int ap_device_anywhere(const ap_call *call, int *anywhere) {
    const attribute_of ask = asked();
    int mine = ask && (is_of_device(ask, call->send) || is_of_device(ask, call->recv));
    return PMPI_Allreduce(&mine, anywhere, 1, MPI_INT, MPI_MAX, call->comm);
}
