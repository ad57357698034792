// The mesh of a dumped Program.
#pragma once

#include "core/json.h"
#include "spec/mesh.h"

namespace foresail {

Json mesh_form(const Mesh& mesh);
/// Throws bad_input with the key whose value no mesh has.
Mesh mesh_from(const JsonObject& object);

}  // namespace foresail
