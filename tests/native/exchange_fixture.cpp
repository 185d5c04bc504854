// A DLPack exchange API without a framework: tensors are set up through ctypes.
#include "dlpack.hpp"

extern "C" {

gristmill::dlpack::Tensor exchange_tensor;
void* exchange_stream = nullptr;
int exchange_stream_calls = 0;

static int tensor_from_object(void*, gristmill::dlpack::Tensor* out) {
    *out = exchange_tensor;
    return 0;
}

static int current_stream(int, int, void** out) {
    ++exchange_stream_calls;
    *out = exchange_stream;
    return 0;
}

gristmill::dlpack::ExchangeApi exchange_api = {{1, 3}, nullptr, nullptr, nullptr, nullptr, tensor_from_object, current_stream};
}
