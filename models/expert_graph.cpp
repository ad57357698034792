// The mixture of experts that takes the place of a block's FFN.
#include "core/error.h"
#include "models/layer_builder.h"

namespace foresail {

int expert_ffn(LayerBuilder& layer, int, int) {
  throw_bad_input("model " + layer.model.name, "its expert layers cannot be built yet", "use a dense model");
}

}  // namespace foresail
