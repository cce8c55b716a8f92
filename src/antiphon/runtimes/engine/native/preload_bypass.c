/* Takes this library out of the way of a function of MPI for which no table has a plan.
 *
 * LD_PRELOAD makes the loader write the addresses of this library's functions into the tables by which the program calls MPI
 * (its global offset tables). Forwarding such a call takes some ns, but up to 0.5 us where the program has emptied the caches
 * of the processor since its last call, as three more cache lines are fetched. So at the first call of a function that no plan
 * serves, every such entry is replaced by the address of MPI's own function, as if this library were not there:
 *
 *     program: call *[MPI_Bcast]  ->  ours  ->  PMPI_Bcast         the first call
 *     program: call *[MPI_Bcast]  ----------->  PMPI_Bcast         all others
 *
 * Only objects that are linked with MPI are searched, and only entries that hold our address are changed. What is not found
 * (a pointer that the program has stored, an object loaded later) goes through this library as before.
 *
 * Threading: the caller holds a lock; other threads may call by an entry while it changes, as it is one aligned word.
 * Ownership: none.
 */
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "preload.h"

#if defined(__x86_64__)
/* Types of relocations: entries for calls, and entries from which the program loads a function's address. */
enum { CALL_ENTRY = R_X86_64_JUMP_SLOT, ADDRESS_ENTRY = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { CALL_ENTRY = R_AARCH64_JUMP_SLOT, ADDRESS_ENTRY = R_AARCH64_GLOB_DAT };
#endif

#if defined(__x86_64__) || defined(__aarch64__)
typedef struct {
    ap_function own, mpi; /* this library's function, and MPI's */
} replacement;

typedef struct {
    uintptr_t base, first, end; /* where the object is loaded; the pages that the loader has made read-only (RELRO) */
} object;

/* Replaces one entry of an object's tables, if it holds our address and can be written. */
static void replace_entry(const object *o, _Atomic uintptr_t *entry, const replacement *r) {
    if (atomic_load_explicit(entry, memory_order_relaxed) != (uintptr_t)r->own) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)entry & ~(page - 1);
    const int is_read_only = start >= o->first && start < o->end;
    if (is_read_only && mprotect((void *)start, page, PROT_READ | PROT_WRITE)) return;
    atomic_store_explicit(entry, (uintptr_t)r->mpi, memory_order_relaxed);
    if (is_read_only) mprotect((void *)start, page, PROT_READ);
}

/* Replaces those of `count` relocations that name functions. */
static void replace_entries(const object *o, const ElfW(Rela) *entries, size_t count, const replacement *r) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t type = ELF64_R_TYPE(entries[i].r_info);
        if (type == CALL_ENTRY || type == ADDRESS_ENTRY)
            replace_entry(o, (_Atomic uintptr_t *)(o->base + entries[i].r_offset), r);
    }
}

/* Whether an object is linked with a library of MPI: libmpi.so, libmpich.so, libmpifort.so, ... */
static int needs_mpi(const ElfW(Dyn) *dynamic, const char *names) {
    for (; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_NEEDED && !strncmp(names + dynamic->d_un.d_val, "libmpi", 6)) return 1;
    return 0;
}

/* dl_iterate_phdr calls it for each loaded object. `data`: the replacement. Returns 0: go on with the next object. */
static int search_object(struct dl_phdr_info *info, size_t size, void *data) {
    const ElfW(Dyn) *dynamic = NULL;
    object o = {.base = info->dlpi_addr};
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)(o.base + segment->p_vaddr);
        if (segment->p_type == PT_GNU_RELRO) o.first = o.base + segment->p_vaddr, o.end = o.first + segment->p_memsz;
    }
    const uintptr_t whole_pages = ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    o.first &= whole_pages, o.end &= whole_pages; /* as the loader rounds both: the last page, if partial, stays writable */
    if (!dynamic) return 0;
    uintptr_t names = 0, calls = 0, others = 0; /* addresses: texts; relocations of CALL_ENTRY; all others */
    size_t call_bytes = 0, other_bytes = 0, relative = 0;
    for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_STRTAB) names = d->d_un.d_ptr;
        if (d->d_tag == DT_JMPREL) calls = d->d_un.d_ptr;
        if (d->d_tag == DT_PLTRELSZ) call_bytes = d->d_un.d_val;
        if (d->d_tag == DT_RELA) others = d->d_un.d_ptr;
        if (d->d_tag == DT_RELASZ) other_bytes = d->d_un.d_val;
        if (d->d_tag == DT_RELACOUNT) relative = d->d_un.d_val; /* the first entries, which name no symbol */
    }
    /* below the base: this loader has not added the base to the addresses (as glibc does), so they cannot be used */
    if (names < o.base || !needs_mpi(dynamic, (const char *)names)) return 0;
    if (calls) replace_entries(&o, (const ElfW(Rela) *)calls, call_bytes / sizeof(ElfW(Rela)), data);
    const size_t count = other_bytes / sizeof(ElfW(Rela));
    if (others && count > relative) replace_entries(&o, (const ElfW(Rela) *)others + relative, count - relative, data);
    return 0;
}

void ap_bypass(ap_function own, ap_function mpi) { dl_iterate_phdr(search_object, &(replacement){own, mpi}); }
#else
void ap_bypass(ap_function own, ap_function mpi) { (void)own, (void)mpi; }
#endif
