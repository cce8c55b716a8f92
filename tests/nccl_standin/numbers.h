/* Types and operators by NCCL's numbers; values must be whole and small enough for a double. */
#ifndef STANDIN_NUMBERS_H
#define STANDIN_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

size_t number_size(int type); /* 0: there is no such type */
double number_at(const void *data, size_t i, int type);
void number_put(void *data, size_t i, int type, double value);
double number_both(double x, double y, int op);

#endif
