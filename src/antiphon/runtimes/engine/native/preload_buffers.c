/* The arguments of a call of MPI in terms of the engine: built-in types, operators, and whether a buffer is in the memory of a
 * GPU.
 *
 * Buffers in the memory of a GPU are left to MPI: plans read and write memory of the host. One process may pass such a buffer
 * where another passes one of the host, and yet all must decide alike. So where there can be GPU buffers (CUDA's library is
 * loaded in a process when MPI begins, or a host has /dev/nvidiactl), every call that a plan would serve begins with a
 * reduction over all processes. Nothing is linked with CUDA: the driver's functions are looked up in the libraries that are
 * loaded.
 *
 * Threading: the table of types is filled in MPI_Init and only read afterwards; the address of CUDA's function is atomic.
 * Ownership: nothing is allocated. The handle of the driver's library is never closed.
 */
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

#include "preload.h"

/* ---- types and operators ---- */

/* A slot of a hash table of MPI's built-in types, with linear probing; about 60 of 512 are used, so it never fills. */
typedef struct {
    MPI_Datatype handle;
    ap_data_type data;
    int used;
} slot;

enum { SLOTS = 512 };

static slot types[SLOTS];

/* The slot of a type, or the free one where it belongs. */
static slot *slot_of(MPI_Datatype handle) {
    uint64_t key = (uint64_t)(uintptr_t)handle;
    uint32_t at = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 55); /* 9 bits: below SLOTS */
    while (types[at].used && types[at].handle != handle) at = (at + 1) % SLOTS;
    return &types[at];
}

/* The engine's type for a class and a size in bytes; -1: none, plans only move it. Classes: 's' and 'u': integers with and
 * without a sign, 'f': floating point, 'b': bfloat16, 'o': others. */
static int engine_type(char class, int size) {
    /* by sign, then by size in bytes */
    static const int integers[2][9] = {{-1, AP_INT8, AP_INT16, -1, AP_INT32, -1, -1, -1, AP_INT64},
                                    {-1, AP_UINT8, AP_UINT16, -1, AP_UINT32, -1, -1, -1, AP_UINT64}};
    if (size < 1 || size > 8) return -1;
    if (class == 's' || class == 'u') return integers[class == 'u'][size];
    if (class == 'f') return size == 2 ? AP_FLOAT16 : size == 4 ? AP_FLOAT32 : size == 8 ? AP_FLOAT64 : -1;
    return class == 'b' && size == 2 ? AP_BFLOAT16 : -1;
}

/* Enters a type of this class (see engine_type), unless this MPI lacks it. */
static void add_type(MPI_Datatype handle, char class) {
    int size = 0;
    MPI_Aint low = 0, extent = 0;
    if (handle == MPI_DATATYPE_NULL) return;
    slot *s = slot_of(handle);
    if (s->used || PMPI_Type_size(handle, &size) || size <= 0 || PMPI_Type_get_extent(handle, &low, &extent)) return;
    s->used = 1, s->handle = handle;
    s->data = (ap_data_type){.size = size, .type = engine_type(class, size), .plain = low == 0 && extent == size};
}

/* Enters the types of C. At run time: some MPIs define their types as variables, which a static table cannot hold. */
static void add_c_types(void) {
    const MPI_Datatype with_sign[] = {MPI_SIGNED_CHAR, MPI_SHORT,   MPI_INT,     MPI_LONG,    MPI_LONG_LONG_INT,
                                      MPI_INT8_T,      MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_AINT,
                                      MPI_OFFSET,      MPI_COUNT};
    const MPI_Datatype without[] = {MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED,  MPI_UNSIGNED_LONG,
                                    MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T,   MPI_UINT16_T,  MPI_UINT32_T, MPI_UINT64_T};
    const MPI_Datatype floating[] = {MPI_FLOAT, MPI_DOUBLE};
    const MPI_Datatype moved_only[] = {MPI_CHAR, MPI_WCHAR, MPI_PACKED, MPI_BYTE, MPI_C_BOOL, MPI_LONG_DOUBLE, MPI_C_COMPLEX,
                                   MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_FLOAT_INT, MPI_DOUBLE_INT,
                                   MPI_LONG_INT, MPI_SHORT_INT, MPI_2INT, MPI_LONG_DOUBLE_INT};
    for (size_t i = 0; i < sizeof with_sign / sizeof *with_sign; i++) add_type(with_sign[i], 's');
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) add_type(without[i], 'u');
    for (size_t i = 0; i < sizeof floating / sizeof *floating; i++) add_type(floating[i], 'f');
    for (size_t i = 0; i < sizeof moved_only / sizeof *moved_only; i++) add_type(moved_only[i], 'o');
#ifdef MPIX_C_FLOAT16
    add_type(MPIX_C_FLOAT16, 'f');
#endif
#ifdef MPIX_BFLOAT16
    add_type(MPIX_BFLOAT16, 'b');
#endif
}

/* Enters the types of Fortran. Which of these exist depends on the compilers that MPI was built with. C++ has further names only
 * for bool and complex numbers, which are never combined here. */
static void add_fortran_types(void) {
#ifdef MPI_INTEGER
    add_type(MPI_INTEGER, 's');
    add_type(MPI_REAL, 'f');
    add_type(MPI_DOUBLE_PRECISION, 'f');
    add_type(MPI_CHARACTER, 'o');
    add_type(MPI_LOGICAL, 'o');
    add_type(MPI_COMPLEX, 'o');
    add_type(MPI_DOUBLE_COMPLEX, 'o');
#endif
#ifdef MPI_INTEGER1
    add_type(MPI_INTEGER1, 's');
#endif
#ifdef MPI_INTEGER2
    add_type(MPI_INTEGER2, 's');
#endif
#ifdef MPI_INTEGER4
    add_type(MPI_INTEGER4, 's');
#endif
#ifdef MPI_INTEGER8
    add_type(MPI_INTEGER8, 's');
#endif
#ifdef MPI_REAL2
    add_type(MPI_REAL2, 'f');
#endif
#ifdef MPI_REAL4
    add_type(MPI_REAL4, 'f');
#endif
#ifdef MPI_REAL8
    add_type(MPI_REAL8, 'f');
#endif
}

void ap_register_types(void) {
    MPI_Errhandler old[2];
    MPI_Comm where[2] = {MPI_COMM_WORLD, MPI_COMM_SELF}; /* a type that this MPI lacks may raise an error on them */
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_get_errhandler(where[i], &old[i]);
        PMPI_Comm_set_errhandler(where[i], MPI_ERRORS_RETURN);
    }
    add_c_types();
    add_fortran_types();
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_set_errhandler(where[i], old[i]);
        PMPI_Errhandler_free(&old[i]);
    }
}

/* False: the type is invalid, which MPI will report. */
int ap_type_of(MPI_Datatype type, ap_data_type *data) {
    const slot *s = slot_of(type);
    if (s->used) {
        *data = s->data;
        return 1;
    }
    *data = (ap_data_type){.type = -1};
    /* a type of the program's own: its elements may have gaps, so it is not plain; below 0: too large to count */
    return type != MPI_DATATYPE_NULL && !PMPI_Type_size_x(type, &data->size) && data->size >= 0;
}

int ap_is_built_in(MPI_Datatype type) { return slot_of(type)->used; }

/* The engine's operator; -1: it has none. */
int ap_operator_of(MPI_Op op) {
    if (op == MPI_SUM) return AP_SUM;
    if (op == MPI_PROD) return AP_PROD;
    if (op == MPI_MAX) return AP_MAX;
    return op == MPI_MIN ? AP_MIN : -1;
}

/* ---- memory of GPUs ---- */

/* cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE and CU_MEMORYTYPE_DEVICE of CUDA's driver. */
typedef int (*attribute_of)(void *data, int attribute, unsigned long long pointer);
enum { MEMORY_TYPE = 2, DEVICE_MEMORY = 2 };

typedef struct {
    unsigned long long loaded; /* libraries loaded so far, including those unloaded since */
    char name[1024];           /* path of the driver's library; "": not loaded */
} driver_search;

/* What dl_iterate_phdr calls for each loaded object; it stops at the first 1. */

static int count_libraries(struct dl_phdr_info *info, size_t size, void *search) {
    (void)size;
    ((driver_search *)search)->loaded = info->dlpi_adds;
    return 1; /* the first object states it already */
}

/* Whether the name of an object's file begins with `name`. */
static int is_called(const struct dl_phdr_info *info, const char *name) {
    const char *last = strrchr(info->dlpi_name ? info->dlpi_name : "", '/');
    return last && !strncmp(last + 1, name, strlen(name));
}

static int find_driver(struct dl_phdr_info *info, size_t size, void *search) {
    driver_search *s = search;
    (void)size;
    if (!is_called(info, "libcuda.so") || strlen(info->dlpi_name) >= sizeof s->name) return 0;
    strcpy(s->name, info->dlpi_name);
    return 1;
}

static int find_cuda(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    return is_called(info, "libcuda.so") || is_called(info, "libcudart.so");
}

/* Whether this process can have buffers in the memory of a GPU. */
int ap_gpus_possible(void) { return dl_iterate_phdr(find_cuda, NULL) || !access("/dev/nvidiactl", F_OK); }

/* cuPointerGetAttribute; NULL if CUDA is not loaded. Searched for again after another library was loaded. */
static attribute_of find_attribute_function(void) {
    static _Atomic unsigned long long loaded;
    static _Atomic attribute_of function;
    driver_search s = {0, ""};
    dl_iterate_phdr(count_libraries, &s);
    if (s.loaded == atomic_load(&loaded)) return atomic_load(&function);
    if (!atomic_load(&function) && dl_iterate_phdr(find_driver, &s)) {
        void *library = dlopen(s.name, RTLD_LAZY | RTLD_NOLOAD); /* never closed */
        if (library) atomic_store(&function, (attribute_of)dlsym(library, "cuPointerGetAttribute"));
    }
    atomic_store(&loaded, s.loaded);
    return atomic_load(&function);
}

/* Whether a buffer is in the memory of a GPU. */
static int is_of_device(attribute_of get_attribute, const void *buffer) {
    unsigned type = 0;
    if (!buffer || buffer == MPI_IN_PLACE) return 0;
    return !get_attribute(&type, MEMORY_TYPE, (unsigned long long)(uintptr_t)buffer) && type == DEVICE_MEMORY;
}

/* Collective: whether any process passes a buffer in the memory of a GPU to this call. Returns an error code of MPI. */
int ap_gpu_buffer_anywhere(const ap_call *call, int *anywhere) {
    const attribute_of get_attribute = find_attribute_function();
    int on_device = get_attribute && (is_of_device(get_attribute, call->send) || is_of_device(get_attribute, call->recv));
    return PMPI_Allreduce(&on_device, anywhere, 1, MPI_INT, MPI_MAX, call->comm);
}
