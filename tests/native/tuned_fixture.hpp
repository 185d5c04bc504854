// twice(x, y, n = size x, TILE, FLIP): y = 2 x, or -2 x; three tiles, of which the first takes long and the last gives
// something else. Included in the tables, within their namespaces.
//
// The first tile is preferred, but above 500000 the longest: 1 if TILE == 1, and TILE more if n > 500000. For n = 4096 on the
// stub's device the table built in says otherwise.
constexpr std::int64_t twice_n[] = {1, 2}, twice_grid[] = {1, 2, 0, 1024, 10}, twice_pick[] = {2, 0, 1, 2, 12},
                       twice_prefer[] = {2, 0, 0, 1, 13, 0, 500000, 1, 2, 11, 2, 0, 5, 3}, twice_odd[] = {1, 2, 0, 2, 7};
constexpr Code twice_grids[] = {twice_grid}, twice_key[] = {twice_n, twice_odd};
constexpr const char *twice_names[] = {"TILE", "FLIP"}, *twice_key_names[] = {"n", "n % 2"};
constexpr Parameter twice_parameters[] = {pointer("x", 0, Dtype::f32, false, twice_n),
                                          pointer("y", 0, Dtype::f32, true, twice_n), index("n", K::size, 0)};
constexpr Value boolean(bool value) { return {Value::Kind::boolean, value, 0, nullptr}; }
constexpr Value slow_plain[] = {integer(1), boolean(false)}, slow_flipped[] = {integer(1), boolean(true)},
                fast_plain[] = {integer(2), boolean(false)}, fast_flipped[] = {integer(2), boolean(true)},
                wrong_plain[] = {integer(4), boolean(false)};
constexpr F twice_slow[] = {fixture::twice_slow}, twice_fast[] = {fixture::twice_fast},
            twice_wrong[] = {fixture::twice_wrong}, twice_flipped[] = {fixture::twice_flipped};
constexpr Specialisation twice_rows[] = {
    {"twice__f32__1__false", f32s, slow_plain, 4, 1, {},
     {{"twice_slow_a32", four_warps, twice_slow, old_ptx},
      {"twice_slow_g32", four_warps, twice_slow, old_ptx},
      {"twice_slow_g64", four_warps, twice_slow, old_ptx}},
     -1},
    {"twice__f32__1__true", f32s, slow_flipped, 4, 1, {},
     {{"twice_slow_flipped_a32", four_warps, twice_flipped, old_ptx},
      {"twice_slow_flipped_g32", four_warps, twice_flipped, old_ptx},
      {"twice_slow_flipped_g64", four_warps, twice_flipped, old_ptx}},
     -1},
    {"twice__f32__2__false", f32s, fast_plain, 4, 1, {},
     {{"twice_fast_a32", four_warps, twice_fast, old_ptx},
      {"twice_fast_g32", four_warps, twice_fast, old_ptx},
      {"twice_fast_g64", four_warps, twice_fast, old_ptx}},
     -1},
    {"twice__f32__2__true", f32s, fast_flipped, 4, 1, {},
     {{"twice_fast_flipped_a32", four_warps, twice_flipped, old_ptx},
      {"twice_fast_flipped_g32", four_warps, twice_flipped, old_ptx},
      {"twice_fast_flipped_g64", four_warps, twice_flipped, old_ptx}},
     -1},
    {"twice__f32__4__false", f32s, wrong_plain, 4, 1, {}, {{"twice_wrong_a32", four_warps, twice_wrong, old_ptx}}, -1},
};
constexpr TunedDevice stub_devices[] = {{"Another GPU", "sm_90", 132}, {"Stub GPU", "sm_90", 132}};
constexpr std::int64_t key_even[] = {4096, 0}, key_odd[] = {4097, 1};
constexpr TunedRow twice_tuned[] = {{0, 4, Variant::aligned32, 0, key_even},
                                    {1, 2, Variant::aligned32, 0, key_even},
                                    {1, 3, Variant::aligned32, 2, key_even},
                                    {1, 2, Variant::general32, 0, key_odd}};
constexpr Kernel twice_kernel{"twice", "", "def twice(x, y, n): ...", "kernels/twice.py", twice_parameters, d_var,
                              twice_names, twice_rows, twice_grids, twice_pick, -1, both_cubins, {}, {}, twice_prefer, 1,
                              twice_key_names, twice_key, twice_tuned};
