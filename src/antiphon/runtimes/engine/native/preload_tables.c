/* The tables of a job: process 0 reads those that ANTIPHON_TABLE names, separated by colons.
 *
 * Role: the Python that built this library compiles a table, proves its programs, and stores the result beside the library.
 *   That is a book, or several, one behind the other: for the intact machine, then for each failure that the table has plans
 *   for. The name of the file is made of what the table holds, so a table that was read once is found again without Python;
 *   the file is trusted where it and its folder belong to this user (or root) and nobody else may write there.
 *   AP_PACKAGE is the folder of that Python's package antiphon, AP_PYTHON its path (preload.h).
 * Messages: %.150s cuts paths so that a message fits ap_error.text.
 * Threading: one thread, in MPI_Init; ap_read_trusted, ap_file_digest and ap_spawn keep no state and may be called by any.
 * Ownership: bytes that are returned are from malloc, and the caller's; a book uses the bytes of its table where they are.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "preload.h"
#include "sha256.h"
#include "transport.h"

/* Of reading or compiling a table: the limit, and after how long a message is printed. */
enum { COMPILE_SECONDS = 600, QUIET_SECONDS = 2 };
enum { HEX_DIGEST = 65 }; /* bytes of a SHA-256 as text: 64 digits and the end */

extern char **environ;

typedef struct {
    unsigned char *bytes; /* from malloc */
    size_t size, space;   /* bytes in use, and allocated */
} buffer;

/* Reads to the end of a file or pipe, behind what `out` holds; false if that fails or takes longer than `seconds`. */
static int read_all(int file, double seconds, buffer *out) {
    const double end = ap_now() + seconds;
    for (;;) {
        if (out->size == out->space) {
            enum { FIRST_SPACE = 1 << 16 }; /* as much as a pipe holds */
            size_t space = out->space ? 2 * out->space : FIRST_SPACE;
            unsigned char *larger = realloc(out->bytes, space);
            if (!larger) return 0;
            out->bytes = larger, out->space = space;
        }
        double remaining = end - ap_now();
        struct pollfd ready = {file, POLLIN, 0};
        if (remaining <= 0) return 0;
        if (poll(&ready, 1, (int)(1000 * remaining) + 1) < 0 && errno != EINTR) return 0; /* milliseconds, rounded up */
        if (!ready.revents) continue;
        ssize_t count_read = read(file, out->bytes + out->size, out->space - out->size);
        if (count_read == 0) return 1;
        if (count_read < 0 && errno != EINTR && errno != EAGAIN) return 0;
        if (count_read > 0) out->size += (size_t)count_read;
    }
}

/* Whether this user or root owns a file or folder (`kind`: S_IFREG or S_IFDIR), and no other user may write to it. */
static int is_trusted(const struct stat *s, mode_t kind) {
    return (s->st_mode & S_IFMT) == kind && (s->st_uid == geteuid() || s->st_uid == 0) && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

/* Reads a whole file; `trusted`: only if it is trusted. From malloc; NULL and an error (`error` may be NULL). */
static unsigned char *read_file(const char *path, int trusted, uint64_t *size, ap_error *error) {
    buffer all = {NULL, 0, 0};
    struct stat s;
    /* O_NONBLOCK: opening a named pipe, which is not trusted, must not wait for its writer */
    int file = open(path, O_RDONLY | O_CLOEXEC | (trusted ? O_NOFOLLOW | O_NONBLOCK : 0));
    int readable = file >= 0;
    if (trusted) readable = readable && !fstat(file, &s) && is_trusted(&s, S_IFREG);
    if (readable && read_all(file, COMPILE_SECONDS, &all)) {
        close(file);
        *size = all.size;
        return all.bytes;
    }
    ap_fail(error, AP_INVALID, "%.150s: %s", path, file < 0 ? strerror(errno) : "cannot be read");
    if (file >= 0) close(file);
    free(all.bytes);
    return NULL;
}

/* ---- the name under which a compiled table is stored ---- */

/* Two 64-bit hashes of the same bytes: together 128 bits, so that different code has different names. */
typedef struct {
    uint64_t fnv;            /* FNV-1a */
    uint64_t multiplicative; /* by 2^64 / golden ratio */
} hashes;
static const uint64_t FNV_BASIS = 0xCBF29CE484222325u, FNV_PRIME = 0x100000001B3u, GOLDEN = 0x9E3779B97F4A7C15u;

static void mix_bytes(hashes *hash, const void *data, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        hash->fnv = (hash->fnv ^ p[i]) * FNV_PRIME;
        hash->multiplicative = (hash->multiplicative + p[i] + 1) * GOLDEN;
        hash->multiplicative ^= hash->multiplicative >> 29;
    }
}

/* Adds the path, size and time of change of a file. */
static void mix_file(hashes *hash, const char *path) {
    struct stat s;
    if (stat(path, &s)) return;
    int64_t facts[3] = {(int64_t)s.st_size, (int64_t)s.st_mtim.tv_sec, (int64_t)s.st_mtim.tv_nsec};
    mix_bytes(hash, path, strlen(path));
    mix_bytes(hash, facts, sizeof facts);
}

/* Order and selection for scandir. */
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_python(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 3 && !strcmp(d->d_name + n - 3, ".py");
}

/* Adds the Python files of a folder to the hash. */
static void mix_folder(hashes *hash, const char *folder) {
    struct dirent **names = NULL;
    char path[PATH_MAX];
    int count = scandir(folder, &names, is_python, by_name);
    for (int i = 0; i < count; i++) {
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name) < (int)sizeof path) mix_file(hash, path);
        free(names[i]);
    }
    free(names);
}

/* Writes to `path` where the book of a table is stored beside this library, named by hashes of the table and of the compiling
 * code; "": nowhere. */
static void stored_path(const unsigned char *table, uint64_t size, char *path, size_t capacity) {
    Dl_info self;
    hashes hash = {FNV_BASIS, GOLDEN};
    char library[PATH_MAX], digest[HEX_DIGEST];
    path[0] = 0;
    if (!dladdr(stored_path, &self) || !self.dli_fname || !realpath(self.dli_fname, library)) return;
    char *slash = strrchr(library, '/');
    if (!slash) return;
    *slash = 0;
    ap_sha256(table, (size_t)size, digest);
    /* what makes programs of a plan and proves them: a newer Antiphon compiles tables again */
    static const char *const folders[] = {"/lower", "/core", "/core/interpret", "/core/messages", "/core/program",
                                          "/core/serialize", "/core/transform", "/core/verify", "/runtimes/serve"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char folder[PATH_MAX];
        if (snprintf(folder, sizeof folder, "%s%s", AP_PACKAGE, folders[i]) < (int)sizeof folder) mix_folder(&hash, folder);
    }
    if (snprintf(path, capacity, "%s/books/%s-%016llx%016llx.book", library, digest, (unsigned long long)hash.fnv,
                 (unsigned long long)hash.multiplicative) >= (int)capacity)
        path[0] = 0;
}

/* ---- compiling ---- */

/* The environment for a child process, from malloc: without variables of this MPI process, with the package on PYTHONPATH.
 * `search`: memory for that variable, which must live as long as the environment. */
static char **make_environment(char *search, size_t capacity) {
    static const char *const dropped[] = {"LD_PRELOAD=", "PYTHONPATH=", "PMI_",  "PMIX_", "OMPI_",
                                       "PRTE_",       "HYDRA_",      "MPIR_", "MPI_",  "ANTIPHON_REPORT="};
    size_t count = 0, passed = 0;
    while (environ && environ[count]) count++;
    char **variables = malloc((count + 2) * sizeof *variables); /* one more is PYTHONPATH, and a NULL ends them */
    if (!variables) return NULL;
    const char *old = getenv("PYTHONPATH");
    for (size_t i = 0; i < count; i++) {
        int passes_on = 1;
        for (size_t k = 0; k < sizeof dropped / sizeof *dropped; k++)
            passes_on &= strncmp(environ[i], dropped[k], strlen(dropped[k])) != 0;
        if (passes_on) variables[passed++] = environ[i];
    }
    char package[PATH_MAX] = AP_PACKAGE; /* .../antiphon: Python looks for it one level up */
    char *slash = strrchr(package, '/');
    if (slash) *slash = 0;
    int length = snprintf(search, capacity, "PYTHONPATH=%s%s%s", package, old && *old ? ":" : "", old ? old : "");
    if (slash && length < (int)capacity) variables[passed++] = search;
    variables[passed] = NULL;
    return variables;
}

/* See preload.h. Returns a descriptor to read its output from, or -1; *input: a socket to its input, if not NULL. */
int ap_spawn(char *const *command, pid_t *child, int *input) {
    int ends[2], in[2] = {-1, -1}, code = 0; /* a pipe from the child's output; sockets to its input: the child's end, ours */
    size_t capacity = 1 << 17; /* of PYTHONPATH: the longest string that Linux passes to a program */
    char *search = malloc(capacity), **variables = search ? make_environment(search, capacity) : NULL;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    if (!variables || pipe2(ends, O_CLOEXEC)) {
        free(variables), free(search);
        return -1;
    }
    if (input && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in)) {
        close(ends[0]), close(ends[1]);
        free(variables), free(search);
        return -1;
    }
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    if (input)
        posix_spawn_file_actions_adddup2(&files, in[0], 0);
    else
        posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    code = posix_spawnp(child, command[0], &files, &attributes, command, variables);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    free(variables), free(search);
    close(ends[1]);
    if (input) {
        close(in[0]);
        *input = in[1];
        if (code) close(in[1]);
    }
    if (!code) return ends[0];
    close(ends[0]);
    errno = code;
    return -1;
}

static int announced; /* whether the message was printed, or is not to be */

/* Reads the answer of the compiling process, for which the program waits. QUIET_SECONDS after the first table was begun, a message
 * is printed, once. False: the answer is incomplete. */
static int read_patiently(int file, const char *path, buffer *answer) {
    static double start; /* of the first table; 0: not begun */
    if (!start) start = ap_now();
    if (!announced && read_all(file, start + QUIET_SECONDS - ap_now(), answer)) return 1;
    if (!announced && ap_now() >= start + QUIET_SECONDS) {
        fprintf(stderr, "antiphon: tables are being compiled, now %.150s; `antiphon build mpi --table FILE` does that before "
                "a job\n", path);
        announced = 1;
    }
    return read_all(file, COMPILE_SECONDS, answer);
}

/* Compiles a table by Python, which stores the book at `path_to_store` if it can. From malloc; NULL and an error. Its answer is
 * BOOK_MARK and the bytes, or ERROR_MARK and a message. -P: Python must not import modules of the job's folder. */
#define BOOK_MARK "book\n"
#define ERROR_MARK "error "
static unsigned char *compile_table(const char *path, const char *path_to_store, uint64_t *size, ap_error *error) {
    char *table = (char *)(uintptr_t)path, *name = (char *)(uintptr_t)path_to_store; /* not written to */
    char *const command[] = {AP_PYTHON, "-P", "-m", "antiphon.runtimes.serve.files", table, name, NULL};
    buffer answer = {NULL, 0, 0};
    pid_t child = 0;
    int state = 0, output = ap_spawn(command, &child, /* input */ NULL);
    if (output < 0) {
        ap_fail(error, AP_INVALID, "%.150s: %s does not start: %s", path, AP_PYTHON, strerror(errno));
        return NULL;
    }
    int complete = read_patiently(output, path, &answer);
    close(output);
    if (!complete) kill(child, SIGKILL);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) { /* the answer says whether it succeeded */
    }
    const size_t book_mark = strlen(BOOK_MARK), error_mark = strlen(ERROR_MARK);
    if (complete && answer.size > book_mark && !memcmp(answer.bytes, BOOK_MARK, book_mark)) {
        *size = answer.size - book_mark;
        memmove(answer.bytes, answer.bytes + book_mark, (size_t)*size);
        return answer.bytes;
    }
    while (answer.size && answer.bytes[answer.size - 1] == '\n') answer.size--;
    if (complete && answer.size > error_mark && !memcmp(answer.bytes, ERROR_MARK, error_mark)) {
        enum { MOST_SHOWN = 240 }; /* bytes of a message that fit ap_error.text */
        const size_t length = answer.size - error_mark;
        ap_fail(error, AP_INVALID, "%.*s", (int)(length < MOST_SHOWN ? length : MOST_SHOWN), answer.bytes + error_mark);
    } else
        ap_fail(error, AP_INVALID, "%.150s: it could not be compiled; python -m antiphon.runtimes.serve.files %.50s says why",
                path, path);
    free(answer.bytes);
    return NULL;
}

/* Whether these are books, one behind the other, and nothing else. */
static int are_valid_books(const unsigned char *bytes, uint64_t size) {
    for (uint64_t at = 0, length; at < size; at += length) {
        length = ap_book_bytes(bytes + at, size - at);
        ap_book *book = length ? ap_book_open(bytes + at, length, NULL) : NULL;
        if (!book) return 0;
        ap_book_close(book);
    }
    return size > 0;
}

/* The bytes of a file, from malloc; NULL unless both the file and its folder are trusted. */
unsigned char *ap_read_trusted(const char *path, uint64_t *size) {
    char folder[PATH_MAX];
    struct stat s;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash) return NULL;
    *slash = 0;
    if (lstat(folder, &s) || !is_trusted(&s, S_IFDIR)) return NULL;
    return read_file(path, /* trusted */ 1, size, NULL);
}

/* The stored book of a table; NULL if there is none that is trusted and valid. */
static unsigned char *read_stored(const char *path, uint64_t *size) {
    unsigned char *bytes = ap_read_trusted(path, size);
    if (bytes && are_valid_books(bytes, *size)) return bytes;
    free(bytes);
    return NULL;
}

/* The SHA-256 of a regular file; false if there is none. */
int ap_file_digest(const char *path, char digest[HEX_DIGEST]) {
    struct stat s;
    uint64_t size = 0;
    if (stat(path, &s) || !S_ISREG(s.st_mode)) return 0;
    unsigned char *bytes = read_file(path, /* trusted */ 0, &size, NULL);
    if (bytes) ap_sha256(bytes, (size_t)size, digest);
    free(bytes);
    return bytes != NULL;
}

/* At process 0: the books of a table, stored or compiled now, from malloc; NULL and an error. */
static unsigned char *table_bytes(const char *path, uint64_t *size, ap_error *error) {
    char full[PATH_MAX], stored[PATH_MAX];
    unsigned char *bytes = NULL;
    if (!realpath(path, full)) {
        ap_fail(error, AP_INVALID, "%.150s: %s", path, strerror(errno));
        return NULL;
    }
    bytes = read_file(full, /* trusted */ 0, size, error);
    if (!bytes) return NULL;
    stored_path(bytes, *size, stored, sizeof stored);
    free(bytes);
    bytes = read_stored(stored, size);
    return bytes ? bytes : compile_table(full, stored, size, error);
}

/* Compiles a table before a job, for `antiphon build mpi --table`; AP_OK once its book is stored. */
int ap_table_store(const char *path, ap_error *error) {
    char stored[PATH_MAX] = "";
    uint64_t size = 0;
    announced = 1; /* no message: the caller asked for compiling */
    unsigned char *book = table_bytes(path, &size, error); /* compiles it, and stores the book if that is possible */
    if (!book) return error->code;
    free(book);
    /* the table once more, from whose content the name of the stored book is made */
    unsigned char *table = read_file(path, /* trusted */ 0, &size, error);
    if (!table) return error->code;
    stored_path(table, size, stored, sizeof stored);
    free(table);
    book = read_stored(stored, &size);
    /* it was compiled, but not stored, or where others may write */
    if (!book) return ap_fail(error, AP_INVALID, "%.200s: it cannot be kept beside the library", path);
    free(book);
    return AP_OK;
}

/* ---- the tables of this job ---- */

/* Opens a copy of one book of the table at `position` of the list. 1: it is usable, and *table is set and owns the copy; 0: it is
 * not, and `problem` says why. */
static uint32_t open_book(const char *path, int position, const unsigned char *bytes, uint64_t size, ap_table *table,
                          char problem[AP_TEXT]) {
    const int world = ap_preload.size;
    ap_error error = {AP_MEMORY, "out of memory"};
    unsigned char *copy = malloc(size ? size : 1);
    if (copy) memcpy(copy, bytes, size);
    ap_book *book = copy ? ap_book_open(copy, size, &error) : NULL;
    if (!book) {
        ap_complain(problem, "ANTIPHON_TABLE: %.150s: %s", path, error.text);
    } else if (position == 0 && book->ranks != (uint32_t)world) { /* further tables serve groups of other sizes */
        ap_complain(problem, "ANTIPHON_TABLE: %.150s is for %u ranks; this job has %d", path, book->ranks, world);
    } else {
        *table = (ap_table){
            .book = book, .bytes = copy, .size = size, .position = position, .of_world = book->ranks == (uint32_t)world};
        return 1;
    }
    ap_book_close(book);
    free(copy);
    return 0;
}

/* Reads the books of the table at `position` of the list into at most `space` elements from `table` on; returns the
 * number of usable ones. */
static uint32_t read_table(const char *path, int position, ap_table *table, uint32_t space, char problem[AP_TEXT]) {
    ap_error error = {0, ""};
    uint64_t size = 0;
    uint32_t books = 0;
    unsigned char *bytes = table_bytes(path, &size, &error);
    if (!bytes) ap_complain(problem, "ANTIPHON_TABLE: %s", error.text);
    for (uint64_t at = 0, length; bytes && at < size; at += length) { /* at: where the next book begins */
        length = ap_book_bytes(bytes + at, size - at);
        if (!length) length = size - at; /* not a book: the message of open_book says what is wrong with it */
        if (books == space)
            ap_complain(problem, "ANTIPHON_TABLE: %.150s has plans for more than %d failures", path, AP_MAX_BOOKS - 1);
        else
            books += open_book(path, position, bytes + at, length, table + books, problem);
    }
    free(bytes);
    return books;
}

/* Reads the usable books of all tables of a list; returns their number. The first table must be for all processes. */
uint32_t ap_read_tables(const char *list, ap_table table[AP_MAX_BOOKS], char problem[AP_TEXT]) {
    uint32_t tables = 0;
    if (!list || !*list) {
        ap_complain(problem, "ANTIPHON_TABLE is not set");
        return 0;
    }
    char *copy = strdup(list);
    int position = *list == ':'; /* a list that begins with ":" has no first table, which would be that of the world */
    for (char *at = copy, *next; at; at = next) {
        next = strchr(at, ':');
        if (next) *next++ = 0;
        if (!*at) continue; /* an empty name, as in "a::b" */
        if (position == AP_MAX_TABLES) {
            ap_complain(problem, "ANTIPHON_TABLE names more than %d tables", AP_MAX_TABLES);
            break;
        }
        tables += read_table(at, position++, &table[tables], AP_MAX_BOOKS - tables, problem);
    }
    free(copy);
    if (!tables) ap_complain(problem, "ANTIPHON_TABLE names no table");
    return tables;
}

/* What ANTIPHON_DEAD names now: 0: nothing is dead; i + 1: something is, and the book of table i is for that;
 * AP_NO_BOOK: no book is. */
int ap_find_failure(void) {
    char text[AP_PATH] = "";
    const char *setting = ap_preload.set.dead; /* a name, or @ and the file that holds it */
    if (*setting == '@') {
        FILE *file = fopen(setting + 1, "r"); /* a missing file names nothing */
        if (file) text[fread(text, 1, sizeof text - 1, file)] = 0, fclose(file);
    } else {
        snprintf(text, sizeof text, "%s", setting);
    }
    char *name = text + strspn(text, ", \t\r\n");
    size_t length = strlen(name);
    while (length && strchr(", \t\r\n", name[length - 1])) length--;
    if (!length) return 0;
    for (uint32_t i = 0; i < ap_preload.tables; i++) {
        const ap_book *book = ap_preload.table[i].book;
        if (book->dead_bytes == length && !memcmp(book->dead, name, length)) return (int)i + 1;
    }
    return AP_NO_BOOK;
}

/* Whether a table has ranks on one host that are on several hosts here. */
int ap_contradicts_hosts(const ap_table *t) {
    const int32_t *table_host = t->book->host, *real_host = ap_preload.host;
    if (!table_host || !t->of_world || ap_preload.set.any_hosts) return 0;
    for (int i = 0; i < ap_preload.size; i++)
        for (int j = 0; j < i; j++)
            /* real_host is NULL where the hosts could not be found: then a table that relies on them is not used */
            if (!real_host || (table_host[i] == table_host[j] && real_host[i] != real_host[j])) return 1;
    return 0;
}
