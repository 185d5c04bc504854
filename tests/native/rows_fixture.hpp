// Kernels of rows, which tables_fixture.cpp lists.

// row_scale(x, y, n_rows, n_cols, stride, BLOCK): one program a row, n_cols <= BLOCK; the stride must divide by 4 to be
// aligned.
constexpr std::int64_t row_pick[] = {1, 3, 2, 0, 12}, row_grid[] = {1, 2}, row_extent[] = {1, 2, 1, 3, 5};
constexpr std::uint16_t stride_by_4[] = {1, 1, 1, 1, 4};
constexpr Divisors row_divisibility[] = {stride_by_4};
constexpr Parameter row_parameters[] = {pointer("x", 0, Dtype::f32, false, row_extent, true),
                                        pointer("y", 0, Dtype::f32, true, row_extent), index("n_rows", K::shape, 0, 0),
                                        index("n_cols", K::shape, 0, -1), index("stride", K::stride, 0, 0)};
constexpr Code row_grids[] = {row_grid};
constexpr F row_32[] = {fixture::row_scale_32}, row_64[] = {fixture::row_scale_64};
constexpr Specialisation row_rows[] = {
    {"row_scale__f32__64",
     f32s,
     block_64,
     1,
     0,
     row_divisibility,
     {{"row_scale_64_a32", one_warp, row_32, old_ptx},
      {"row_scale_64_g32", one_warp, row_32, old_ptx},
      {"row_scale_64_g64", one_warp, row_64, old_ptx}},
     0},
    {"row_scale__f32__256",
     f32s,
     block_256,
     4,
     0,
     row_divisibility,
     {{"row_scale_256_a32", four_warps, row_32, old_ptx},
      {"row_scale_256_g32", four_warps, row_32, old_ptx},
      {"row_scale_256_g64", four_warps, row_64, old_ptx}},
     1},
};
constexpr Specialisation row_backward_rows[] = {
    {"row_scale_backward__f32__64",
     f32s,
     block_64,
     1,
     0,
     {},
     {{"row_back_64", one_warp, row_32, old_ptx},
      {"row_back_64", one_warp, row_32, old_ptx},
      {"row_back_64", one_warp, row_64, old_ptx}},
     -1},
    {"row_scale_backward__f32__256",
     f32s,
     block_256,
     4,
     0,
     {},
     {{"row_back_256", four_warps, row_32, old_ptx},
      {"row_back_256", four_warps, row_32, old_ptx},
      {"row_back_256", four_warps, row_64, old_ptx}},
     -1},
};

// long_rows: the first specialisation is built for sm_90a only.
constexpr Specialisation long_rows[] = {
    {"long_rows__f32__64",
     f32s,
     block_64,
     1,
     0,
     {},
     {{"long_64_a32", only_90a, row_32, {}},
      {"long_64_g32", only_90a, row_32, {}},
      {"long_64_g64", only_90a, row_64, {}}},
     -1},
    {"long_rows__f32__256",
     f32s,
     block_256,
     4,
     0,
     {},
     {{"long_256_a32", four_warps, row_32, old_ptx},
      {"long_256_g32", four_warps, row_32, old_ptx},
      {"long_256_g64", four_warps, row_64, old_ptx}},
     -1},
};

// own_rows: the first specialisation is for CUDA alone, the second for the CPU.
constexpr Specialisation own_rows[] = {
    {"own_rows__f32__64",
     f32s,
     block_64,
     1,
     0,
     {},
     {{"own_64_a32", one_warp, {}, old_ptx}, {"own_64_g32", one_warp, {}, old_ptx}, {"own_64_g64", one_warp, {}, old_ptx}},
     -1},
    {"own_rows__f32__256",
     f32s,
     block_256,
     4,
     0,
     {},
     {{"own_256_a32", none, row_32, {}}, {"own_256_g32", none, row_32, {}}, {"own_256_g64", none, row_64, {}}},
     -1},
};

// even_rows: a block of 256 for aligned calls only, and one of 64 for all; `pick` as row_scale's.
constexpr Specialisation even_rows[] = {
    {"even_rows__f32__256", f32s, block_256, 4, 0, row_divisibility, {{"even_256_a32", four_warps, row_32, old_ptx}}, -1},
    {"even_rows__f32__64",
     f32s,
     block_64,
     1,
     0,
     row_divisibility,
     {{"even_64_a32", one_warp, row_32, old_ptx},
      {"even_64_g32", one_warp, row_32, old_ptx},
      {"even_64_g64", one_warp, row_64, old_ptx}},
     -1},
};
