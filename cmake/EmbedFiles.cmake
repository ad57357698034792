# foresail_embed(TARGET FOLDER SYMBOL): compiles the .json files of FOLDER (relative to the project) into TARGET as
#   std::span<const std::pair<std::string_view, std::string_view>> foresail::SYMBOL();   // (file stem, content), sorted
# so that the binary needs no data folder at run time. Declare SYMBOL where it is used.
function(foresail_embed target folder symbol)
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL "INTERFACE_LIBRARY")
    return()  # a room without sources yet
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.json)
  list(SORT files)
  set(entries "")
  foreach(path IN LISTS files)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} content)
    get_filename_component(stem ${path} NAME_WLE)
    string(APPEND entries "    {\"${stem}\", R\"embedded(${content})embedded\"},\n")
  endforeach()
  list(LENGTH files count)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/embedded/${symbol}.cpp)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT "// Generated from @folder@ by cmake/EmbedFiles.cmake.
#include <array>
#include <span>
#include <string_view>
#include <utility>

namespace foresail {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, @count@> kFiles{{
@entries@}};

}  // namespace

std::span<const std::pair<std::string_view, std::string_view>> @symbol@() { return kFiles; }

}  // namespace foresail
")
  target_sources(${target} PRIVATE ${generated})
endfunction()
