/* MPI's built-in types and operators, and which of the engine's they are. */
#include <string.h>

#include "preload.h"

typedef struct {
    MPI_Datatype handle;
    ap_kind_of_data data;
    int used;
} slot;

enum { SLOTS = 512 };

static slot known[SLOTS];

static slot *slot_of(MPI_Datatype handle) {
    uint64_t key = (uint64_t)(uintptr_t)handle;
    uint32_t at = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 55);
    while (known[at].used && known[at].handle != handle) at = (at + 1) % SLOTS;
    return &known[at];
}

/* 's' and 'u': whole numbers with and without a sign, 'f': floating, 'b': bfloat16; 'o': others, which plans only move. */
static int engine_type(char class, int size) {
    static const int whole[2][9] = {{-1, AP_INT8, AP_INT16, -1, AP_INT32, -1, -1, -1, AP_INT64},
                                    {-1, AP_UINT8, AP_UINT16, -1, AP_UINT32, -1, -1, -1, AP_UINT64}};
    if (size < 1 || size > 8) return -1;
    if (class == 's' || class == 'u') return whole[class == 'u'][size];
    if (class == 'f') return size == 2 ? AP_FLOAT16 : size == 4 ? AP_FLOAT32 : size == 8 ? AP_FLOAT64 : -1;
    return class == 'b' && size == 2 ? AP_BFLOAT16 : -1;
}

static void learn(MPI_Datatype handle, char class) {
    int size = 0;
    MPI_Aint low = 0, extent = 0;
    if (handle == MPI_DATATYPE_NULL) return;
    slot *s = slot_of(handle);
    if (s->used || PMPI_Type_size(handle, &size) || size <= 0 || PMPI_Type_get_extent(handle, &low, &extent)) return;
    s->used = 1, s->handle = handle;
    s->data = (ap_kind_of_data){.size = size, .type = engine_type(class, size), .plain = low == 0 && extent == size};
}

/* Those that an MPI has as variables cannot stand in a table that is made when the program is compiled. */
static void learn_c(void) {
    const MPI_Datatype with_sign[] = {MPI_SIGNED_CHAR, MPI_SHORT,   MPI_INT,     MPI_LONG,    MPI_LONG_LONG_INT,
                                      MPI_INT8_T,      MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_AINT,
                                      MPI_OFFSET,      MPI_COUNT};
    const MPI_Datatype without[] = {MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED,  MPI_UNSIGNED_LONG,
                                    MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T,   MPI_UINT16_T,  MPI_UINT32_T, MPI_UINT64_T};
    const MPI_Datatype floating[] = {MPI_FLOAT, MPI_DOUBLE};
    const MPI_Datatype others[] = {MPI_CHAR, MPI_WCHAR, MPI_PACKED, MPI_BYTE, MPI_C_BOOL, MPI_LONG_DOUBLE, MPI_C_COMPLEX,
                                   MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_FLOAT_INT, MPI_DOUBLE_INT,
                                   MPI_LONG_INT, MPI_SHORT_INT, MPI_2INT, MPI_LONG_DOUBLE_INT};
    for (size_t i = 0; i < sizeof with_sign / sizeof *with_sign; i++) learn(with_sign[i], 's');
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) learn(without[i], 'u');
    for (size_t i = 0; i < sizeof floating / sizeof *floating; i++) learn(floating[i], 'f');
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) learn(others[i], 'o');
#ifdef MPIX_C_FLOAT16
    learn(MPIX_C_FLOAT16, 'f');
#endif
#ifdef MPIX_BFLOAT16
    learn(MPIX_BFLOAT16, 'b');
#endif
}

/* Which of these there are depends on the compiler that MPI was built with. C++ has its own names for bool and complex
 * numbers alone, which are never combined here. */
static void learn_fortran(void) {
#ifdef MPI_INTEGER
    learn(MPI_INTEGER, 's');
    learn(MPI_REAL, 'f');
    learn(MPI_DOUBLE_PRECISION, 'f');
    learn(MPI_CHARACTER, 'o');
    learn(MPI_LOGICAL, 'o');
    learn(MPI_COMPLEX, 'o');
    learn(MPI_DOUBLE_COMPLEX, 'o');
#endif
#ifdef MPI_INTEGER1
    learn(MPI_INTEGER1, 's');
#endif
#ifdef MPI_INTEGER2
    learn(MPI_INTEGER2, 's');
#endif
#ifdef MPI_INTEGER4
    learn(MPI_INTEGER4, 's');
#endif
#ifdef MPI_INTEGER8
    learn(MPI_INTEGER8, 's');
#endif
#ifdef MPI_REAL2
    learn(MPI_REAL2, 'f');
#endif
#ifdef MPI_REAL4
    learn(MPI_REAL4, 'f');
#endif
#ifdef MPI_REAL8
    learn(MPI_REAL8, 'f');
#endif
}

void ap_types_begin(void) {
    MPI_Errhandler old[2];
    MPI_Comm where[2] = {MPI_COMM_WORLD, MPI_COMM_SELF}; /* a type that this MPI lacks may be an error there */
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_get_errhandler(where[i], &old[i]);
        PMPI_Comm_set_errhandler(where[i], MPI_ERRORS_RETURN);
    }
    learn_c();
    learn_fortran();
    for (int i = 0; i < 2; i++) {
        PMPI_Comm_set_errhandler(where[i], old[i]);
        PMPI_Errhandler_free(&old[i]);
    }
}

int ap_type_of(MPI_Datatype type, ap_kind_of_data *data) {
    const slot *s = slot_of(type);
    if (s->used) {
        *data = s->data;
        return 1;
    }
    *data = (ap_kind_of_data){.type = -1};
    return type != MPI_DATATYPE_NULL && !PMPI_Type_size_x(type, &data->size) && data->size >= 0;
}

int ap_is_built_in(MPI_Datatype type) { return slot_of(type)->used; }

int ap_operator_of(MPI_Op op) {
    if (op == MPI_SUM) return AP_SUM;
    if (op == MPI_PROD) return AP_PROD;
    if (op == MPI_MAX) return AP_MAX;
    return op == MPI_MIN ? AP_MIN : -1;
}
