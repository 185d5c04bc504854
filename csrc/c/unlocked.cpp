#include "../unlocked.hpp"

namespace gristmill {

Unlocked::Unlocked() : state_(nullptr) {}

Unlocked::~Unlocked() { state_ = nullptr; }

}  // namespace gristmill
