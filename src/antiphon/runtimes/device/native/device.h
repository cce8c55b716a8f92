/* The functions of a device for Python (runtimes/device/functions.py); threads.cc and cuda.cu implement them.
 *
 * Threading: all functions of a rank are called by one thread, but for ad_graph_stop, which any thread may call. `ad_why` is per
 *   thread.
 * Ownership: what *_new, *_make and *_shared return is freed by the function named after it (*_free, *_left); ranks outlive their
 *   plans, memory, graphs and streams.
 */
#pragma once
#include "world.h"

#define AD_EXPORT extern "C" __attribute__((visibility("default")))

/* Why the last call of this thread failed. */
AD_EXPORT const char *ad_why();

/* A rank with room for so many blocks of so many threads; NULL: it cannot be had. */
AD_EXPORT void *ad_rank_new(u32 rank, u32 ranks, u32 blocks, u32 threads);
AD_EXPORT void ad_rank_free(void *rank);
/* The device of a rank in words: what it is, where, and how others are reached from it; as long as there is the rank. */
AD_EXPORT const char *ad_rank_device(void *rank);

/* Memory of zeros that all ranks of this process can reach. */
AD_EXPORT void *ad_memory_new(void *rank, size_t bytes);
AD_EXPORT void ad_memory_free(void *rank, void *memory);
/* The same that ranks of other processes can reach, too, by the token. */
enum { TOKEN = 64 };
AD_EXPORT void *ad_memory_shared(void *rank, size_t bytes, void *token);
/* That of another process, as this one sees it; until it is left. */
AD_EXPORT void *ad_memory_reached(void *rank, const void *token);
AD_EXPORT void ad_memory_left(void *rank, void *memory);
/* Between memory of a rank and the caller's. 0: done. */
AD_EXPORT int ad_fetch(void *rank, void *to, const void *memory, size_t bytes);
AD_EXPORT int ad_bring(void *rank, void *memory, const void *from, size_t bytes);
/* Between memories of one rank, by the device's own copy: what calls are measured against. */
AD_EXPORT int ad_copy(void *rank, void *to, const void *from, size_t bytes);

/* Memory that all these ranks have alike, so that switches can load and store for all of them: where each has it. They are all
 * ranks of a group, each on a device of its own. 0: done. It is given back as that of the first. */
AD_EXPORT int ad_joint_new(u32 count, void *const *ranks, size_t bytes, void **memory);
AD_EXPORT void ad_joint_free(void *rank, void *memory);
/* The same of several processes, step by step, each by all before the next: one makes what ranks enter, with `bytes` for each;
 * every rank enters; it has memory there, of which others hear the token; that of others is reached; all of it is one.
 * 0 or memory: done. It is given back by what rank 0 has, as it is seen here. */
AD_EXPORT int ad_joint_make(void *rank, u32 ranks, size_t bytes, void *token);
AD_EXPORT int ad_joint_enter(void *rank, const void *token);
AD_EXPORT void *ad_joint_own(void *rank, void *token);
AD_EXPORT void *ad_joint_reached(void *rank, const void *token);
AD_EXPORT int ad_joint_all(u32 ranks, void *const *memory);
AD_EXPORT void ad_joint_dropped();

/* Where the signals of a rank are, as this one sees them: blocks * ranks numbers. */
AD_EXPORT void ad_rank_signals(void *rank, u32 peer, u64 *signals);

/* The box of a rank for packets, as this one sees it: so many bytes, first zeros. All have one, or none. */
AD_EXPORT size_t ad_box_bytes();
AD_EXPORT void ad_rank_box(void *rank, u32 peer, u64 *box);

/* A table of lower/device/table.py; NULL: it is damaged. It is copied. */
AD_EXPORT void *ad_plan_new(void *rank, const i64 *words, i64 count);
AD_EXPORT void ad_plan_free(void *plan);
/* Elements of scratch, where a unit of weight has so many. */
AD_EXPORT i64 ad_plan_scratch(void *plan, i64 unit);

/* Bytes of half a box that its packets take; 0: it has none. */
AD_EXPORT i64 ad_plan_box(void *plan, i64 unit, int type);

/* Begins a call of these ranks, which are of this process: of a GPU all that it has, since it does one thing that is enqueued
 * after another, and these wait for each other; of threads any. `buffers` and `lengths` (elements): input, output and scratch
 * of every rank. Signals of a rank ascend with `call`, modulo 2^36; what stands in them first must be those of the call before.
 * 0: begun; else none has, and it is the place among them, from 1, of one that cannot. */
AD_EXPORT int ad_start(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes,
                       u32 rounds, char *const *buffers, const i64 *lengths);
/* After all ranks of this process have begun: until they are done, all of them within so many seconds (0: as long as it takes).
 * 0: done; else `failed` is nonzero for each that is not. */
AD_EXPORT int ad_wait(u32 count, void *const *ranks, double seconds, int *failed);

/* The collectives of a library (NCCL, RCCL) for all ranks, which are here, each on a device of its own; NULL: it cannot be had.
 * `kind`: as in a program file; `count`: elements of a block; where each rank's block or blocks begin. 0: done, at all. */
AD_EXPORT void *ad_library_new(u32 count, void *const *ranks, const char *path);
AD_EXPORT int ad_library_go(void *library, int kind, i64 count, int type, int op, int root, char *const *from, char *const *to);
AD_EXPORT void ad_library_free(void *library);

/* A call of these ranks, all of this process, by one kernel, as it stands: to be made again with nothing but its number, which
 * devices count on by themselves (a CUDA graph). NULL: it cannot be had. Then ad_wait, as for ad_start. */
AD_EXPORT void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes,
                             u32 rounds, char *const *buffers, const i64 *lengths);
AD_EXPORT int ad_graph_begin(void *graph, u64 call);
AD_EXPORT void ad_graph_free(void *graph);
/* The same on streams of a program, one for each rank (where several are on a device, that of the first counts): it is only
 * enqueued, so that a program may capture it in a graph of its own. Before that, ad_graph_count sets the number of its next
 * call; once those streams are done, ad_graph_counted returns the number after the last. */
AD_EXPORT int ad_graph_count(void *graph, u64 call);
AD_EXPORT int ad_graph_ask(void *graph, void *const *streams);
AD_EXPORT int ad_graph_counted(void *graph, u64 *call);
/* By any thread: what is enqueued on those streams ends, as errors, until the next ad_graph_count. Then ad_graph_counted returns 2;
 * 1: the number cannot be read, or not all ranks have made the same calls. `call` is then the latest of them. */
AD_EXPORT void ad_graph_stop(void *graph);

/* Streams as a program has them, of the device of a rank. From ad_stream_keep to ad_stream_kept what is enqueued is recorded
 * instead of done; the recording may be enqueued any number of times, on any stream of this device (ad_kept_ask). 0: done. */
AD_EXPORT void *ad_stream_new(void *rank);
AD_EXPORT int ad_stream_end(void *rank, void *stream);
AD_EXPORT void ad_stream_free(void *rank, void *stream);
AD_EXPORT int ad_stream_keep(void *rank, void *stream);
AD_EXPORT void *ad_stream_kept(void *rank, void *stream);
AD_EXPORT int ad_kept_ask(void *rank, void *recording, void *stream);
AD_EXPORT void ad_kept_free(void *recording);

enum { BY_STEPS, BY_COPIES, BY_STAGES };
enum { STAGE = 1 << 20 }; /* bytes of half of what the host has for a link */
/* A call of these ranks, all of this process, to its end, step by step by the host (by_steps.h): folds by a kernel of `lanes`
 * blocks each, puts too, or by copies, straight or through memory of the host. `call`: as for ad_start, where there are ranks in
 * other processes. 0: done, -1: its time was up. */
AD_EXPORT int ad_by_host(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes,
                         int method, char *const *buffers, const i64 *lengths, double seconds);
