// A DLPack exchange API without a framework: tests register the tensor of each object through ctypes.
#include <map>

#include "dlpack.hpp"

namespace {

std::map<void*, gristmill::dlpack::Tensor> tensors;

int tensor_from_object(void* object, gristmill::dlpack::Tensor* out) {
    *out = tensors.at(object);
    return 0;
}

void* stream = nullptr;
int stream_calls = 0;

int current_stream(std::int32_t, std::int32_t, void** out) {
    ++stream_calls;
    *out = stream;
    return 0;
}

}  // namespace

extern "C" {

gristmill::dlpack::ExchangeApi exchange_api = {{1, 3},        nullptr, nullptr, nullptr, nullptr, tensor_from_object,
                                               current_stream};

void exchange_register(void* object, const gristmill::dlpack::Tensor* tensor) { tensors[object] = *tensor; }
void exchange_set_stream(void* value) { stream = value; }
int exchange_stream_calls() { return stream_calls; }
}
