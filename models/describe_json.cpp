#include "core/json.h"
#include "models/describe.h"

namespace foresail {

std::string describe_model_json(const ModelSpec& model, int64_t sequence_length) {
  Json document = Json::object();
  document["name"] = model.name;
  document["family"] = model.family;
  document["parameters"] = parameter_count(model);
  document["active_parameters"] = active_parameter_count(model);
  document["layers"] = model.layers;
  document["vocabulary"] = model.vocabulary;
  document["training_flops_per_token"] = training_flops_per_token(model, sequence_length);
  Json table = Json::array();
  for (const LayerRow& row : layer_table(model, sequence_length)) {
    Json entry = Json::object();
    entry["layer"] = row.layer;
    entry["layers"] = row.layers;
    entry["weight"] = row.weight;
    entry["shape"] = row.shape;
    entry["parameters"] = row.parameters;
    entry["forward_flops_per_token"] = row.forward_flops_per_token;
    if (!row.tied_to.empty()) entry["tied_to"] = row.tied_to;
    table.push_back(std::move(entry));
  }
  document["layer_table"] = std::move(table);
  return json_text(document);
}

}  // namespace foresail
