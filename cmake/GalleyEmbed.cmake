# galley_embed(TARGET NAMESPACE ROOT)
#
# Embeds every file under ROOT in TARGET through `.incbin`, and generates NAMESPACE.h / NAMESPACE.cc with
#   namespace galley::NAMESPACE { struct File { std::string_view path, etag; std::span<const std::byte> bytes; };
#                                 std::span<const File> files(); }
# sorted by path; the etag is the start of the SHA-256. Editing a file rebuilds the object; adding one reruns CMake.
include_guard(GLOBAL)

function(galley_embed target ns root)
  enable_language(ASM)   # call project(... LANGUAGES CXX ASM) at the top level, too
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${root} ${root}/*)
  list(SORT files)
  list(LENGTH files count)
  if(count EQUAL 0)
    message(FATAL_ERROR "galley_embed: nothing under ${root}")
  endif()
  set(asm ".section .rodata\n")
  set(decl "")
  set(rows "")
  set(deps "")
  set(i 0)
  foreach(file IN LISTS files)
    set(full ${root}/${file})
    set(sym galley_${ns}_${i})
    file(SHA256 ${full} sha)
    string(SUBSTRING ${sha} 0 16 tag)
    string(APPEND asm ".balign 16\n.global ${sym}\n.hidden ${sym}\n${sym}:\n.incbin \"${full}\"\n"
                      ".global ${sym}_end\n.hidden ${sym}_end\n${sym}_end:\n.byte 0\n")
    string(APPEND decl "extern const std::byte ${sym}[], ${sym}_end[];\n")
    string(APPEND rows "    {\"${file}\", \"${tag}\", {${sym}, ${sym}_end}},\n")
    list(APPEND deps ${full})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${full})
    math(EXPR i "${i} + 1")
  endforeach()
  string(APPEND asm ".section .note.GNU-stack,\"\",@progbits\n")
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/embed_${ns})
  file(CONFIGURE OUTPUT ${dir}/${ns}.S CONTENT "${asm}" @ONLY)
  file(CONFIGURE OUTPUT ${dir}/${ns}.h CONTENT
"#pragma once
#include <cstddef>
#include <span>
#include <string_view>
namespace galley::${ns} {
struct File {
  std::string_view path;
  std::string_view etag;
  std::span<const std::byte> bytes;
};
std::span<const File> files();
}  // namespace galley::${ns}
" @ONLY)
  file(CONFIGURE OUTPUT ${dir}/${ns}.cc CONTENT
"#include \"${ns}.h\"
extern \"C\" {
${decl}}
namespace galley::${ns} {
std::span<const File> files() {
  static const File table[] = {
${rows}  };
  return table;
}
}  // namespace galley::${ns}
" @ONLY)
  set_source_files_properties(${dir}/${ns}.S PROPERTIES OBJECT_DEPENDS "${deps}")
  target_sources(${target} PRIVATE ${dir}/${ns}.S ${dir}/${ns}.cc)
  target_include_directories(${target} PUBLIC ${dir})
endfunction()
