# gristmill_add_kernels(<target>
#   MODULE <package._kernels>       full name of the extension module
#   SOURCES <kernels/*.py>...       files that declare kernels
#   [TARGETS <sm_80>...]            default: sm_80, sm_90a and the levels of the host's processor
#   [CUBINS <AUTO|ON|OFF>]          AUTO: assembled where a ptxas is installed; OFF: the driver compiles PTX at first load
#   [SPILLS <WARN|ERROR>]           what it is if ptxas keeps registers of a thread in memory, for want of them
#   [DESTINATION <package>])        default: the folder of MODULE's package
#
# Compiles the kernels at build time and adds a module target that holds them with their launcher; installs the module
# and its type stub, and in wheels of scikit-build-core a bill of materials and the licences of what is compiled in. The
# variables GRISTMILL_TARGETS, GRISTMILL_CUBINS and GRISTMILL_SPILLS, of CMake or of the environment, stand in for TARGETS,
# CUBINS and SPILLS. GRISTMILL_EXECUTOR, `module:factory` of a concurrent.futures executor, compiles on its workers;
# GRISTMILL_MAX_WHEEL_MB ends a build whose module takes more of a wheel.

include_guard(GLOBAL)

get_filename_component(_gristmill_package "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(_gristmill_package "${_gristmill_package}" CACHE INTERNAL "")

function(gristmill_add_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "MODULE;CUBINS;SPILLS;DESTINATION" "SOURCES;TARGETS")
  _gristmill_check_arguments()
  _gristmill_require_tools()
  _gristmill_set_defaults()
  _gristmill_find_launcher(csrc)

  get_filename_component(import_root "${_gristmill_package}/.." ABSOLUTE)
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  _gristmill_generate()

  nanobind_add_module(${target} STABLE_ABI NB_STATIC NOMINSIZE NB_DOMAIN ${target}
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
  _gristmill_install_notices()
endfunction()

# The rest reads and sets the variables of gristmill_add_kernels; each step is a macro.

macro(_gristmill_check_arguments)
  set(usage "gristmill_add_kernels(${target} MODULE my_package._kernels SOURCES kernels/softmax.py)")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gristmill_add_kernels: unknown argument `${ARG_UNPARSED_ARGUMENTS}`\n  fix: write ${usage}")
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
endmacro()

macro(_gristmill_require_tools)
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
  if("${ARG_SPILLS}" STREQUAL "")
    set(ARG_SPILLS WARN)
  endif()
  string(TOUPPER "${ARG_SPILLS}" ARG_SPILLS)
  if(NOT ARG_SPILLS MATCHES "^(WARN|ERROR)$")
    message(FATAL_ERROR "gristmill_add_kernels: SPILLS is WARN or ERROR, found `${ARG_SPILLS}`\n  fix: write SPILLS WARN")
  endif()
  set(package "${PROJECT_NAME}")
  set(version "${PROJECT_VERSION}")
  if(SKBUILD_PROJECT_NAME)
    set(package "${SKBUILD_PROJECT_NAME}")
    set(version "${SKBUILD_PROJECT_VERSION_FULL}")
  endif()
endmacro()

function(_gristmill_find_launcher result)
  foreach(folder "${_gristmill_package}/csrc" "${_gristmill_package}/../../csrc")
    if(EXISTS "${folder}/tables.hpp")
      get_filename_component(folder "${folder}" ABSOLUTE)
      set(${result} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "gristmill_add_kernels: the launcher's sources are missing beside ${_gristmill_package}\n"
    "  fix: pip install --force-reinstall gristmill")
endfunction()

# What a wheel says of what is compiled in: a bill of materials (PEP 770) and, for other packages, the licences (PEP 639).
macro(_gristmill_install_notices)
  if(SKBUILD_METADATA_DIR)
    install(FILES "${out}/${ARG_MODULE}.cdx.json" DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
    if(EXISTS "${csrc}/licenses")
      install(DIRECTORY "${csrc}/licenses/" DESTINATION "${SKBUILD_METADATA_DIR}/licenses/gristmill")
    endif()
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
  # Objects of the launcher and of nanobind are kept in the cache, unless ccache or the like is there to do so.
  get_target_property(libraries ${target} LINK_LIBRARIES)
  list(FILTER libraries INCLUDE REGEX "^nanobind")
  foreach(compiled ${target}_launcher ${libraries})
    get_target_property(program ${compiled} CXX_COMPILER_LAUNCHER)
    if(NOT program)
      set_target_properties(${compiled} PROPERTIES CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND};-E;env;--modify;PYTHONPATH=path_list_prepend:${import_root}\
;${Python_EXECUTABLE};-m;gristmill.build.cxx")
    endif()
  endforeach()
endmacro()

macro(_gristmill_generate)
  add_custom_command(
    OUTPUT "${out}/tables.cpp" "${out}/images.cpp" "${out}/images.bin" "${out}/libhost.a" "${out}/${name}.pyi"
      "${out}/${ARG_MODULE}.cdx.json"
    COMMAND "${CMAKE_COMMAND}" -E env --modify "PYTHONPATH=path_list_prepend:${import_root}"
      "${Python_EXECUTABLE}" -m gristmill build ${sources}
      --module "${ARG_MODULE}" --package "${package}" --version "${version}"
      --targets "${ARG_TARGETS}" --processor "${CMAKE_SYSTEM_PROCESSOR}" --cubins "${ARG_CUBINS}"
      --spills "${ARG_SPILLS}" --executor "${ARG_EXECUTOR}" --max-wheel-mb "${ARG_MAX_WHEEL_MB}" --ar "${CMAKE_AR}"
      --project-dir "${CMAKE_CURRENT_SOURCE_DIR}" --out "${out}" --depfile "${out}/kernels.d"
    DEPENDS ${sources}
    DEPFILE "${out}/kernels.d"
    COMMENT "Compiling the kernels of ${ARG_MODULE} (log: ${out}/build.log)"
    USES_TERMINAL
    VERBATIM)
  # A target that waits for nothing: else the kernels would be compiled after the launcher, and not beside it.
  add_custom_target(${target}_kernels DEPENDS "${out}/tables.cpp")
endmacro()
