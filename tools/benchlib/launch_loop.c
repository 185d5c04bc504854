/* Calls cuLaunchKernel over and over: what a launch costs without anything around it. */
#include <time.h>

typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

/* Nanoseconds a launch; the driver's error code, negated, if one fails. */
double launch_loop(Launch launch, void* function, unsigned threads, void* stream, void** parameters, int count) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; ++i) {
        const int code = launch(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters, 0);
        if (code) return -code;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count;
}
