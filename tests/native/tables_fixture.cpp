// Tables as the build writes them, for kernels small enough to check by hand.
#include <array>

#include "tables.hpp"

#include "kernels_fixture.hpp"

extern "C" {
[[gnu::visibility("hidden")]] extern const unsigned char gristmill_blob[];
}

namespace gristmill {

namespace {

using K = ParameterKind;
using Value = ConstantValue;
using F = HostFunction;

constexpr Image images[] = {
#include "blob_rows.inc"
};
constexpr std::uint16_t both_cubins[] = {0, 1}, both_ptx[] = {2, 3}, new_ptx[] = {4}, new_cubins[] = {5, 6},
                        old_ptx[] = {2};

// By source: of all images but those for sm_90a, then of these.
constexpr Geometry one_warp[] = {{32, 0, 1}, {32, 0, 1}}, four_warps[] = {{128, 0, 1}, {128, 0, 1}},
                   eight_warps[] = {{256, 0, 1}, {256, 0, 1}}, much_shared[] = {{128, 0, 1}, {128, 65536, 1}},
                   clusters[] = {{128, 0, 1}, {256, 1024, 2, true}}, only_90a[] = {{0, 0, 0}, {32, 0, 1}},
                   none[] = {{0, 0, 0}, {0, 0, 0}};

constexpr Value integer(std::int64_t value) { return {Value::Kind::integer, value, 0, nullptr}; }

// Parameters: name, kind, dtype_var, dtype, tensor, axis, read, written, strided, default?, default, extent
constexpr Parameter pointer(const char* name, int var, Dtype dtype, bool is_written, Code extent = {},
                            bool is_strided = false) {
    return {name, K::pointer, static_cast<std::int8_t>(var), dtype, -1, 0, !is_written, is_written, is_strided, false,
            0,    extent};
}
constexpr Parameter index(const char* name, K kind, int tensor, int axis = 0) {
    return {
        name,  kind,  -1, Dtype::i64, static_cast<std::int8_t>(tensor), static_cast<std::int8_t>(axis), false, false,
        false, false, 0,  {}};
}
constexpr Parameter scalar(const char* name, Dtype dtype) {
    return {name, K::scalar, -1, dtype, -1, 0, false, false, false, false, 0, {}};
}
constexpr Parameter scalar(const char* name, Dtype dtype, double value) {
    return {name, K::scalar, -1, dtype, -1, 0, false, false, false, true, value, {}};
}

constexpr Dtype f16s[] = {Dtype::f16}, f32s[] = {Dtype::f32}, f64s[] = {Dtype::f64}, bf16s[] = {Dtype::bf16};
constexpr const char* d_var[] = {"D"};
constexpr const char* block_name[] = {"BLOCK"};
constexpr Value block_64[] = {integer(64)}, block_256[] = {integer(256)}, block_1024[] = {integer(1024)};

// scale(x, y, factor=2.0, n = size x, BLOCK): grid cdiv(n, 256), the extent of x and y is n.
constexpr std::int64_t scale_n[] = {1, 3}, scale_grid[] = {1, 3, 0, 256, 10};
constexpr Parameter scale_parameters[] = {pointer("x", 0, Dtype::f32, false, scale_n),
                                          pointer("y", 0, Dtype::f32, true, scale_n), scalar("factor", Dtype::f32, 2.0),
                                          index("n", K::size, 0)};
constexpr Code scale_grids[] = {scale_grid};
constexpr F scale_f32_32[] = {fixture::scale_f32_32}, scale_f32_64[] = {fixture::scale_f32_64},
            scale_f64_32[] = {fixture::scale_f64_32}, scale_f64_64[] = {fixture::scale_f64_64},
            scale_bf16_32[] = {fixture::scale_bf16_32}, scale_bf16_64[] = {fixture::scale_bf16_64};
constexpr Specialisation scale_rows[] = {
    {"scale__f32__256",
     f32s,
     block_256,
     4,
     0,
     {},
     {{"scale__f32__256__a32", four_warps, scale_f32_32, both_ptx},
      {"scale__f32__256__g32", four_warps, scale_f32_32, both_ptx},
      {"scale__f32__256__g64", four_warps, scale_f32_64, both_ptx}},
     -1},
    {"scale__f32__1024",
     f32s,
     block_1024,
     8,
     0,
     {},
     {{"scale__f32__1024__a32", eight_warps, scale_f32_32, both_ptx},
      {"scale__f32__1024__g32", eight_warps, scale_f32_32, both_ptx},
      {"scale__f32__1024__g64", eight_warps, scale_f32_64, both_ptx}},
     -1},
    {"scale__f64__256",
     f64s,
     block_256,
     4,
     0,
     {},
     {{"scale__f64__256__a32", much_shared, scale_f64_32, both_ptx},
      {"scale__f64__256__g32", clusters, scale_f64_32, both_ptx},
      {"scale__f64__256__g64", four_warps, scale_f64_64, both_ptx}},
     -1},
    {"scale__bf16__256",
     bf16s,
     block_256,
     4,
     0,
     {},
     {{"scale__bf16__256__a32", four_warps, scale_bf16_32, both_ptx},
      {"scale__bf16__256__g32", four_warps, scale_bf16_32, both_ptx},
      {"scale__bf16__256__g64", four_warps, scale_bf16_64, both_ptx}},
     -1},
};

// By cubin, specialisation and variant; of what is not set here nothing is known.
constexpr auto scale_usage = [] {
    std::array<Usage, 2 * 4 * 3> usage{};
    usage[0] = {40, 0, 0};
    usage[12] = {32, 16, 0};
    usage[12 + 3 * 2 + 1] = {255, 144, 128};
    return usage;
}();

// gather(x, index, y, n = size index): two dtype variables; PTX only, of a new version. y[i] = x[index[i]]
constexpr const char* gather_vars[] = {"A", "B"};
constexpr Dtype f32_i32[] = {Dtype::f32, Dtype::i32}, f32_i64[] = {Dtype::f32, Dtype::i64},
                f64_i32[] = {Dtype::f64, Dtype::i32};
constexpr std::int64_t gather_n[] = {1, 3}, one_program[] = {0, 1};
constexpr Parameter gather_parameters[] = {pointer("x", 0, Dtype::f32, false),
                                           pointer("index", 1, Dtype::i32, false, gather_n),
                                           pointer("y", 0, Dtype::f32, true, gather_n), index("n", K::size, 1)};
constexpr Code one_grid[] = {one_program};
constexpr F gather_a[] = {fixture::gather_f32_i32}, gather_b[] = {fixture::gather_f32_i64},
            gather_c[] = {fixture::gather_f64_i32};
constexpr Specialisation gather_rows[] = {
    {"gather__f32_i32",
     f32_i32,
     {},
     1,
     0,
     {},
     {{"gather_a", one_warp, gather_a, new_ptx},
      {"gather_a", one_warp, gather_a, new_ptx},
      {"gather_a", one_warp, gather_a, new_ptx}},
     -1},
    {"gather__f32_i64",
     f32_i64,
     {},
     1,
     0,
     {},
     {{"gather_b", one_warp, gather_b, new_ptx},
      {"gather_b", one_warp, gather_b, new_ptx},
      {"gather_b", one_warp, gather_b, new_ptx}},
     -1},
    {"gather__f64_i32",
     f64_i32,
     {},
     1,
     0,
     {},
     {{"gather_c", one_warp, gather_c, new_ptx},
      {"gather_c", one_warp, gather_c, new_ptx},
      {"gather_c", one_warp, gather_c, new_ptx}},
     -1},
};

#include "rows_fixture.hpp"

// many: 19 parameters of all kinds; its host function copies the packed block to `out`.
constexpr Parameter many_parameters[] = {pointer("a", -1, Dtype::f32, false),
                                         pointer("b", -1, Dtype::f32, false),
                                         pointer("c", -1, Dtype::f32, false),
                                         pointer("out", -1, Dtype::u8, true),
                                         scalar("s_i8", Dtype::i8),
                                         scalar("s_f64", Dtype::f64),
                                         scalar("s_bool", Dtype::boolean),
                                         scalar("s_f16", Dtype::f16),
                                         scalar("s_u8", Dtype::u8),
                                         scalar("s_i32", Dtype::i32),
                                         scalar("s_u64", Dtype::u64),
                                         scalar("s_bf16", Dtype::bf16),
                                         scalar("s_f32", Dtype::f32, 0.5),
                                         scalar("s_i16", Dtype::i16, -7),
                                         index("n_a", K::size, 0),
                                         index("n_b", K::size, 1),
                                         index("n_c", K::size, 2),
                                         index("n_out", K::size, 3),
                                         index("rows", K::shape, 0, 0)};
constexpr F many_32[] = {fixture::many_32}, many_64[] = {fixture::many_64};
constexpr Specialisation many_rows[] = {{"many",
                                         {},
                                         {},
                                         1,
                                         0,
                                         {},
                                         {{"many_a32", one_warp, many_32, old_ptx},
                                          {"many_g32", one_warp, many_32, old_ptx},
                                          {"many_g64", one_warp, many_64, old_ptx}},
                                         -1}};

// program_ids(out, n0, n1, delay_us=0): grid (n0, n1, 2).
constexpr std::int64_t ids_0[] = {1, 1}, ids_1[] = {1, 2}, ids_2[] = {0, 2}, ids_extent[] = {1, 1, 1, 2, 5, 0, 2, 5};
constexpr Parameter ids_parameters[] = {pointer("out", -1, Dtype::i64, true, ids_extent), scalar("n0", Dtype::i32),
                                        scalar("n1", Dtype::i32), scalar("delay_us", Dtype::i32, 0)};
constexpr Code ids_grids[] = {ids_0, ids_1, ids_2};
constexpr F ids_host[] = {fixture::program_ids};
constexpr Specialisation ids_rows[] = {{"program_ids",
                                        {},
                                        {},
                                        1,
                                        0,
                                        {},
                                        {{"program_ids", one_warp, ids_host, old_ptx},
                                         {"program_ids", one_warp, ids_host, old_ptx},
                                         {"program_ids", one_warp, ids_host, old_ptx}},
                                        -1}};

// new_only(x, n = size x): CUDA only, for new devices; the grid is min(n, multiprocessors).
constexpr std::int64_t new_grid[] = {1, 1, 20, 8};
constexpr Parameter new_parameters[] = {pointer("x", 0, Dtype::f16, true), index("n", K::size, 0)};
constexpr Code new_grids[] = {new_grid};
constexpr Specialisation new_rows[] = {
    {"new_only__f16",
     f16s,
     {},
     1,
     0,
     {},
     {{"new_only", one_warp, {}, {}}, {"new_only", one_warp, {}, {}}, {"new_only", one_warp, {}, {}}},
     -1}};

// mapped(a, b, y, parts = 1, rows, columns, stride of a): for sm_90a, aligned code takes maps of a, and of b as
// [parts, columns] of which each second row is left out.
constexpr std::int64_t mapped_parts[] = {1, 3}, mapped_rows[] = {1, 4}, mapped_columns[] = {1, 5},
                       mapped_stride[] = {1, 6}, mapped_step[] = {1, 5, 0, 2, 5};
constexpr Code a_extents[] = {mapped_columns, mapped_rows}, a_strides[] = {mapped_stride},
               b_extents[] = {mapped_columns, mapped_parts}, b_strides[] = {mapped_step};
constexpr std::uint16_t a_box[] = {64, 128}, b_box[] = {16, 1};
constexpr TensorMap mapped_maps[] = {{0, Dtype::f16, a_extents, a_strides, a_box, 128},
                                     {1, Dtype::u8, b_extents, b_strides, b_box, 0}};
constexpr Geometry with_maps[] = {{128, 0, 1}, {128, 0, 1, true, false, mapped_maps}};
constexpr Parameter mapped_parameters[] = {pointer("a", 0, Dtype::f16, false, {}, true),
                                           pointer("b", -1, Dtype::u8, false),
                                           pointer("y", 0, Dtype::f16, true),
                                           scalar("parts", Dtype::i32, 1),
                                           index("rows", K::shape, 0, 0),
                                           index("columns", K::shape, 0, 1),
                                           index("stride", K::stride, 0, 0)};
constexpr Specialisation mapped_specialisations[] = {{"mapped__f16",
                                                      f16s,
                                                      {},
                                                      4,
                                                      0,
                                                      {},
                                                      {{"mapped_a32", with_maps, {}, both_ptx},
                                                       {"mapped_g32", four_warps, {}, both_ptx},
                                                       {"mapped_g64", four_warps, {}, both_ptx}},
                                                      -1}};

// tiles: as mapped, but its aligned code is a specialisation's all.
constexpr Specialisation tiles_specialisations[] = {
    {"tiles__f16__256", f16s, block_256, 4, 0, {}, {{"tiles_256_a32", with_maps, {}, both_ptx}}, -1},
    {"tiles__f16__64",
     f16s,
     block_64,
     4,
     0,
     {},
     {{"tiles_64_a32", four_warps, {}, both_ptx},
      {"tiles_64_g32", four_warps, {}, both_ptx},
      {"tiles_64_g64", four_warps, {}, both_ptx}},
     -1}};

// matrices(a, y, rows, columns, stride of a, stride of y): worth copies from 1000 elements on. Aligned code wants
// columns that divide by 8 on sm_80, and on sm_90a, where it takes a map of a, strides; other code has wide offsets.
constexpr std::int64_t matrices_rows[] = {1, 2}, matrices_columns[] = {1, 3}, matrices_stride[] = {1, 4},
                       worth[] = {0, 1000, 1, 2, 1, 3, 5, 12};
constexpr Code matrices_extents[] = {matrices_columns, matrices_rows}, matrices_strides[] = {matrices_stride};
constexpr TensorMap matrices_maps[] = {{0, Dtype::f16, matrices_extents, matrices_strides, a_box, 128}};
constexpr Geometry with_a_map[] = {{128, 0, 1}, {128, 0, 1, true, false, matrices_maps}};
constexpr Parameter matrices_parameters[] = {pointer("a", 0, Dtype::f16, false, {}, true),
                                             pointer("y", 0, Dtype::f16, true, {}, true),
                                             index("rows", K::shape, 0, 0),
                                             index("columns", K::shape, 0, 1),
                                             index("a_stride", K::stride, 0, 0),
                                             index("y_stride", K::stride, 1, -2)};
constexpr std::uint16_t anything[] = {1, 1, 1, 1, 1, 1}, columns_by_8[] = {1, 1, 1, 8, 8, 8},
                        strides_by_8[] = {1, 1, 1, 1, 8, 8};
constexpr const char* matrices_names[] = {"rows", "columns"};
constexpr Code matrices_key[] = {matrices_rows, matrices_columns};
constexpr Divisors matrices_divisors[] = {anything, columns_by_8, strides_by_8};
constexpr Specialisation matrices_specialisations[] = {{"matrices__f16",
                                                        f16s,
                                                        {},
                                                        4,
                                                        0,
                                                        matrices_divisors,
                                                        {{"matrices_a32", with_a_map, {}, both_ptx},
                                                         {},
                                                         {"matrices_g64", four_warps, {}, both_ptx}},
                                                        -1}};
#include "tuned_fixture.hpp"
#include "drawn_fixture.hpp"

constexpr Kernel kernels[] = {
    {"scale",
     "y = factor * x",
     "def scale(x, y, factor, n, BLOCK): ...",
     "kernels/scale.py",
     scale_parameters,
     d_var,
     block_name,
     scale_rows,
     scale_grids,
     {},
     -1,
     both_cubins,
     scale_usage},
    {"gather",
     "y[i] = x[index[i]]",
     "def gather(x, index, y, n): ...",
     "kernels/gather.py",
     gather_parameters,
     gather_vars,
     {},
     gather_rows,
     one_grid,
     {},
     -1,
     {}},
    {"row_scale", "y = 2 * x, row by row", "def row_scale(...): ...", "kernels/rows.py", row_parameters, d_var,
     block_name, row_rows, row_grids, row_pick, 3, both_cubins},
    {"row_scale_backward", "", "def row_scale_backward(...): ...", "kernels/rows.py", row_parameters, d_var, block_name,
     row_backward_rows, row_grids, row_pick, -1, both_cubins},
    {"long_rows", "", "def long_rows(...): ...", "kernels/rows.py", row_parameters, d_var, block_name, long_rows,
     row_grids, row_pick, -1, both_cubins},
    {"own_rows", "", "def own_rows(...): ...", "kernels/rows.py", row_parameters, d_var, block_name, own_rows, row_grids,
     row_pick, -1, both_cubins},
    {"even_rows", "", "def even_rows(...): ...", "kernels/rows.py", row_parameters, d_var, block_name, even_rows,
     row_grids, row_pick, -1, both_cubins},
    {"tiles", "", "def tiles(...): ...", "kernels/mapped.py", mapped_parameters, d_var, block_name,
     tiles_specialisations, one_grid, {}, -1, both_cubins},
    {"many",
     "",
     "def many(...): ...",
     "kernels/many.py",
     many_parameters,
     {},
     {},
     many_rows,
     one_grid,
     {},
     -1,
     both_cubins},
    {"program_ids",
     "",
     "def program_ids(...): ...",
     "kernels/ids.py",
     ids_parameters,
     {},
     {},
     ids_rows,
     ids_grids,
     {},
     -1,
     both_cubins},
    {"new_only",
     "",
     "def new_only(x, n): ...",
     "kernels/new.py",
     new_parameters,
     d_var,
     {},
     new_rows,
     new_grids,
     {},
     -1,
     new_cubins},
    {"mapped",
     "",
     "def mapped(...): ...",
     "kernels/mapped.py",
     mapped_parameters,
     d_var,
     {},
     mapped_specialisations,
     one_grid,
     {},
     -1,
     both_cubins},
    {"matrices", "", "def matrices(...): ...", "kernels/matrices.py", matrices_parameters, d_var, {},
     matrices_specialisations, one_grid, {}, -1, both_cubins, {}, worth, {}, 0,
      matrices_names, matrices_key},
    twice_kernel,
    drawn_kernel,
    full_kernel,
};

#if defined(__x86_64__)
constexpr HostLevel levels[] = {HostLevel::x86_64_v2};
#else
constexpr HostLevel levels[] = {HostLevel::aarch64};
#endif

}  // namespace

extern const Tables tables = {"fixture", "1.2.3", "0.1.0", kernels, images, levels, gristmill_blob, stub_devices};

}  // namespace gristmill
