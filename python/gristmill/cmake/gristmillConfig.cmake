# gristmill_add_kernels(<target>
#   MODULE <package._kernels>       full name of the extension module
#   SOURCES <kernels/*.py>...       files that declare kernels
#   [TARGETS <sm_80>...]            default: sm_80, sm_90a and the levels of the host's processor
#   [CUBINS <AUTO|ON|OFF>]          AUTO: assembled where a ptxas is installed; OFF: the driver compiles PTX at loading
#   [SPILLS <bytes|WARN>]           how much of a thread's registers ptxas may keep in memory; default 100
#   [TUNING <tuning/*.toml>...]     tuned tables, as `python -m gristmill tune` writes them
#   [CXX_LIBRARY]                   also a library and a header, to launch the kernels from C and C++ without Python
#   [DESTINATION <package>])        default: the folder of MODULE's package
#
# Compiles the kernels at build time and adds a module target that holds them with their launcher; installs the module,
# its type stub and its command line (`<module>_report.py`), the licences of what is compiled in, and in wheels of
# scikit-build-core a bill of materials. CXX_LIBRARY adds the target <target>_library. The variables GRISTMILL_TARGETS,
# GRISTMILL_CUBINS and GRISTMILL_SPILLS, of CMake or of the environment, stand in for TARGETS, CUBINS and SPILLS.
# GRISTMILL_EXECUTOR, `module:factory` of a concurrent.futures executor, compiles on its workers; GRISTMILL_MAX_WHEEL_MB
# ends a build whose module takes more of a wheel.

include_guard(GLOBAL)

get_filename_component(_gristmill_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(_gristmill_package "${_gristmill_package}" CACHE INTERNAL "")

function(gristmill_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "CXX_LIBRARY" "MODULE;CUBINS;SPILLS;DESTINATION" "SOURCES;TARGETS;TUNING")
  _gristmill_check_arguments()
  _gristmill_require_tools()
  _gristmill_set_defaults()
  _gristmill_find_launcher(csrc)

  get_filename_component(import_root "${_gristmill_package}/.." ABSOLUTE)
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  _gristmill_make_command()
  _gristmill_check_settings()
  _gristmill_generate()

  # Types of modules in one domain are one for nanobind: of two packages, whatever their versions, they must not be.
  string(REPLACE "." "_" domain "${ARG_MODULE}")
  nanobind_add_module(${target} STABLE_ABI NB_STATIC NOMINSIZE NB_DOMAIN ${domain}
    "${out}/tables.cpp" "${out}/images.cpp")
  set_source_files_properties("${out}/images.cpp" PROPERTIES OBJECT_DEPENDS "${out}/images.bin")
  set_target_properties(${target} PROPERTIES OUTPUT_NAME "${name}")
  add_dependencies(${target} ${target}_kernels)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_definitions(${target} PRIVATE GRISTMILL_MODULE=${name})
  target_compile_options(${target} PRIVATE "-ffile-prefix-map=${csrc}=csrc" "-ffile-prefix-map=${out}=kernels")
  target_include_directories(${target} PRIVATE "${csrc}" "${out}")
  find_package(Threads REQUIRED)
  _gristmill_add_launcher()
  target_link_libraries(${target} PRIVATE ${target}_launcher "${out}/libhost.a" Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE "LINKER:--version-script=${csrc}/exports.map")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${csrc}/exports.map")

  install(TARGETS ${target} LIBRARY DESTINATION "${ARG_DESTINATION}")
  install(FILES "${out}/${name}.pyi" DESTINATION "${ARG_DESTINATION}")
  install(FILES "${_gristmill_package}/runtime/report.py" DESTINATION "${ARG_DESTINATION}" RENAME "${name}_report.py")
  _gristmill_install_notices()
  if(ARG_CXX_LIBRARY)
    _gristmill_add_library()
  endif()
endfunction()

# The rest reads and sets the variables of gristmill_add_kernels; each step is a macro.

macro(_gristmill_check_arguments)
  set(usage "gristmill_add_kernels(${target} MODULE my_package._kernels SOURCES kernels/softmax.py)")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gristmill_add_kernels: unknown argument `${ARG_UNPARSED_ARGUMENTS}`\n  fix: write ${usage}")
  endif()
  if(ARG_KEYWORDS_MISSING_VALUES)
    list(GET ARG_KEYWORDS_MISSING_VALUES 0 keyword)
    if(NOT keyword MATCHES "^(SOURCES|TARGETS|TUNING)$")
      message(FATAL_ERROR "gristmill_add_kernels: ${keyword} has no value\n  fix: leave ${keyword} out, or write its value")
    endif()
  endif()
  if(TARGET "${target}")
    message(FATAL_ERROR "gristmill_add_kernels: there is a target `${target}` already\n"
      "  fix: give the first argument another name, as in gristmill_add_kernels(${target}_kernels ...)")
  endif()
  if(NOT ARG_MODULE OR NOT ARG_MODULE MATCHES "^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)+$")
    message(FATAL_ERROR "gristmill_add_kernels: MODULE is the full name of a module in a package, "
      "found `${ARG_MODULE}`\n  fix: write ${usage}")
  endif()
  if(NOT ARG_SOURCES)
    message(FATAL_ERROR "gristmill_add_kernels: no kernel files in SOURCES\n  fix: write ${usage}")
  endif()
  set(sources)
  foreach(source IN LISTS ARG_SOURCES)
    get_filename_component(path "${source}" ABSOLUTE)
    if(NOT EXISTS "${path}")
      message(FATAL_ERROR "gristmill_add_kernels: there is no file `${source}`\n"
        "  fix: give SOURCES paths relative to ${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
    list(APPEND sources "${path}")
  endforeach()
  set(tuning)
  set(tuning_options)
  foreach(pattern IN LISTS ARG_TUNING)
    get_filename_component(path "${pattern}" ABSOLUTE)
    file(GLOB found CONFIGURE_DEPENDS "${path}")
    if(NOT found AND NOT pattern MATCHES "[*?]")
      message(FATAL_ERROR "gristmill_add_kernels: there is no tuned table `${pattern}`\n"
        "  fix: write it by `python -m gristmill tune --out ${pattern}`, or give TUNING paths relative to "
        "${CMAKE_CURRENT_SOURCE_DIR}")
    endif()
    foreach(path IN LISTS found)
      list(APPEND tuning "${path}")
      list(APPEND tuning_options "--tuning=${path}")
    endforeach()
  endforeach()
endmacro()

macro(_gristmill_require_tools)
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "gristmill_add_kernels: C++ is not a language of this project\n"
      "  fix: write project(${PROJECT_NAME} LANGUAGES CXX)")
  endif()
  if(NOT TARGET Python::Module)
    message(FATAL_ERROR "gristmill_add_kernels: Python was not looked for\n  fix: before it, write "
      "find_package(Python REQUIRED COMPONENTS Interpreter Development.Module \${SKBUILD_SABI_COMPONENT})")
  endif()
  if(NOT COMMAND nanobind_add_module)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
      OUTPUT_VARIABLE nanobind_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    find_package(nanobind CONFIG QUIET NO_DEFAULT_PATH PATHS "${nanobind_dir}")
  endif()
  if(NOT COMMAND nanobind_add_module)
    message(FATAL_ERROR "gristmill_add_kernels: nanobind is not in the build environment\n"
      "  fix: in pyproject.toml write [build-system] requires = [\"scikit-build-core\", \"gristmill[build]\"]")
  endif()
endmacro()

macro(_gristmill_set_defaults)
  string(REGEX REPLACE "^.*[.]" "" name "${ARG_MODULE}")
  if(NOT ARG_DESTINATION)
    string(REGEX REPLACE "[.][^.]*$" "" ARG_DESTINATION "${ARG_MODULE}")
    string(REPLACE "." "/" ARG_DESTINATION "${ARG_DESTINATION}")
  endif()
  foreach(option TARGETS CUBINS SPILLS EXECUTOR MAX_WHEEL_MB)
    foreach(value "${GRISTMILL_${option}}" "$ENV{GRISTMILL_${option}}")
      if("${ARG_${option}}" STREQUAL "")
        set(ARG_${option} "${value}")
      endif()
    endforeach()
  endforeach()
  if("${ARG_CUBINS}" STREQUAL "")
    set(ARG_CUBINS AUTO)
  endif()
  string(TOUPPER "${ARG_CUBINS}" ARG_CUBINS)
  if(NOT ARG_CUBINS MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|1|0)$")
    message(FATAL_ERROR "gristmill_add_kernels: CUBINS is AUTO, ON or OFF, found `${ARG_CUBINS}`\n  fix: write CUBINS AUTO")
  endif()
  string(TOUPPER "${ARG_SPILLS}" ARG_SPILLS)
  if(NOT ARG_SPILLS MATCHES "^([0-9]*|WARN)$")
    message(FATAL_ERROR "gristmill_add_kernels: SPILLS is a number of bytes or WARN, found `${ARG_SPILLS}`\n  fix: write SPILLS 100")
  endif()
  set(package "${PROJECT_NAME}")
  set(version "${PROJECT_VERSION}")
  if(NOT version)
    set(version 0)
  endif()
  if(SKBUILD_PROJECT_NAME)
    set(package "${SKBUILD_PROJECT_NAME}")
    set(version "${SKBUILD_PROJECT_VERSION_FULL}")
  endif()
endmacro()

function(_gristmill_find_launcher result)
  get_filename_component(checkout "${_gristmill_package}" REALPATH)
  foreach(folder "${_gristmill_package}/csrc" "${checkout}/../../csrc")
    if(EXISTS "${folder}/tables.hpp")
      get_filename_component(folder "${folder}" ABSOLUTE)
      set(${result} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "gristmill_add_kernels: the launcher's sources are missing beside ${_gristmill_package}\n"
    "  fix: pip install --force-reinstall gristmill")
endfunction()

# What is told of what is compiled in: in wheels of scikit-build-core a bill of materials (PEP 770), and everywhere the
# licences of the launcher and of nanobind (in wheels by PEP 639), which ask that they go with what is made of them.
macro(_gristmill_install_notices)
  set(folder "${ARG_DESTINATION}/${name}_licenses")
  if(SKBUILD_METADATA_DIR)
    set(folder "${SKBUILD_METADATA_DIR}/licenses/gristmill")
    install(FILES "${out}/${ARG_MODULE}.cdx.json" DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
  endif()
  file(GLOB licences "${_gristmill_package}/licenses/*.txt")
  if(NOT licences)
    get_filename_component(checkout "${_gristmill_package}" REALPATH)
    file(GLOB licences "${checkout}/../../LICENSES/*.txt" "${checkout}/../../LICENSE")
  endif()
  if(NOT PROJECT_NAME STREQUAL "gristmill")
    install(FILES ${licences} DESTINATION "${folder}")
  endif()
endmacro()

# The launcher is one unit, optimised as a whole; apart from the module, it is compiled while the kernels are, and once.
macro(_gristmill_add_launcher)
  file(GLOB launcher CONFIGURE_DEPENDS "${csrc}/*.cpp")
  add_library(${target}_launcher OBJECT ${launcher})
  foreach(property COMPILE_DEFINITIONS COMPILE_FEATURES COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES
      CXX_VISIBILITY_PRESET VISIBILITY_INLINES_HIDDEN)
    get_target_property(value ${target} ${property})
    if(value)
      set_property(TARGET ${target}_launcher PROPERTY ${property} "${value}")
    endif()
  endforeach()
  set_target_properties(${target}_launcher PROPERTIES
    POSITION_INDEPENDENT_CODE ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # as good as link-time optimisation, without its ten seconds for each link
    target_compile_options(${target}_launcher PRIVATE -fwhole-program)
    set_target_properties(${target}_launcher PROPERTIES UNITY_BUILD_CODE_BEFORE_INCLUDE
      "struct _object;\nextern \"C\" [[gnu::externally_visible, gnu::visibility(\"default\")]] _object* PyInit_${name}();")
  endif()
  get_target_property(libraries ${target} LINK_LIBRARIES)
  list(FILTER libraries INCLUDE REGEX "^nanobind")
  _gristmill_keep_objects(${target}_launcher ${libraries})
endmacro()

# Objects that are the same for other kernels are kept in the cache, unless ccache or the like is there to do so.
macro(_gristmill_keep_objects)
  foreach(compiled ${ARGN})
    get_target_property(program ${compiled} CXX_COMPILER_LAUNCHER)
    if(NOT program)
      set_target_properties(${compiled} PROPERTIES CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND};-E;env;--modify;PYTHONPATH=path_list_prepend:${import_root}\
;${Python_EXECUTABLE};-m;gristmill.build.cxx")
    endif()
  endforeach()
endmacro()

macro(_gristmill_make_command)
  list(JOIN ARG_TARGETS "," targets)
  # `=`, since a list in CMake keeps no empty items.
  set(command "${CMAKE_COMMAND}" -E env --modify "PYTHONPATH=path_list_prepend:${import_root}"
    "${Python_EXECUTABLE}" -m gristmill build ${sources}
    "--module=${ARG_MODULE}" "--package=${package}" "--version=${version}"
    "--targets=${targets}" "--processor=${CMAKE_SYSTEM_PROCESSOR}" "--cubins=${ARG_CUBINS}" "--spills=${ARG_SPILLS}"
    "--executor=${ARG_EXECUTOR}" "--max-wheel-mb=${ARG_MAX_WHEEL_MB}" "--ar=${CMAKE_AR}"
    ${tuning_options} "--project-dir=${CMAKE_CURRENT_SOURCE_DIR}" "--out=${out}" "--depfile=${out}/kernels.d")
  if(ARG_CXX_LIBRARY)
    list(APPEND command --library)
  endif()
endmacro()

# What is wrong with the settings is said now, not after some minutes of compiling.
function(_gristmill_check_settings)
  execute_process(COMMAND ${command} --check RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE problem)
  if(NOT status EQUAL 0)
    string(STRIP "${problem}" problem)
    message(FATAL_ERROR "gristmill_add_kernels: ${problem}")
  endif()
endfunction()

macro(_gristmill_generate)
  if(ARG_CXX_LIBRARY)
    set(plain "${out}/plain_images.cpp" "${out}/plain_images.bin")
  endif()
  set(generated "${out}/tables.cpp" "${out}/images.cpp" "${out}/images.bin" "${out}/libhost.a" "${out}/${name}.pyi"
    "${out}/${ARG_MODULE}.cdx.json" ${plain})
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${command}
    DEPENDS ${sources} ${tuning}
    DEPFILE "${out}/kernels.d"
    COMMENT "Compiling the kernels of ${ARG_MODULE} (log: ${out}/build.log)"
    USES_TERMINAL
    VERBATIM)
  # A target that waits for nothing: else the kernels would be compiled after the launcher, and not beside it.
  add_custom_target(${target}_kernels DEPENDS ${generated})
endmacro()

# Those parts of the launcher that know nothing of Python, and what stands in for the others.
set(_gristmill_core check choose cpu device dispatch driver dtype error grid host image launch library padded run tensor_map
  tickets tuned variant view c/arguments c/library c/plain_images c/unlocked CACHE INTERNAL "")
set(_gristmill_functions version count name error find launch preload CACHE INTERNAL "")

macro(_gristmill_add_library)
  # Libraries of several packages are used in one process: names begin with the package's.
  string(REGEX REPLACE "[.][^.]*$" "" prefix "${ARG_MODULE}")
  string(REPLACE "." "_" prefix "${prefix}")
  string(TOUPPER "${prefix}" prefix_upper)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${csrc}/c/gristmill.h")
  file(READ "${csrc}/c/gristmill.h" header)
  string(REPLACE "gristmill_" "${prefix}_" header "${header}")
  string(REPLACE "GRISTMILL_" "${prefix_upper}_" header "${header}")
  file(CONFIGURE OUTPUT "${out}/${prefix}.h" CONTENT "${header}" @ONLY)
  file(CONFIGURE OUTPUT "${out}/exports.map" CONTENT "{ global: ${prefix}_*; local: *; };\n" @ONLY)

  # Objects of its own: of the module's unit nothing but the entry for Python can be seen.
  set(library ${target}_library)
  list(TRANSFORM _gristmill_core REPLACE "(.+)" "${csrc}/\\1.cpp" OUTPUT_VARIABLE core)
  add_library(${library}_launcher OBJECT ${core})
  add_library(${library} SHARED "${out}/tables.cpp" "${out}/plain_images.cpp")
  set_source_files_properties("${out}/plain_images.cpp" PROPERTIES OBJECT_DEPENDS "${out}/plain_images.bin")
  foreach(compiled ${library}_launcher ${library})
    set_target_properties(${compiled} PROPERTIES
      POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    target_compile_features(${compiled} PRIVATE cxx_std_20)
    target_compile_options(${compiled} PRIVATE "-ffile-prefix-map=${csrc}=csrc" "-ffile-prefix-map=${out}=kernels")
    target_include_directories(${compiled} PRIVATE "${csrc}" "${out}")
    target_link_libraries(${compiled} PRIVATE Threads::Threads)
  endforeach()
  foreach(function IN LISTS _gristmill_functions)
    target_compile_definitions(${library}_launcher PRIVATE gristmill_${function}=${prefix}_${function})
  endforeach()
  _gristmill_keep_objects(${library}_launcher)
  add_dependencies(${library} ${target}_kernels)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME "${prefix}")
  target_include_directories(${library} INTERFACE "$<BUILD_INTERFACE:${out}>")
  target_link_libraries(${library} PRIVATE ${library}_launcher "${out}/libhost.a" ${CMAKE_DL_LIBS})
  target_link_options(${library} PRIVATE "LINKER:--version-script=${out}/exports.map" "LINKER:-z,defs")
  set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS "${out}/exports.map")

  include(GNUInstallDirs)
  set(libraries "${CMAKE_INSTALL_LIBDIR}")
  set(headers "${CMAKE_INSTALL_INCLUDEDIR}")
  if(SKBUILD)
    set(libraries "${ARG_DESTINATION}/lib")
    set(headers "${ARG_DESTINATION}/include")
  endif()
  install(TARGETS ${library} LIBRARY DESTINATION "${libraries}")
  install(FILES "${out}/${prefix}.h" DESTINATION "${headers}")
endmacro()
