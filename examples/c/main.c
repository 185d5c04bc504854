#include <stdio.h>

#include "rowops.h"

enum { ROWS = 2, COLUMNS = 3, PITCH = 4 };

static int check(rowops_status status) {
    if (status != ROWOPS_OK) fprintf(stderr, "%s\n", rowops_error());
    return status != ROWOPS_OK;
}

int main(void) {
    float x[ROWS][COLUMNS] = {{1, 2, 3}, {4, 5, 6}};
    float y[ROWS][PITCH] = {{10, 20, 30, -1}, {40, 50, 60, -1}};
    const int64_t shape[] = {ROWS, COLUMNS}, strides[] = {PITCH, 1};

    /* Once: by name, with dtypes and constants, or without to let each call decide. */
    const rowops_dtype f32[] = {ROWOPS_F32};
    const rowops_constant block[] = {{"BLOCK", "256"}};
    const rowops_kernel* axpy;
    if (check(rowops_find("axpy", f32, 1, block, 1, &axpy))) return 1;

    /* For arrays of a GPU: `rowops_place place = {ROWOPS_CUDA, 0, stream, NULL};` in the place of the last NULL. */
    const rowops_argument arguments[] = {rowops_dense(x, ROWOPS_F32, 2, shape),
                                         rowops_strided(y, ROWOPS_F32, 2, shape, strides), rowops_real(0.5)};
    if (check(rowops_launch(axpy, arguments, 3, NULL))) return 1;

    printf("%s: %zu kernel, %s\n", rowops_version(), rowops_count(), rowops_name(0));
    for (int row = 0; row < ROWS; ++row) printf("%g %g %g %g\n", y[row][0], y[row][1], y[row][2], y[row][3]);
    return 0;
}
