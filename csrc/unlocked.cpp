#include "unlocked.hpp"

#include <nanobind/nanobind.h>

namespace gristmill {

Unlocked::Unlocked() : state_(PyEval_SaveThread()) {}

Unlocked::~Unlocked() { PyEval_RestoreThread(static_cast<PyThreadState*>(state_)); }

}  // namespace gristmill
