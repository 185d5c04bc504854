// Which of the built instruction set levels this CPU can run.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tables.hpp"

namespace gristmill {

std::string_view level_name(HostLevel level);  // "x86-64-v3"

// Whether the CPU has the level's instructions and the system saves their registers.
bool is_level_supported(HostLevel level);

// Index into Tables::host_levels of the highest level that runs here; empty: none does.
std::optional<std::size_t> best_host_level();

// The processor's own name, as in "AMD EPYC 9654 96-Core Processor"; where it has none, its architecture.
std::string_view cpu_name();

// What the CPU itself supports, for messages.
std::string_view cpu_level_text();

}  // namespace gristmill
