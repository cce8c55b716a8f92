/* The functions of a device for Python (runtimes/device/functions.py); threads.cc and cuda.cu implement them. A device is a
 * GPU, or processor threads in its place. Functions that return int return 0 if they succeed, else ad_why has the reason.
 *
 * Threading: all functions of a rank are called by one thread, but for ad_graph_stop, which any thread may call. `ad_why` is
 *   per thread.
 * Ownership: what ad_X_new and ad_memory_shared return is freed by ad_X_free, what ad_memory_reached returns by
 *   ad_memory_left, what ad_stream_recorded returns by ad_recording_free; ad_joint_free: see there. Ranks outlive their
 *   plans, memory, graphs and streams.
 * Numbers: a stream of a plan is executed by `lanes` thread blocks, each in `rounds` rounds, one after another: every
 *   lane has its own slice of the data in every round (kernel.h).
 */
#pragma once
#include "world.h"

#define AD_EXPORT extern "C" __attribute__((visibility("default")))

/* Why the last call of this thread failed. */
AD_EXPORT const char *ad_why();

/* A rank that can run `blocks` thread blocks of `threads` threads; NULL: this failed. */
AD_EXPORT void *ad_rank_new(u32 rank, u32 ranks, u32 blocks, u32 threads);
AD_EXPORT void ad_rank_free(void *rank);
/* A text that describes the device of a rank and how it reaches other devices; valid as long as the rank. */
AD_EXPORT const char *ad_rank_device(void *rank);

/* Memory of zeros that all ranks of this process can reach. */
AD_EXPORT void *ad_memory_new(void *rank, size_t bytes);
AD_EXPORT void ad_memory_free(void *rank, void *memory);
/* Memory of zeros that ranks of other processes can reach, too, by its token (an IPC handle). */
enum { TOKEN = 64 }; /* bytes */
AD_EXPORT void *ad_memory_shared(void *rank, size_t bytes, void *token);
/* Maps the memory of a token of another process into this one, until ad_memory_left. */
AD_EXPORT void *ad_memory_reached(void *rank, const void *token);
AD_EXPORT void ad_memory_left(void *rank, void *memory);
/* Copies from memory of a rank to the caller's, and from the caller's to that of a rank. */
AD_EXPORT int ad_fetch(void *rank, void *to, const void *memory, size_t bytes);
AD_EXPORT int ad_bring(void *rank, void *memory, const void *from, size_t bytes);
/* Copies within the memory of a rank by the device's own copy, for comparison in measurements. */
AD_EXPORT int ad_copy(void *rank, void *to, const void *from, size_t bytes);

/* Joint memory: memory of all ranks of a group under one multicast address, so that switches can load and store for all of
 * them. Each rank must have its own device. `memory`: out, the address of each rank's memory; pass the first one to
 * ad_joint_free. */
AD_EXPORT int ad_joint_new(u32 count, void *const *ranks, size_t bytes, void **memory);
AD_EXPORT void ad_joint_free(void *rank, void *memory);
/* Joint memory of ranks in several processes. All processes must complete each of these stages before the next:
 *   ad_joint_make     one rank makes it, with `bytes` for each rank, and distributes the token
 *   ad_joint_enter    every rank enters it by the token
 *   ad_joint_own      every rank allocates its memory and distributes the token of that
 *   ad_joint_reached  every process maps the memory of all others
 *   ad_joint_all      every process joins all of it; `memory`: of each rank, as mapped here
 * Pass the memory of rank 0 as mapped here to ad_joint_free. A process has one joint memory at a time in these stages;
 * ad_joint_dropped abandons it. */
AD_EXPORT int ad_joint_make(void *rank, u32 ranks, size_t bytes, void *token);
AD_EXPORT int ad_joint_enter(void *rank, const void *token);
AD_EXPORT void *ad_joint_own(void *rank, void *token);
AD_EXPORT void *ad_joint_reached(void *rank, const void *token);
AD_EXPORT int ad_joint_all(u32 ranks, void *const *memory);
AD_EXPORT void ad_joint_dropped();

/* Tells a rank the address of the signals of `peer`: blocks * ranks numbers. */
AD_EXPORT void ad_rank_signals(void *rank, u32 peer, u64 *signals);

/* Boxes: memory that receives packets (packets.h). The size of a box, which must be zeroed at first. */
AD_EXPORT size_t ad_box_bytes();
/* Tells a rank the address of the box of `peer`. All ranks have boxes, or none. */
AD_EXPORT void ad_rank_box(void *rank, u32 peer, u64 *box);

/* A plan from a table of lower/device/table.py, which is copied; NULL: the table is damaged. */
AD_EXPORT void *ad_plan_new(void *rank, const i64 *words, i64 count);
AD_EXPORT void ad_plan_free(void *plan);
/* Elements of scratch that a call takes, if weight 1 of a block has `unit` elements. */
AD_EXPORT i64 ad_plan_scratch(void *plan, i64 unit);

/* Bytes that a plan's packets take in half a box (calls use the halves in turn); 0: it has no packets. `type`: as in NCCL
 * (numbers.h), like `op` below. */
AD_EXPORT i64 ad_plan_box(void *plan, i64 unit, int type);

/* Begins a call of these ranks of this process. On a GPU they must be all ranks of that GPU, because it runs one kernel after
 * another and the ranks wait for each other. `buffers` and `lengths` (elements): input, output and scratch of every rank.
 * `call`: its number, modulo 2^36; that of the call before plus 1, as signals ascend with it. 0: begun; else no rank has begun,
 * and the result is the number, from 1, of a rank that cannot. */
AD_EXPORT int ad_start(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes,
                       u32 rounds, char *const *buffers, const i64 *lengths);
/* Waits until all ranks of this process are done, at most `seconds` (0: no limit). If it fails, `failed` is nonzero for each
 * rank that is not done. */
AD_EXPORT int ad_wait(u32 count, void *const *ranks, double seconds, int *failed);

/* Collectives of a library (NCCL, RCCL), if all ranks are in this process, each on its own device; NULL: it cannot be loaded.
 * `kind`: as in a program file; `count`: elements of a block; `from`, `to`: where each rank's blocks begin. Returns when all
 * are done. */
AD_EXPORT void *ad_library_new(u32 count, void *const *ranks, const char *path);
AD_EXPORT int ad_library_go(void *library, int kind, i64 count, int type, int op, int root, char *const *from, char *const *to);
AD_EXPORT void ad_library_free(void *library);

/* A recorded call (a CUDA graph) of these ranks, which are in this process, to be repeated: only its number changes, which
 * the devices count by themselves. NULL: it cannot be made. After ad_graph_begin, ad_wait as for ad_start. */
AD_EXPORT void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes,
                             u32 rounds, char *const *buffers, const i64 *lengths);
AD_EXPORT int ad_graph_begin(void *graph, u64 call);
AD_EXPORT void ad_graph_free(void *graph);
/* Enqueue a recorded call on streams of a program, one per rank (of several ranks on one device, that of the first counts), so
 * that the program may capture it in its own graph. Before, ad_graph_count sets the number of the next call; once those streams
 * are done, ad_graph_counted returns the number after the last call. */
AD_EXPORT int ad_graph_count(void *graph, u64 call);
AD_EXPORT int ad_graph_enqueue(void *graph, void *const *streams);
AD_EXPORT int ad_graph_counted(void *graph, u64 *call);
/* By any thread: calls enqueued on those streams end with an error, until the next ad_graph_count; ad_graph_counted
 * then returns 2. It returns 1 if the number cannot be read, or if ranks have made different numbers of calls; *call
 * is then that of the rank that made the most. */
AD_EXPORT void ad_graph_stop(void *graph);

/* Streams of the device of a rank, as programs use them. ad_stream_end waits for the end of all work on a stream. Between
 * ad_stream_record and ad_stream_recorded, enqueued work is recorded and not executed; ad_recording_enqueue enqueues the
 * recording, any number of times, on any stream of this device. */
AD_EXPORT void *ad_stream_new(void *rank);
AD_EXPORT int ad_stream_end(void *rank, void *stream);
AD_EXPORT void ad_stream_free(void *rank, void *stream);
AD_EXPORT int ad_stream_record(void *rank, void *stream);
AD_EXPORT void *ad_stream_recorded(void *rank, void *stream);
AD_EXPORT int ad_recording_enqueue(void *rank, void *recording, void *stream);
AD_EXPORT void ad_recording_free(void *recording);

enum { BY_STEPS, BY_COPIES, BY_STAGES }; /* methods of ad_by_host: puts by kernels; by copies; by copies through host memory */
enum { STAGE = 1 << 20 }; /* bytes: half of the host memory per link with BY_STAGES */
/* Makes a whole call of these ranks, which are in this process, driven step by step by the host (by_steps.h). Each fold
 * (combination) is a kernel of `lanes` thread blocks; `method` says how puts (copies to other ranks) are made. `call`: as for
 * ad_start, if there are ranks in other processes. -1: time limit reached. */
AD_EXPORT int ad_by_host(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes,
                         int method, char *const *buffers, const i64 *lengths, double seconds);
