/* What libraries that are preloaded before a program have in common, whether it calls MPI or NCCL: tables, the environment, which
 * rows are for a communicator, and what is told at the end. */
#ifndef ANTIPHON_PRELOAD_JOB_H
#define ANTIPHON_PRELOAD_JOB_H

#include <sys/types.h>

#include "choose.h"

/* The names of the other library are what programs shall find here; all others are hidden (exports.c). */
#define AP_SEEN __attribute__((visibility("default")))

/* Why a call was left to the library. */
enum {
    AP_SERVED, AP_SILENT, AP_ALONE, AP_BETWEEN, AP_STRANGERS, AP_EMPTY, AP_NO_PLAN, AP_NO_ROOT, AP_FASTER,
    AP_UNMEASURED, AP_SMALL, AP_OTHER_TYPE, AP_OTHER_OPERATOR, AP_LARGE, AP_REFUSED, AP_WAITING,
    AP_NOT_PLANNED, AP_NEW, AP_NO_ROOM, AP_UNEVEN, AP_NONBLOCKING, AP_PERSISTENT, AP_DEVICE,
    AP_NO_SCRATCH, AP_UNLIKE, AP_TRIED, AP_SLOWER, AP_REASONS
};

#ifndef AP_PYTHON /* what built this library, and where the package is */
#define AP_PYTHON "python3"
#endif
#ifndef AP_PACKAGE
#define AP_PACKAGE ""
#endif
#ifndef AP_VERSION
#define AP_VERSION ""
#endif

/* ---- the environment ---- */

enum { AP_MOST_TABLES = 64, AP_TEXT = 400 };

typedef struct {
    uint64_t least;
    int32_t tries;           /* nobody has said from which size on plans are to be used that were not measured */
    double timeout;
    uint32_t after; /* calls of a new communicator that are left to the library */
    int32_t report;
    int32_t anywhere;        /* hosts may be others than the tables say */
    int32_t device;          /* whether buffers may be in the memory of a GPU; below 0: find out */
    uint64_t scratch;        /* bytes, for a communicator of NCCL */
    char report_path[1024];
} ap_settings;

/* What is wrong goes into `why`, the first time; more of it is only counted. */
void ap_complain(char why[AP_TEXT], const char *format, ...) __attribute__((format(printf, 2, 3)));
void ap_read_settings(ap_settings *s, char why[AP_TEXT]);
/* ANTIPHON_TRIED, for tests: what calls of a process by the plan and by the library are to have taken, in the clock's place. "2:1" at
 * all processes, "2:1,1:2" at the first one of the world and at all others. False where it is not given, or no such text. */
int ap_tried(int process, double seconds[2]);

/* ---- tables ---- */

typedef struct {
    uint64_t calls, least, most; /* bytes */
    double seconds;
} ap_use;

typedef struct {
    ap_book *book;
    unsigned char *bytes;
    uint64_t size;
    ap_use *use;       /* of its pages, if there is to be a report */
    int32_t of_world;  /* its ranks are those of MPI_COMM_WORLD; else it is for communicators of its size */
    int32_t position;  /* among those that were named */
} ap_table;

/* Rank 0 alone: the book of a table as bytes from malloc; NULL and an error. */
unsigned char *ap_table_bytes(const char *path, uint64_t *size, ap_error *error);
/* For whoever has a table compiled before a job: AP_OK if its book is kept now. */
int ap_table_keep(const char *path, ap_error *error);
/* What stands in a file that is ours, in a folder that is ours; NULL where there is none that can be believed. */
unsigned char *ap_read_ours(const char *kept, uint64_t *size);
/* Of a regular file; false where there is none. */
int ap_file_digest(const char *path, char digest[65]);
/* Starts a program of this package with its output in a pipe, of which the end to read is returned; -1 and errno.
 * `input`: our end of a socket
 * that is its input, as what is said there when it has ended must not end this process (NULL: it has none). */
int ap_start(char *const *command, pid_t *child, int *input);

/* Those of $ANTIPHON_TABLE that can be of use: how many. `world`: the processes of the job, for which the first one must be; 0: all
 * are for communicators of as many processes as they have ranks. */
uint32_t ap_read_tables(const char *list, int world, ap_table table[AP_MOST_TABLES], char why[AP_TEXT]);

/* ---- which rows are for a communicator (preload_match.c) ---- */

typedef struct {
    const ap_page *page;
    ap_program *program; /* NULL: left to the library */
    ap_use *use;
    ap_range range;
    int state;    /* 0: not asked yet, 1: all can, -1: one cannot */
} ap_row;

typedef struct {
    int size, rank;     /* of the communicator */
    const int *process; /* of each of its processes, which it is in the world; below 0: of another one */
    int world;          /* processes of the world */
    const int32_t *host; /* of each process of the world, where it is; NULL: nobody knows */
    int anywhere;
    const ap_table *table;
    uint32_t tables;
} ap_matching;

typedef struct {
    uint32_t rows, me, ranks; /* of the machine */
    int32_t *rank_of;         /* of each process the rank in the table */
    ap_row *row;
    ap_chooser *chooser; /* of the rows */
} ap_matched;

/* By what its processes are in the world; by tables for its number of ranks, if they have more. No rows: there are none for it.
 * False: there is no memory. */
int ap_match(const ap_matching *m, ap_matched *out);
void ap_unmatch(ap_matched *m);
/* Which row a call goes by; AP_SERVED, or why none. `least`: bytes from which on ranges count that were not measured. */
int ap_pick(const ap_matched *m, uint64_t least, int kind, int root, uint64_t bytes, ap_row **row);

/* ---- what is told at the end (preload_told.c) ---- */

typedef struct {
    char how[16], machine[128], gain[600], notes[600]; /* what is known of the plans; notes: also why there are none */
    uint64_t since; /* the call of a communicator that was the first to go by them; 0: none was */
} ap_told;
extern const char *const ap_kind_names[AP_KINDS];

typedef struct { /* what calls have gone by */
    ap_use use;
    int kind, root;
    uint32_t ranks; /* 0: different ones */
    const char *label;
    uint32_t label_bytes;
} ap_line;

typedef struct {
    int processes;
    const char *warning;
    const ap_line *line; /* with the sums of all that count */
    size_t lines;
    const uint64_t *left;   /* by kind and reason */
    const ap_told *planned; /* NULL: plans were not made during the job */
} ap_account;

const char *ap_reason(int reason); /* in words */
ap_line ap_line_of(const ap_table *table, uint32_t page);
void ap_use_add(ap_use *use, uint64_t bytes, double seconds); /* by one thread at a time */
/* To the file at `path`, or as text on stderr where there is none. */
void ap_account_write(const ap_account *a, const char *path);

#endif
