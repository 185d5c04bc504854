// Host functions of the fixture's kernels, by the ABI of compiled ones.
#pragma once

#include <cstdint>

namespace fixture {

using Parameters = const void*;

void scale_f32_32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void scale_f32_64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void scale_f64_32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void scale_f64_64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void scale_bf16_32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void scale_bf16_64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void gather_f32_i32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void gather_f32_i64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void gather_f64_i32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void row_scale_32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void row_scale_64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void many_32(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void many_64(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void program_ids(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void twice_slow(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void twice_fast(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void twice_wrong(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void twice_flipped(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);
void full(Parameters p, const std::int64_t* grid, std::int64_t begin, std::int64_t end);

}  // namespace fixture
