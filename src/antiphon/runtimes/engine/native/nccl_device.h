/* What the library under NCCL asks of a device: memory, streams, marks in them, and the combining of data. nccl_device.cu gives
 * it for CUDA and HIP, and for what has CUDA's names. All is asked of the current device. What gives an int: 0 is good. */
#ifndef ANTIPHON_NCCL_DEVICE_H
#define ANTIPHON_NCCL_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { AP_MOST_OPERANDS = 256 }; /* of one fold: they are the kernel's arguments */

typedef void *ap_queue; /* a stream */
typedef void *ap_mark;  /* an event */

const char *ap_device_why(void); /* why the last one of this thread was not good */
int ap_device_current(int *device);
int ap_device_take(int device);
/* Whether streams of this thread may be captured while memory is taken; what it was before. */
int ap_device_relax(int *mode);

int ap_device_memory(void **memory, size_t bytes);
void ap_device_free(void *memory); /* waits for the whole device */
int ap_device_copy(void *to, const void *from, size_t bytes, ap_queue queue); /* also from and to the host */

int ap_queue_new(ap_queue *queue);
void ap_queue_end(ap_queue queue);
int ap_queue_busy(ap_queue queue); /* 1: it is, -1: an error */
int ap_queue_captured(ap_queue queue, unsigned long long *graph); /* 0: by none */

int ap_mark_new(ap_mark *mark);
void ap_mark_end(ap_mark mark);
int ap_mark_set(ap_mark mark, ap_queue queue);
int ap_mark_await(ap_mark mark, ap_queue queue); /* the queue goes on when that is reached */
int ap_mark_reach(ap_mark mark);                 /* this thread does */

/* `to` = operands combined from the left; types and operators as in api.h. */
int ap_device_fold(void *to, const void *const *operands, uint32_t count, uint64_t elements, int type, int op, ap_queue queue);
int ap_device_divide(void *values, uint64_t elements, uint64_t count, int type, ap_queue queue);

#ifdef __cplusplus
}
#endif
#endif
