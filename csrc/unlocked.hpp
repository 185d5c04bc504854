// What the launcher is built into, a Python module or a C library, may hold a lock while it calls the launcher.
#pragma once

namespace gristmill {

// Lets go of Python's lock for a scope; in a C library there is none. Each has its own definition.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    void* state_;
};

}  // namespace gristmill
