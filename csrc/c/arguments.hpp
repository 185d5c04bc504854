// The arguments of a C call, read as those of a Python call are.
#pragma once

#include <array>
#include <span>

#include "../dispatch.hpp"
#include "gristmill.h"

namespace gristmill {

// What every call of a handle asks for.
struct Asked {
    std::array<Dtype, most_dtype_vars> dtypes;
    GivenConstants constants;
};

// Raises Failure naming kernel, dtype or constant.
Asked read_asked(const KernelIndex& index, std::span<const gristmill_dtype> dtypes,
                 std::span<const gristmill_constant> constants);

// Arguments with the views that they point to.
class BoundArguments {
public:
    // Raises Failure naming kernel and parameter.
    BoundArguments(const KernelIndex& index, const Asked& asked, std::span<const gristmill_argument> given,
                   Device device);
    BoundArguments(const BoundArguments&) = delete;
    BoundArguments& operator=(const BoundArguments&) = delete;

    const Arguments& arguments() const { return arguments_; }

private:
    void read_array(const KernelIndex& index, std::size_t parameter, const gristmill_argument& given, Device device);
    Scalar read_value(const KernelIndex& index, std::size_t parameter, const gristmill_argument& given) const;

    std::array<View, most_parameters> views_;
    Arguments arguments_;
};

}  // namespace gristmill
