/* Runs a kernel's host code on arrays from standard input, and writes them to standard output; ENTRY is its symbol. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void ENTRY(const void* block, const int64_t* grid, int64_t begin, int64_t end);

static void* read_bytes(size_t size) {
    void* data = aligned_alloc(64, (size / 64 + 1) * 64);
    if (!data || fread(data, 1, size, stdin) != size) exit(2);
    return data;
}

static int64_t read_number(void) { return *(int64_t*)read_bytes(sizeof(int64_t)); }

int main(void) {
    static _Alignas(16) unsigned char block[4096];
    void* arrays[64];
    size_t sizes[64], used = 0;
    int64_t array_count = 0, grid[3];
    for (int i = 0; i < 3; ++i) grid[i] = read_number();
    for (int64_t left = read_number(); left > 0; --left) {
        const int64_t is_array = read_number();
        size_t size = (size_t)read_number();
        unsigned char* data = read_bytes(size);
        if (is_array) {
            arrays[array_count] = data;
            sizes[array_count] = size;
            data = (unsigned char*)&arrays[array_count++];
            size = sizeof(void*);
        }
        used = (used + size - 1) / size * size;
        for (size_t i = 0; i < size; ++i) block[used++] = data[i];
    }
    ENTRY(block, grid, 0, grid[0] * grid[1] * grid[2]);
    for (int64_t i = 0; i < array_count; ++i) fwrite(arrays[i], 1, sizes[i], stdout);
    return 0;
}
