/* Plans that are made while the job runs (ANTIPHON_TABLE=auto, docs/auto.md): the request, the planning process, its answer,
 * and the table made of it. How all processes switch to that table is in preload_auto_switch.c.
 *
 * Role: process 0 writes the request and starts the planning process, or takes the answer that is cached for it; the answer
 *   becomes the one table of the job at every process.
 * Threading: the request and the planning process belong to the thread in MPI_Init, then to the calls of process 0
 *   (`answer_lock`). An answer is read by a background thread, which calls nothing of MPI and yields to the program. The one
 *   table has a lock of its own (`table_lock`).
 * Ownership: the planning process ends when its input does, so it never outlives the job, however that ends. Answers are from
 *   malloc; the book of an accepted answer belongs to ap_preload.table[0].
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "preload.h"
#include "sha256.h"
#include "prefault.h"

/* ---- the request ---- */

enum { WORD = 201, PROCESS_TEXT = 640 }; /* bytes of a word, and of the description of a process, with the final zero */

/* Copies a text as one word: other characters than printable ASCII, and blanks, become '?'. */
static void make_word(char word[WORD], const char *text) {
    size_t i = 0;
    for (; text[i] && i < WORD - 1; i++) word[i] = text[i] > ' ' && text[i] <= '~' ? text[i] : '?';
    word[i] = 0;
}

/* Describes where this process runs: boot id of the host, its name, visible GPUs. */
static void describe_process(char facts[PROCESS_TEXT]) {
    static const char *const visible[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"};
    char boot[64] = "-", host[256] = "", words[3][WORD];
    const char *devices = NULL;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) strcpy(boot, "-");
        boot[strcspn(boot, "\n")] = 0;
        fclose(file);
    }
    gethostname(host, sizeof host - 1);
    for (size_t i = 0; i < 3 && !devices; i++) devices = getenv(visible[i]);
    /* the GPUs: "=" and the value of the variable, perhaps empty; "-": none of the variables is set */
    make_word(words[0], boot), make_word(words[1], host), make_word(words[2], devices ? devices : "-");
    snprintf(facts, PROCESS_TEXT, "%s %s %s%s", words[0], words[1], devices ? "=" : "", words[2]);
}

/* The folder of cached answers: $ANTIPHON_CACHE/auto, else antiphon/auto in $XDG_CACHE_HOME or ~/.cache; false: none. */
static int cache_folder(char folder[AP_PATH]) {
    const char *cache = getenv("ANTIPHON_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char working[PATH_MAX] = "";
    int length;
    if (cache && !strcmp(cache, "off")) return 0;
    if (cache && *cache) {
        if (*cache != '/' && !getcwd(working, sizeof working)) return 0;
        length = snprintf(folder, AP_PATH, "%s%s%s/auto", working, *working ? "/" : "", cache);
    } else if (xdg && *xdg == '/') {
        length = snprintf(folder, AP_PATH, "%s/antiphon/auto", xdg);
    } else {
        length = home && *home ? snprintf(folder, AP_PATH, "%s/.cache/antiphon/auto", home) : -1;
    }
    return length > 0 && length < AP_PATH - 80; /* room for the file's name: a digest of 64 letters and an ending */
}

/* Process 0: the request for all processes, from malloc, and the path of its cached answer ("": none). The same text as that of
 * runtimes/serve/auto_question.py, so that both find the same cached answers. */
static char *write_request(const char *facts, int processes, char cache_path[AP_PATH]) {
    const char *topology = getenv("ANTIPHON_TOPOLOGY"), *ranks = getenv("ANTIPHON_RANKS");
    char words[2][WORD], content[65] = "-", digest[65], folder[AP_PATH];
    /* FIRST_LINES: room for those before the processes: a version, two words, a digest; 16: "process " and the line's
     * end */
    enum { FIRST_LINES = 1024 };
    size_t capacity = FIRST_LINES + (size_t)processes * (PROCESS_TEXT + 16), at;
    char *text = malloc(capacity);
    cache_path[0] = 0;
    if (!text) return NULL;
    make_word(words[0], topology ? topology : ""), make_word(words[1], ranks ? ranks : "");
    if (topology && *topology && !ap_file_digest(topology, content)) strcpy(content, "-");
    /* "=" begins each value of a variable, so that an empty one is a word, too */
    at = (size_t)snprintf(text, capacity, "antiphon auto 1 " AP_VERSION "\nmachine =%s %s\nranks =%s\n", words[0], content,
                          words[1]);
    for (int i = 0; i < processes; i++)
        at += (size_t)snprintf(text + at, capacity - at, "process %.*s\n", PROCESS_TEXT, facts + (size_t)i * PROCESS_TEXT);
    ap_sha256(text, at, digest);
    if (cache_folder(folder) && snprintf(cache_path, AP_PATH, "%s/%s.plan", folder, digest) >= AP_PATH) cache_path[0] = 0;
    return text;
}

/* ---- answers ----
 *
 * An answer is a line of text, how TAB machine TAB gain TAB notes (ap_plan_summary; how: where the plans come from),
 * followed by the bytes of a book. */

/* Copies the text up to a tab or the line's end, cut to the capacity; returns what follows. */
static const char *read_word(const char *text, const char *end, char *word, size_t capacity) {
    size_t i = 0;
    for (; text < end && *text != '\t' && *text != '\n'; text++)
        if (i + 1 < capacity) word[i++] = *text;
    word[i] = 0;
    return text < end ? text + 1 : end;
}

/* Returns the book of an answer, from malloc, and fills its summary; NULL: the book is damaged. */
unsigned char *ap_auto_read_answer(const unsigned char *answer, uint64_t bytes, uint64_t *size, ap_plan_summary *summary) {
    const char *at = (const char *)answer, *end = at + bytes;
    at = read_word(at, end, summary->how, sizeof summary->how);
    at = read_word(at, end, summary->machine, sizeof summary->machine);
    at = read_word(at, end, summary->gain, sizeof summary->gain);
    at = read_word(at, end, summary->notes, sizeof summary->notes);
    *size = (uint64_t)(end - at);
    unsigned char *book = malloc(*size ? (size_t)*size : 1); /* copied, as a book must begin at a multiple of 8 */
    if (!book) return NULL;
    memcpy(book, at, (size_t)*size);
    ap_book *opened = ap_book_open(book, *size, NULL);
    ap_book_close(opened);
    if (opened) return book;
    free(book);
    return NULL;
}

/* ---- the planning process ---- */

enum { PIPE = 1 << 20, END_TIMEOUT = 3000 }; /* bytes; milliseconds that the planner has to end after SIGTERM */

static pid_t planner; /* its process id; 0: there is none */
static int planner_output = -1, planner_input = -1; /* our ends of a pipe and a socket; -1: closed */
static unsigned char *answer_text;                   /* received so far: answer_bytes of answer_space bytes */
static size_t answer_bytes, answer_space;

/* Starts the planning process and sends it the request. If this fails, poll_planner says so. */
static void start_planner(const char *request, const char *cache_path) {
    char *name = (char *)(uintptr_t)cache_path; /* not written to */
    char *const command[] = {AP_PYTHON, "-P", "-m", "antiphon.runtimes.auto", name, NULL};
    size_t remaining = strlen(request);
    if ((planner_output = ap_spawn(command, &planner, &planner_input)) < 0) return;
#ifdef F_SETPIPE_SZ
    fcntl(planner_output, F_SETPIPE_SZ, PIPE);
#endif
    fcntl(planner_output, F_SETFL, fcntl(planner_output, F_GETFL) | O_NONBLOCK);
    while (remaining) {
        ssize_t sent = send(planner_input, request, remaining, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) break;
        if (sent > 0) request += sent, remaining -= (size_t)sent;
    }
    if (!remaining) send(planner_input, "end\n", 4, MSG_NOSIGNAL);
}

/* From now on the planning process uses idle processors only. */
void ap_planner_lower_priority(void) {
    if (planner_input >= 0) send(planner_input, "lower\n", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Copies the first line of a text to `problem`; returns AP_NEVER. */
static int set_failure(const char *text, char *problem, size_t capacity) {
    snprintf(problem, capacity, "%s", text);
    problem[strcspn(problem, "\n")] = 0;
    return AP_NEVER;
}

/* Reads the planner's answer without waiting: AP_READY and its bytes from malloc, AP_NEVER and a problem, or AP_PLANNING. */
static int poll_planner(unsigned char **answer, uint64_t *bytes, char *problem, size_t capacity) {
    static const char failed[] = "failed\t";
    ssize_t count;
    if (planner_output < 0) return set_failure("the process that plans does not start", problem, capacity);
    do {
        if (answer_bytes + 1 >= answer_space) { /* + 1: room for a final zero */
            size_t space = answer_space ? 2 * answer_space : PIPE;
            unsigned char *larger = realloc(answer_text, space);
            if (!larger) return set_failure("out of memory", problem, capacity);
            answer_text = larger, answer_space = space;
        }
        count = read(planner_output, answer_text + answer_bytes, answer_space - answer_bytes - 1);
        if (count > 0) answer_bytes += (size_t)count;
    } while (count > 0 || (count < 0 && errno == EINTR));
    if (count < 0 && errno == EAGAIN) return AP_PLANNING;
    if (answer_text) answer_text[answer_bytes] = 0;
    if (answer_bytes > sizeof failed && !memcmp(answer_text, failed, sizeof failed - 1))
        return set_failure((char *)answer_text + sizeof failed - 1, problem, capacity);
    if (!answer_bytes) return set_failure("the process that plans ended without an answer", problem, capacity);
    *answer = answer_text, *bytes = answer_bytes;
    answer_text = NULL, answer_bytes = answer_space = 0;
    return AP_READY;
}

/* Ends the planning process, if there is one, and frees what was received of its answer. */
static void stop_planner(void) {
    const struct timespec pause = {0, 1000000}; /* 1 ms */
    int state = 0;
    if (planner_input >= 0) close(planner_input);
    if (planner_output >= 0) close(planner_output);
    planner_output = planner_input = -1;
    free(answer_text), answer_text = NULL, answer_bytes = answer_space = 0;
    if (planner <= 0) return;
    kill(planner, SIGTERM); /* it removes the file that it was writing */
    for (int turn = 0; turn < END_TIMEOUT; turn++) {
        if (waitpid(planner, &state, WNOHANG)) {
            planner = 0;
            return;
        }
        nanosleep(&pause, NULL);
    }
    kill(planner, SIGKILL);
    waitpid(planner, &state, 0);
    planner = 0;
}

/* ---- a background thread ---- */

/* NICE: of a thread with lower priority. SLICE: nanoseconds, short, so that it is preempted soon. STACK: bytes, instead
 * of the system's default of several MiB. */
enum { NICE = 10, SLICE = 100000, STACK = 1 << 20 };

struct ap_background {
    pthread_t thread;
    int has_thread;
    _Atomic int done;
    ap_pace pace;
    void (*work)(void *argument, ap_pace *pace);
    void *argument;
};

/* Lowers the scheduling priority of this thread, and (since Linux 6.12) shortens its slice. Where neither is allowed it runs as
 * other threads do. */
static void lower_priority(void) {
#if defined(__linux__) && defined(SYS_gettid) && defined(SYS_sched_setattr)
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice, deadline, period;
    } attributes = {.size = sizeof attributes, .nice = NICE, .slice = SLICE};
    pid_t me = (pid_t)syscall(SYS_gettid);
    if (syscall(SYS_sched_setattr, me, &attributes, 0) && setpriority(PRIO_PROCESS, (id_t)me, NICE)) return;
#endif
}

/* What a background thread runs. */
static void *run_in_background(void *argument) {
    ap_background *b = argument;
    lower_priority();
    b->pace.gentle = 1; /* ap_pause sleeps, so that the program's threads get this processor soon */
    ap_pause(&b->pace);
    b->work(b->argument, &b->pace);
    atomic_store_explicit(&b->done, 1, memory_order_release);
    return NULL;
}

/* Does work in a thread of low priority; if there can be no thread, at once and in this one. NULL: out of memory. */
ap_background *ap_background_begin(void (*work)(void *argument, ap_pace *pace), void *argument) {
    ap_background *b = calloc(1, sizeof *b);
    pthread_attr_t attributes;
    sigset_t all, before;
    if (!b) return NULL;
    b->work = work, b->argument = argument;
    sigfillset(&all);
    int blocked = !pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's threads handle its signals */
    if (blocked && !pthread_attr_init(&attributes)) {
        pthread_attr_setstacksize(&attributes, STACK);
        b->has_thread = !pthread_create(&b->thread, &attributes, run_in_background, b);
        pthread_attr_destroy(&attributes);
    }
    if (blocked) pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!b->has_thread) { /* at once, in this thread, without sleeping */
        work(argument, &b->pace);
        atomic_store(&b->done, 1);
    }
    return b;
}

int ap_background_done(const ap_background *b) { return atomic_load_explicit(&b->done, memory_order_acquire); }

/* Asks the work to stop, waits for its end, and frees its memory. */
void ap_background_end(ap_background *b) {
    if (!b) return;
    atomic_store(&b->pace.stop, 1);
    if (b->has_thread) pthread_join(b->thread, NULL);
    free(b);
}

/* ---- the one table of this job ---- */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* of ap_preload.table[0] */
static int table_closed;                                       /* no table may be installed any more */

/* Identifies a book; not cryptographic: against accidents, not attacks. Multiply-xorshift, four words side by side. */
void ap_book_digest(const unsigned char *bytes, uint64_t size, uint64_t words[4]) {
    for (int i = 0; i < 4; i++) words[i] = size + (uint64_t)i;
    for (uint64_t at = 0; at < size; at += 8) {
        uint64_t word = 0, *word_hash = &words[at / 8 % 4];
        memcpy(&word, bytes + at, size - at < 8 ? (size_t)(size - at) : 8);
        *word_hash = (*word_hash ^ word) * 0x9E3779B97F4A7C15u;
        *word_hash ^= *word_hash >> 29;
    }
}

/* Makes these bytes, from malloc, the table of the job, or frees them. True says that the book is good for this job. It
 * is not installed if there is a table already, or if none may be installed any more; that is no failure. */
int ap_auto_install_table(unsigned char *bytes, uint64_t size) {
    ap_state *p = &ap_preload;
    ap_table t = {.bytes = bytes, .size = size, .of_world = 1};
    ap_error error = {0, ""};
    t.book = ap_book_open(bytes, size, &error);
    /* a counter per page; + 1: calloc may return NULL for 0 of them */
    if (t.book && p->set.report) t.use = calloc(t.book->pages + 1ul, sizeof *t.use);
    int ok = t.book && t.book->ranks == (uint32_t)p->size && (t.use || !p->set.report) && !ap_contradicts_hosts(&t);
    pthread_mutex_lock(&table_lock);
    if (ok && !p->tables && !table_closed) {
        p->table[0] = t;
        p->tables = 1;
        t = (ap_table){0}; /* nothing to free below */
    }
    pthread_mutex_unlock(&table_lock);
    ap_book_close(t.book);
    free(t.use), free(t.bytes);
    return ok;
}

int ap_auto_has_table(void) {
    pthread_mutex_lock(&table_lock);
    int has = ap_preload.tables != 0;
    pthread_mutex_unlock(&table_lock);
    return has;
}

/* From now on no table is installed; returns whether there is one. */
int ap_auto_close_table(void) {
    pthread_mutex_lock(&table_lock);
    table_closed = 1;
    int has = ap_preload.tables != 0;
    pthread_mutex_unlock(&table_lock);
    return has;
}

/* ---- process 0: the state of planning ---- */

enum { DEFAULT_WAIT = 4 }; /* seconds */

ap_plan_summary ap_auto_summary;
char ap_auto_cache_path[AP_PATH];

static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER; /* of all variables below */
static int status;                          /* AP_PLANNING, AP_READY or AP_NEVER */
/* What process 0 contributes to a query, an allreduce that shows whether there is a table (preload_auto_switch.c). */
static uint64_t own_words[AP_QUERY_WORDS];

/* The answer of the planning process, while a background thread reads it. */
static struct {
    ap_background *background;
    int begun; /* the whole answer is here; a thread reads it, or has read it */
    unsigned char *answer;
    uint64_t bytes, size, digest[4]; /* bytes of the answer; bytes and digest of its book */
    ap_plan_summary summary;
    int ok; /* whether its book is undamaged and for this job (ap_auto_install_table) */
} reading;

/* The work of that thread: reads the answer, and makes its book the table. */
static void read_answer(void *unused, ap_pace *pace) {
    (void)unused;
    unsigned char *book = ap_auto_read_answer(reading.answer, reading.bytes, &reading.size, &reading.summary);
    free(reading.answer);
    if (book) ap_book_digest(book, reading.size, reading.digest);
    ap_pause(pace);
    reading.ok = book && ap_auto_install_table(book, reading.size);
}

/* Updates the status by the answer so far; called with answer_lock held. */
static void poll_answer(void) {
    if (status != AP_PLANNING) return;
    ap_plan_summary summary = {.how = "nothing"};
    if (!reading.begun) {
        int outcome = poll_planner(&reading.answer, &reading.bytes, summary.notes, sizeof summary.notes);
        if (outcome == AP_PLANNING) return;
        if (outcome == AP_READY) {
            reading.summary = summary, reading.begun = 1;
            pthread_mutex_unlock(&answer_lock); /* without a thread the answer is read right here, which takes table_lock */
            ap_background *background = ap_background_begin(read_answer, NULL);
            pthread_mutex_lock(&answer_lock);
            if ((reading.background = background)) return;
            free(reading.answer); /* out of memory: nobody reads it */
        }
        status = AP_NEVER;
    } else if (!reading.background || !ap_background_done(reading.background)) {
        return; /* still being read; NULL: another thread is just beginning that, above */
    } else {
        summary = reading.summary;
        ap_background_end(reading.background), reading.background = NULL;
        status = reading.ok ? AP_READY : AP_NEVER;
        own_words[AP_SIZE] = reading.size;
        memcpy(own_words + AP_DIGEST, reading.digest, sizeof reading.digest);
        if (!reading.ok) {
            snprintf(summary.notes, sizeof summary.notes, "what was planned is damaged, or not for these processes");
            snprintf(summary.how, sizeof summary.how, "nothing");
        }
    }
    own_words[AP_STATUS] = (uint64_t)status;
    ap_auto_summary = summary;
}

/* At process 0: writes what it contributes to a query, whether its planning has ended and which book came of it. */
void ap_auto_status(uint64_t words[AP_QUERY_WORDS]) {
    pthread_mutex_lock(&answer_lock);
    poll_answer();
    memcpy(words, own_words, sizeof own_words);
    pthread_mutex_unlock(&answer_lock);
}

/* Whether the job fills all processors of this host: then the planning process gets none, as most MPIs wait actively.
 * `facts`: of all processes (describe_process), this one first; they begin with the boot id, by which hosts differ. */
static int fills_host(const char *facts) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN), processes = 0;
    size_t boot = strcspn(facts, " ");
    for (int i = 0; i < ap_preload.size; i++) processes += !strncmp(facts, facts + (size_t)i * PROCESS_TEXT, boot + 1);
    return processes >= processors;
}

/* Process 0: waits for some seconds in MPI_Init, so that there may be plans from the first call on. */
static void wait_at_start(const char *facts) {
    const char *setting = getenv("ANTIPHON_AUTO_WAIT");
    const struct timespec pause = {0, 1000000}; /* 1 ms */
    double seconds = fills_host(facts) ? DEFAULT_WAIT : 0;
    if (setting && *setting) {
        char *end;
        double value = strtod(setting, &end);
        if (end == setting || (*end && strcmp(end, "s")) || !(value >= 0))
            ap_complain(ap_preload.problem, "ANTIPHON_AUTO_WAIT=%.60s is no number of seconds; %g is taken", setting, seconds);
        else
            seconds = value;
    }
    unsigned char *answer = NULL;
    uint64_t bytes = 0;
    ap_plan_summary summary = {.how = "nothing"};
    for (double end = ap_now() + seconds; ap_now() < end; nanosleep(&pause, NULL)) {
        status = poll_planner(&answer, &bytes, summary.notes, sizeof summary.notes);
        if (status != AP_PLANNING) break;
    }
    if (status == AP_READY) {
        ap_table t = {.of_world = 1};
        t.bytes = ap_auto_read_answer(answer, bytes, &t.size, &summary);
        summary.since = t.bytes != NULL; /* these plans serve from call 1 on, or never (0) */
        if (t.bytes)
            ap_preload.table[0] = t; /* its book is opened at all processes when MPI_Init shares the bytes (preload_init.c) */
        else
            status = AP_NEVER;
    }
    free(answer);
    if (status == AP_PLANNING) return;
    stop_planner();
    own_words[AP_STATUS] = (uint64_t)status;
    ap_auto_summary = summary;
}

/* Process 0: uses the table cached for this request, or starts the planning process. */
static void find_table(const char *facts) {
    ap_state *p = &ap_preload;
    uint64_t bytes = 0, size = 0;
    char *request = write_request(facts, p->size, ap_auto_cache_path);
    unsigned char *answer = request && ap_auto_cache_path[0] ? ap_read_trusted(ap_auto_cache_path, &bytes) : NULL;
    unsigned char *book = answer ? ap_auto_read_answer(answer, bytes, &size, &ap_auto_summary) : NULL;
    snprintf(ap_auto_summary.how, sizeof ap_auto_summary.how, "%s", book ? "kept" : "nothing");
    if (book) {
        p->table[0] = (ap_table){.bytes = book, .size = size, .of_world = 1};
        ap_auto_summary.since = 1;
    } else {
        memset(&ap_auto_summary, 0, sizeof ap_auto_summary);
        snprintf(ap_auto_summary.how, sizeof ap_auto_summary.how, "nothing");
        snprintf(ap_auto_summary.notes, sizeof ap_auto_summary.notes, "planning had not ended");
        if (request) start_planner(request, ap_auto_cache_path); /* if it fails, polling reports that */
        wait_at_start(facts);
    }
    free(answer), free(request);
}

/* Collective, in MPI_Init: takes the cached table, or begins to plan. False: MPI failed, or a process is out of
 * memory. */
int ap_auto_begin(void) {
    ap_state *p = &ap_preload;
    char own[PROCESS_TEXT] = "", *all = NULL;
    /* of process 0: the bytes of its table (0: none), and ap_auto_cache_path */
    struct { uint64_t size; char path[AP_PATH]; } cached = {0, ""};
    describe_process(own);
    if (!p->rank) all = malloc((size_t)p->size * PROCESS_TEXT);
    int ok = p->rank || all, all_ok = 0;
    if (PMPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) || !all_ok ||
        PMPI_Gather(own, PROCESS_TEXT, MPI_BYTE, all, PROCESS_TEXT, MPI_BYTE, 0, MPI_COMM_WORLD)) {
        free(all);
        return 0;
    }
    if (!p->rank) {
        find_table(all);
        cached.size = p->table[0].size;
        memcpy(cached.path, ap_auto_cache_path, sizeof cached.path);
    }
    free(all);
    /* `certain`: all processes come, as all have this library, so the wait needs no timeout. A process that waits
     * sleeps, so that the planning process has the processors. */
    if (ap_wait_for_world(/* certain */ 1)) return 0;
    if (PMPI_Bcast(&cached, (int)sizeof cached, MPI_BYTE, 0, MPI_COMM_WORLD)) return 0;
    memcpy(ap_auto_cache_path, cached.path, sizeof ap_auto_cache_path);
    if (cached.size) { /* there is a table: MPI_Init then broadcasts its bytes (preload_init.c) */
        p->table[0].size = cached.size, p->table[0].of_world = 1, p->tables = 1;
    } else {
        p->automatic = 1;
    }
    return 1;
}

void ap_auto_end_planner(void) {
    if (reading.background) ap_background_end(reading.background), reading.background = NULL;
    if (!ap_preload.rank) stop_planner();
}
