/* What a program asks that knows of us and makes its communicators through us, preloaded or not: the backend for PyTorch. */
#include <string.h>

#include "nccl_preload.h"

enum { MOST_NOTES = 1024 };

void *ap_nccl_behind;
static _Atomic int listens;
static _Thread_local struct {
    const void *bytes;
    uint64_t size;
} given;
static _Thread_local struct {
    uint32_t count;
    struct {
        int reason;
        const ap_page *page;
    } call[MOST_NOTES];
} became;

/* Before anything else of NCCL: its library, as dlopen gave it; NULL: it stands behind us, as when we are preloaded. From here on
 * each thread may ask what became of its calls. */
AP_SEEN void antiphon_nccl_behind(void *library) {
    if (!listens && library) ap_nccl_behind = library;
    listens = 1;
}

/* The book for communicators that this thread makes from now on, instead of what the environment names: proven, and there until
 * they are made. `size` 0: no plans. NULL: as the environment says. */
AP_SEEN void antiphon_nccl_book(const void *bytes, uint64_t size) { given.bytes = bytes, given.size = size; }

/* What this thread asks of the device from now on is no part of what other threads capture. 0: so it is. */
AP_SEEN int antiphon_nccl_relax(void) {
    int mode = -1;
    return ap_device_relax(&mode);
}

int ap_nccl_given(const void **bytes, uint64_t *size) {
    *bytes = given.bytes, *size = given.size;
    return given.bytes != NULL;
}

void ap_nccl_note(uint32_t i, int reason, const ap_page *page) {
    if (!listens || i >= MOST_NOTES) return;
    became.call[i].reason = reason, became.call[i].page = page;
    became.count = i + 1;
}

/* Of this thread's last group, or its last call: 1 where call `i` of it went by a plan, whose name is then in `text`; 0 where it was
 * left, and why. -1: there was none. The text stays, and is so many bytes. */
AP_SEEN int antiphon_nccl_became(uint32_t i, const char **text, uint32_t *bytes) {
    if (i >= became.count) return -1;
    const ap_page *page = became.call[i].page;
    *text = page ? page->label : ap_reason(became.call[i].reason);
    *bytes = page ? page->label_bytes : (uint32_t)strlen(*text);
    return page != NULL;
}
