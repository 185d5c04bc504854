// Kernels whose code for sm_90a draws its tiles. Included in the tables, within their namespaces.
//
// drawn: as mapped; general code draws too, with no maps before the counter.
constexpr Geometry draws_with_maps[] = {{128, 0, 1}, {128, 0, 1, true, true, mapped_maps}},
                   draws_alone[] = {{128, 0, 1}, {128, 0, 1, true, true}};
constexpr Specialisation drawn_rows[] = {{"drawn__f16", f16s, {}, 4, 0, {},
                                          {{"drawn_a32", draws_with_maps, {}, both_ptx},
                                           {"drawn_g32", draws_alone, {}, both_ptx},
                                           {"drawn_g64", four_warps, {}, both_ptx}},
                                          -1}};
constexpr Kernel drawn_kernel{"drawn", "", "def drawn(...): ...", "kernels/drawn.py", mapped_parameters, d_var, {},
                              drawn_rows, one_grid, {}, -1, both_cubins};

// full(p0, ..., p95): as many parameters and maps as there may be, and a counter. The first eight are arrays of [8, 64]
// f16, with a map each; p8 is an i64 array, to which the host function adds the numbers that follow.
constexpr std::size_t full_count = 96;
constexpr auto full_names = [] {
    std::array<std::array<char, 4>, full_count> names{};
    for (std::size_t i = 0; i < full_count; ++i) {
        names[i][0] = 'p';
        if (i >= 10) names[i][1] = static_cast<char>('0' + i / 10);
        names[i][i < 10 ? 1 : 2] = static_cast<char>('0' + i % 10);
    }
    return names;
}();
constexpr auto full_parameters = [] {
    std::array<Parameter, full_count> parameters{};
    for (std::size_t i = 0; i < full_count; ++i) {
        const char* name = full_names[i].data();
        parameters[i] = i < most_maps    ? pointer(name, -1, Dtype::f16, false)
                        : i == most_maps ? pointer(name, -1, Dtype::i64, true)
                                         : scalar(name, Dtype::i32);
    }
    return parameters;
}();
constexpr std::int64_t full_columns[] = {0, 64}, full_rows_of[] = {0, 8};
constexpr Code full_extents[] = {full_columns, full_rows_of}, full_strides[] = {full_columns};
constexpr std::uint16_t full_box[] = {64, 8};
constexpr auto full_maps = [] {
    std::array<TensorMap, most_maps> maps{};
    for (std::size_t i = 0; i < most_maps; ++i)
        maps[i] = {static_cast<std::uint8_t>(i), Dtype::f16, full_extents, full_strides, full_box, 128};
    return maps;
}();
constexpr Geometry draws_full[] = {{128, 0, 1}, {128, 0, 1, true, true, full_maps}};
constexpr F full_host[] = {fixture::full};
constexpr Specialisation full_specialisations[] = {{"full", {}, {}, 4, 0, {},
                                                    {{"full_a32", draws_full, full_host, both_ptx},
                                                     {"full_g32", four_warps, full_host, both_ptx},
                                                     {"full_g64", four_warps, full_host, both_ptx}},
                                                    -1}};
constexpr Kernel full_kernel{"full", "", "def full(...): ...", "kernels/drawn.py", full_parameters, {}, {},
                             full_specialisations, one_grid, {}, -1, both_cubins};
