/* The fuzzer where there is no libFuzzer: seeds from a folder, each turn one of them or one that was made before, changed by
 * the same mutator. It sees no coverage, so it keeps by chance. The same seed does the same. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

enum { MOST = 1 << 16, KEPT = 512 };

typedef struct {
    uint8_t *bytes;
    size_t size;
} input;

static input seeds[KEPT], made[KEPT];
static size_t seed_count, made_count;
static uint64_t state;

static uint32_t draw(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % (below ? below : 1));
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most) {
    if (!size || (size < most && !draw(4))) return data[size] = (uint8_t)draw(256), size + 1;
    if (!draw(8)) return 1 + draw(size);
    data[draw(size)] = (uint8_t)draw(256);
    return size;
}

static input read_file(const char *path) {
    input one = {malloc(MOST), 0};
    FILE *from = fopen(path, "rb");
    if (!from || !one.bytes) exit(2);
    one.size = fread(one.bytes, 1, MOST, from);
    fclose(from);
    return one;
}

/* If this one ends the process, it is what to look at. */
static void try(const input *one, const char *last) {
    FILE *to = fopen(last, "wb");
    if (!to || fwrite(one->bytes, 1, one->size, to) != one->size || fclose(to)) exit(2);
    LLVMFuzzerTestOneInput(one->bytes, one->size);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

int main(int count, char **arguments) {
    if (count == 2) { /* one file, run once: what a crash has left */
        input one = read_file(arguments[1]);
        LLVMFuzzerTestOneInput(one.bytes, one.size);
        free(one.bytes);
        return 0;
    }
    if (count != 5) return fprintf(stderr, "usage: %s FILE | %s SEEDS EXECUTIONS SEED LAST\n", arguments[0], arguments[0]), 2;
    struct dirent **names = NULL;
    int found = scandir(arguments[1], &names, NULL, by_name);
    for (int i = 0; i < found; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", arguments[1], names[i]->d_name);
        if (names[i]->d_name[0] != '.' && seed_count < KEPT) seeds[seed_count++] = read_file(path);
        free(names[i]);
    }
    free(names);
    if (!seed_count) return fprintf(stderr, "%s: no seeds\n", arguments[1]), 2;
    uint64_t executions = strtoull(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10) * 2 + 1;
    for (size_t i = 0; i < seed_count; i++) try(&seeds[i], arguments[4]);
    static uint8_t bytes[MOST];
    for (uint64_t i = 0; i < executions; i++) {
        const input *from = &seeds[draw(seed_count)];
        if (draw(3) && made_count) from = &made[draw(made_count)];
        memcpy(bytes, from->bytes, from->size);
        size_t size = LLVMFuzzerCustomMutator(bytes, from->size, MOST, draw(UINT32_MAX));
        try(&(input){bytes, size}, arguments[4]);
        if (!draw(16)) {
            input *place = &made[made_count < KEPT ? made_count++ : draw(KEPT)];
            free(place->bytes);
            if (!(place->bytes = malloc(size + 1))) exit(2);
            memcpy(place->bytes, bytes, size), place->size = size;
        }
    }
    for (size_t i = 0; i < KEPT; i++) free(seeds[i].bytes), free(made[i].bytes);
    fprintf(stderr, "Done %llu runs\n", (unsigned long long)executions);
    return 0;
}
