// What the fake driver calls its errors.
#pragma once

#include <map>

inline int get_error_name(int code, const char** text) {
    static const std::map<int, const char*> names{
        {1, "CUDA_ERROR_INVALID_VALUE"},     {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},     {400, "CUDA_ERROR_INVALID_HANDLE"},
        {100, "CUDA_ERROR_NO_DEVICE"},       {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {218, "CUDA_ERROR_INVALID_PTX"},     {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
    const auto found = names.find(code);
    *text = found == names.end() ? nullptr : found->second;
    return found == names.end();
}

inline int get_error_string(int, const char** text) {
    *text = "said the stub";
    return 0;
}
