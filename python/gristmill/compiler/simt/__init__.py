"""The CUDA lowering of a kernel executed on the CPU, thread by thread, with every access checked."""
