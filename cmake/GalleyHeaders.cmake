# Target galley_headers: compiles every header of src/ alone, so that none relies on what its users include before it.
# Not part of a normal build; CI runs `cmake --build --preset dev --target galley_headers`.
include_guard(GLOBAL)

function(galley_check_headers)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/*.h)
  list(FILTER headers EXCLUDE REGEX "-inl[.]h$")  # pieces of translation units with flags and types of their own
  foreach(header IN LISTS headers)
    set(unit ${PROJECT_BINARY_DIR}/headers/${header}.cc)
    # Twice, so that a missing #pragma once shows. file(CONFIGURE) leaves an unchanged file alone.
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${header}\"\n#include \"${header}\"\n" @ONLY)
    list(APPEND units ${unit})
  endforeach()
  add_library(galley_headers OBJECT EXCLUDE_FROM_ALL ${units})
  # Headers of tests name files below tests/.
  target_compile_definitions(galley_headers PRIVATE GALLEY_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(galley_headers PRIVATE galley_flags)
endfunction()
