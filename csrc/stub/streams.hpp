// Streams of the fake driver: those that it made, and others, of which it knows no more than whether they are captured.
#pragma once

#include <map>
#include <memory>
#include <utility>

class FakeStreams {
public:
    // A capture is of all streams that were not made here.
    void set_capturing(bool is_capturing) { is_capturing_ = is_capturing; }
    bool is_capturing() const { return is_capturing_; }
    bool is_captured(void* stream) const { return is_capturing_ && !made_.contains(stream); }
    void* create() {
        auto stream = std::make_unique<char>();
        void* handle = stream.get();
        made_[handle] = std::move(stream);
        return handle;
    }
    // The driver's code: 0, or 400 for one that is none of ours.
    int destroy(void* stream) { return made_.erase(stream) ? 0 : 400; }
    int count() const { return static_cast<int>(made_.size()); }

private:
    bool is_capturing_ = false;
    std::map<void*, std::unique_ptr<char>> made_;
};
